"""What a load checks of its target: once, and not for each of its batches.

A look for unknown rows may take as long as reading what was appended to the table since its last vacuum, and what the database says of
a table takes a dozen queries. Whoever restores the state tables later takes the claim away from the load, without which nothing is
committed; and rows are matched with the columns of the table within each transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.sinks.sink import FileSink, Sink


@dataclass
class TargetChecks:
    """The checks of a load, or of a replay. A table in files may be set back by any of its writers at any time: it is checked for each batch."""

    ledger: Ledger
    sink: Sink
    may_grow: bool
    _known_from: int | None = field(default=None, init=False)
    _prepared: pa.Schema | None = field(default=None, init=False)

    def refuse_unknown_rows(self, conn: Connection, batch_id: int) -> None:
        """Raise if the target holds rows of a batch that the state tables do not know; see `Sink.refuse_unknown_rows`.

        :param batch_id: the batch that is about to be written
        :raises OlderLedgerError: there are such rows
        """
        is_known = self._known_from is not None and self._known_from <= batch_id
        if not is_known or isinstance(self.sink, FileSink):
            self.sink.refuse_unknown_rows(conn, self.ledger.tables.offset_batches, batch_id)
            self._known_from = batch_id

    def prepare(self, columns: pa.Schema) -> None:
        """Check that rows which are staged can be written, and create the target where it is missing; see `Sink.prepare` for errors.

        :param columns: those of the rows, which may be a transform's
        """
        if columns != self._prepared or isinstance(self.sink, FileSink):
            self.sink.prepare(self.ledger.engine, columns, may_grow=self.may_grow)
            self._prepared = columns
