"""A lake table with its connections, whatever its format is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.history import OUTPUT_KINDS, REPLAY_KINDS, REWIND_KINDS
from airflow_kafka_offsets.core.offsets import OffsetRange
from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.exceptions import ConfigurationError, OlderLedgerError, TargetError
from airflow_kafka_offsets.sinks.lake.columns import match, match_new, required_columns
from airflow_kafka_offsets.sinks.lake.group_loads import GroupLoads
from airflow_kafka_offsets.sinks.lake.removal import ReplacedRows, Search, try_rewrite
from airflow_kafka_offsets.sinks.lake.rows import LakeRows
from airflow_kafka_offsets.sinks.lake.snapshot import Snapshot
from airflow_kafka_offsets.sinks.lake.target import LakeTarget
from airflow_kafka_offsets.sinks.row_origin import check_key_names
from airflow_kafka_offsets.sinks.table import LastBatch, Output, Table
from airflow_kafka_offsets.sinks.target_rows import Removed, ReplacedOffsets
from airflow_kafka_offsets.staging.rows import TargetColumns, schema_text
from airflow_kafka_offsets.writers.lake_writer import LakeWriter

if TYPE_CHECKING:
    from airflow_kafka_offsets.sinks.lake.sink import LakeSink


@dataclass(frozen=True)
class LakeTable(Table):
    """A lake table; see `Table`. A format has a class that inherits from it.

    :ivar kind: of the writer of its files; see `writers.lake_writer.FORMATS`
    :ivar restored_by: how a table that was dropped is restored, in brackets, for a message
    """

    kind: ClassVar[str]
    restored_by: ClassVar[str] = ""

    sink: LakeSink

    @abstractmethod
    def check_parameters(self) -> pa.Schema | None:
        """Check the parameters of the sink.

        :return: the declared columns of a table that is created
        :raises ConfigurationError: one is wrong
        """

    @abstractmethod
    def snapshot(self, conn: Connection | None = None, *, lock: bool = False) -> Snapshot | None:
        """Return the table as it is now; None where there is none.

        :param conn: of the transaction that commits to it, where it does not commit externally
        :param lock: whether other writers wait for the end of the transaction
        """

    @abstractmethod
    def create(self, columns: pa.Schema) -> Snapshot:
        """Create the table, unless another process does at the same moment.

        :param columns: of the rows, or as they were declared
        :raises TargetError: it cannot be created
        """

    def prepare(self, columns: pa.Schema | None, *, may_grow: bool = False) -> TargetColumns:
        declared = self.check_parameters()
        if self.sink.upsert_key:
            check_key_names(self.sink.upsert_key, columns)
        snapshot, wanted = self.snapshot(), columns if declared is None else declared
        if snapshot is None and wanted is None:
            return TargetColumns(self.sink.name, None)
        if snapshot is None:
            match_new(self.sink.name, pa.schema([]), wanted)
            snapshot = self.create(wanted)
        snapshot.check()
        if self.sink.upsert_key:
            snapshot.check_removal()
        names = snapshot.columns.names
        if self.sink.commits_externally and BATCH_ID not in names:
            raise TargetError(
                f"Table {self.sink.name!r} has no column {BATCH_ID!r}, which is needed to remove the rows of an "
                f"abandoned batch: add it (ALTER TABLE … ADD COLUMN {BATCH_ID} BIGINT). If it was dropped, restore the "
                "table instead: neither replace nor verify finds rows that have lost their batch"
            )
        required = required_columns(self.sink.name, snapshot.columns, snapshot.required, self.sink.upsert_key)
        if columns is not None:
            match(self.sink.name, snapshot.columns, required, columns, may_grow=may_grow)
            self.check_types(pa.schema([column for column in columns if column.name not in names]))
        # The tasks write final files: columns that are not known before they run cannot be added.
        return TargetColumns(self.sink.name, tuple(names), required, may_grow and columns is not None)

    def added_check(self) -> Callable[[pa.Field], None]:
        snapshot = self.snapshot()
        columns = pa.schema([]) if snapshot is None else snapshot.columns

        def check(column: pa.Field) -> None:
            match(self.sink.name, columns, (), pa.schema([column]), may_grow=True)
            self.check_types(pa.schema([column]))

        return check

    def check_types(self, columns: pa.Schema) -> None:
        """Check that the format can have columns of some types.

        :raises ConfigurationError: it cannot
        """

    def refuse_unknown_rows(self, conn: Connection, batches: sa.Table, output: Output) -> None:
        """Raise if the state tables lack the last publication of the group, or the table was rolled back to before it,
        is another one than the group has loaded into, or an older copy.

        :raises OlderLedgerError: the state tables lack it
        :raises TargetError: the table was rolled back, or is another one or an older copy
        """
        snapshot = self.snapshot(conn)
        installation, dot, own = output.series.partition(".")
        loads = f"{installation}{dot}{output.group_id}"
        number = -1 if snapshot is None else snapshot.last_number(loads)
        found = None if snapshot is None else snapshot.last_publication(output.group_id)
        self._refuse_older(conn, batches, output, snapshot, number if dot or found is None else found.number)
        if dot and number >= 0:
            self.refuse_unknown(conn, batches, output, LastBatch(number, output.group_id, ("load",)))
        if found is None:
            return
        if not found.series.startswith(loads):
            if number < 0 and own == output.group_id:
                raise OlderLedgerError(
                    f"Table {self.sink.name!r} holds rows of batch {found.number} of group {output.group_id!r} from "
                    "other state tables. The state tables were created again. Nothing was written: records would be "
                    f"loaded again. {self.way_out(conn, batches, output)}"
                )
        # It may be of any kind where it commits with the positions. Else each batch but a load is a series of its own.
        elif found.series != loads or not dot:
            kinds = (REPLAY_KINDS if dot else OUTPUT_KINDS) + (() if found.rows else REWIND_KINDS)
            self.refuse_unknown(conn, batches, output, LastBatch(found.number, output.group_id, kinds))

    def _refuse_older(
        self, conn: Connection, batches: sa.Table, output: Output, snapshot: Snapshot | None, number: int
    ) -> None:
        """Raise if the table was rolled back, or lacks rows of the group; see `_refuse_lost`."""
        loads = GroupLoads.read(conn, batches, output.group_id, self.sink.name)
        # The preview of a rewind has no batch yet.
        kind = loads.kind(conn, output.batch_id)
        if snapshot is not None and (kind or "rewind") not in REWIND_KINDS:
            snapshot.check_history(output.group_id, loads.known_rollbacks(conn))
        self._refuse_lost(conn, loads, number, output.ranges if kind is None else ())

    def refuse_lost(self, conn: Connection, batches: sa.Table, group_id: str) -> None:
        loads = GroupLoads.read(conn, batches, group_id, self.sink.name)
        if loads.last >= 0 and self.snapshot() is None:
            self._refuse_lost(conn, loads, -1)

    def _refuse_lost(
        self, conn: Connection, loads: GroupLoads, number: int, replacing: Sequence[OffsetRange] = ()
    ) -> None:
        """Raise if the table lacks rows of the group that no rewind has replaced since: it was dropped or rolled back,
        is another one or an older copy. After a rewind without `replace`, the group may begin in any table.

        :param number: of the last publication of the group; in a table that commits externally, of its last load. -1
            where there is none
        :param replacing: the offsets of a rewind that is about to replace rows
        """
        if number >= loads.last or loads.goes_on:
            return
        # Beside the loads, replays commit in any order to a table in the database of the positions.
        lost = None if loads.kind(conn, number) in REPLAY_KINDS else loads.left_after(conn, number, replacing)
        if lost is not None:
            has = "no rows" if number < 0 else f"batch {number} as the last one"
            raise TargetError(
                f"Table {self.sink.name!r} has {has} of group {loads.group_id!r}, whose batch {lost} is in one of this "
                "name: that was dropped or replaced, or this one is an older copy, or of another catalog or store. "
                "Nothing was written: the positions of the group are after rows that are not here. Restore the table"
                f"{self.restored_by}, or name the catalog of before. If the rows are gone, rewind the group, with "
                "replace, to where its rows end: to the first offset, if none is left. To go on with the rows that are "
                "in this table, whatever batches they are of, rewind the group to-current, without replace"
            )

    def check_removal(self) -> None:
        if (snapshot := self.snapshot()) is not None:
            snapshot.check_removal()

    def check_replaced(self, conn: Connection, replaced: ReplacedOffsets) -> None:
        if (snapshot := self.snapshot(conn)) is not None:
            rows = ReplacedRows.read(conn, self.sink.name, replaced)
            rows.check_columns(snapshot.columns)
            try_rewrite(snapshot, Search(rows).find(snapshot).mixed)

    def writer(self, columns: pa.Schema | None, output: Output) -> LakeWriter:
        snapshot = self.snapshot()
        if snapshot is None:
            kind = type(self.sink).__name__
            raise ConfigurationError(
                f"There is no table {self.sink.name!r}, and it cannot be created: its columns are unknown before the "
                f'transform runs. Declare them, as in {kind}(…, columns="id BIGINT, name STRING"), or create the table'
            )
        if columns is None:
            columns = pa.schema([each for each in snapshot.columns if each.name != BATCH_ID])
        shape: Any = snapshot.shape(columns)
        return LakeWriter(
            self.kind,
            self.sink.name,
            schema_text(columns),
            asdict(shape),
            output.batch_id,
            output.attempt,
            self.sink.upsert_key,
        )

    @contextmanager
    def publish(self, conn: Connection, output: Output) -> Iterator[LakeTarget]:
        target = self._target(self.snapshot(conn, lock=True), output)
        target.open(conn)
        yield target
        target.commit()

    def last_number(self, output: Output) -> int:
        snapshot = self.snapshot()
        return -1 if snapshot is None else snapshot.last_number(output.series)

    def retire(self, output: Output) -> list[Removed]:
        return self._target(self.snapshot(), output).retire()

    def rows(self, conn: Connection) -> LakeRows:
        return LakeRows(conn, self.sink.name, self.snapshot(conn), self.sink.replaces_rows)

    def remove_leftovers(self, batch_id: int, before: datetime, installation: str) -> int:
        snapshot = self.snapshot()
        return 0 if snapshot is None else snapshot.remove_leftovers(batch_id, before, installation)

    def _target(self, snapshot: Snapshot | None, output: Output) -> LakeTarget:
        return LakeTarget(self.sink.name, snapshot, output, self.sink.upsert_key)
