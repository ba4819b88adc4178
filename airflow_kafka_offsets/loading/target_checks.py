"""What a load checks of its target: once, and not for each of its batches.

A look for unknown rows may take as long as reading what was appended to the table since its last vacuum, and what the
database says of a table takes a dozen queries. Rows are matched with the columns of the table within each transaction
in any case.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.sinks.table import Output, Table


@dataclass
class TargetChecks:
    """The checks of a load, or of a replay. A target that commits externally may be set back by others at any time:
    it is checked for each batch.
    """

    ledger: Ledger
    table: Table
    may_grow: bool
    _known_after: int | None = field(default=None, init=False)
    _prepared: pa.Schema | None = field(default=None, init=False)

    def refuse_unknown_rows(self, conn: Connection, output: Output) -> None:
        """Raise if the target holds rows of a batch that the state tables do not know; see `Table.refuse_unknown_rows`.

        :param output: of the batch that is about to be written
        :raises OlderLedgerError: there are such rows
        """
        batch_id = output.batch_id
        # Batches of a load are numbered upwards. A number that comes again is of state tables that somebody restored
        # within the load.
        if self._known_after is None or batch_id <= self._known_after or self._may_change:
            self.table.refuse_unknown_rows(conn, self.ledger.tables.offset_batches, output)
            self._known_after = batch_id - 1

    def note_committed(self, batch_id: int) -> None:
        """Take note that a batch is committed, after which another one follows."""
        self._known_after = batch_id

    def prepare(self, columns: pa.Schema) -> None:
        """Check that rows which are staged can be written, and create the target where it is missing; see
        `Table.prepare` for errors.

        :param columns: those of the rows, which may be a transform's
        """
        if columns != self._prepared or self._may_change:
            self.table.prepare(columns, may_grow=self.may_grow)
            self._prepared = columns

    @property
    def _may_change(self) -> bool:
        return self.table.sink.commits_externally or self.table.sink.writes_files
