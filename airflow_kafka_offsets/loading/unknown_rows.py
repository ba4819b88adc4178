"""Looks for rows that the state tables do not know, as after a restored backup of these.

The look at a table may take as long as reading what was appended since its last vacuum. A load takes one, and not one for each
batch: somebody who restores the state tables later takes its claim away, without which nothing is committed.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.sinks.sink import FileSink, Sink


@dataclass
class UnknownRows:
    """The looks of a load, or of a replay, at its target.

    :ivar known_from: a batch from which on the target was found to have only rows of batches that the state tables know
    """

    sink: Sink
    batches: sa.Table
    known_from: int | None = None

    def refuse(self, conn: Connection, batch_id: int) -> None:
        """Raise if the target holds rows of a batch that the state tables do not know; see `Sink.refuse_unknown_rows`.

        :param batch_id: the batch that is about to be written
        :raises OlderLedgerError: there are such rows
        """
        # A table in files may be set back by any of its writers at any time: it is looked at for each batch.
        if self._is_known(batch_id) and not isinstance(self.sink, FileSink):
            return
        self.sink.refuse_unknown_rows(conn, self.batches, batch_id)
        self.known_from = batch_id

    def _is_known(self, batch_id: int) -> bool:
        return self.known_from is not None and self.known_from <= batch_id
