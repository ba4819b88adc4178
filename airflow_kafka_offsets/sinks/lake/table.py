"""A lake table with its connections, whatever its format is."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.history import OUTPUT_KINDS, REPLAY_KINDS, REWIND_KINDS
from airflow_kafka_offsets.core.offsets import OffsetRange, Span, subtract
from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.database.transactions import stream
from airflow_kafka_offsets.exceptions import ConfigurationError, OlderLedgerError, TargetError
from airflow_kafka_offsets.sinks.lake.columns import match, match_new, required_columns
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
        names = snapshot.columns.names
        if self.sink.commits_externally and BATCH_ID not in names:
            raise TargetError(
                f"Table {self.sink.name!r} has no column {BATCH_ID!r}, which is needed to remove the rows of an "
                f"abandoned batch: add it (ALTER TABLE … ADD COLUMN {BATCH_ID} BIGINT)"
            )
        required = required_columns(self.sink.name, snapshot.columns, snapshot.required, self.sink.upsert_key)
        if columns is not None:
            match(self.sink.name, snapshot.columns, required, columns, may_grow=may_grow)
        # The tasks write final files: columns that are not known before they run cannot be added.
        return TargetColumns(self.sink.name, tuple(names), required, may_grow and columns is not None)

    def added_check(self) -> Callable[[pa.Field], None]:
        snapshot = self.snapshot()
        columns = pa.schema([]) if snapshot is None else snapshot.columns
        return lambda column: match(self.sink.name, columns, (), pa.schema([column]), may_grow=True)

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
        history = _Loads.read(conn, batches, output.group_id, self.sink.name)
        # The preview of a rewind has no batch yet.
        kind = history.kind(conn, output.batch_id)
        if snapshot is not None and (kind or "rewind") not in REWIND_KINDS:
            last_rewind = history.moves[0].committed_at if history.moves else None
            snapshot.check_history(output.group_id, last_rewind, history.abandoned(conn))
        replacing = output.ranges if kind is None else ()
        self._refuse_lost(conn, history, number if dot or found is None else found.number, replacing)
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

    def refuse_lost(self, conn: Connection, batches: sa.Table, group_id: str) -> None:
        loads = _Loads.read(conn, batches, group_id, self.sink.name)
        if loads.last >= 0 and self.snapshot() is None:
            self._refuse_lost(conn, loads, -1)

    def _refuse_lost(self, conn: Connection, loads: _Loads, number: int, replacing: Sequence[OffsetRange] = ()) -> None:
        """Raise if the table lacks rows of the group that no rewind has replaced since: it was dropped or rolled back,
        is another one or an older copy. After a rewind without `replace`, the group may begin in any table.

        :param number: of the last publication of the group; in a table that commits externally, of its last load. -1
            where there is none
        :param replacing: the offsets of a rewind that is about to replace rows
        """
        if number >= loads.last or any(move.target_table is None for move in loads.moves):
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
                "replace, to where its rows end: to the first offset, if none is left. Only a rewind without replace "
                "lets the group begin in a table beside the one of before"
            )

    def check_removal(self) -> None:
        if (snapshot := self.snapshot()) is not None:
            snapshot.check_removal()

    def check_replaced(self, conn: Connection, replaced: ReplacedOffsets) -> None:
        if (snapshot := self.snapshot(conn)) is not None:
            rows = ReplacedRows.read(conn, self.sink.name, replaced)
            rows.check_columns(snapshot.columns)
            # Of a file that is removed meanwhile, the commit finds another.
            with suppress(FileNotFoundError):
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


@dataclass(frozen=True)
class _Loads:
    """The loads of a group into a table, by the state tables.

    :ivar last: the number of the last one that wrote rows; -1 where there is none
    :ivar moves: the rewinds of the group after it that were not undone, the last one first
    """

    batches: sa.Table
    group_id: str
    name: str
    last: int
    moves: Sequence[Any]

    @classmethod
    def read(cls, conn: Connection, batches: sa.Table, group_id: str, name: str) -> _Loads:
        loads = cls(batches, group_id, name, -1, ())
        # With ORDER BY, only the end of a long history is read.
        query = sa.select(batches.c.batch_id).where(loads._with_rows).order_by(batches.c.batch_id.desc()).limit(1)
        last: int = conn.scalar(query) or -1
        return replace(loads, last=last, moves=_moves(conn, batches, group_id, last))

    @property
    def _with_rows(self) -> sa.ColumnElement[bool]:
        batches = self.batches.c
        of_group = sa.and_(batches.consumer_group == self.group_id, batches.target_table == self.name)
        return sa.and_(of_group, batches.kind == "load", batches.state == "committed", batches.row_count > 0)

    def kind(self, conn: Connection, number: int) -> str | None:
        """Return the kind of a batch of the group; None where there is none."""
        batches = self.batches.c
        kind = sa.select(batches.kind).where(batches.batch_id == number, batches.consumer_group == self.group_id)
        return conn.scalar(kind)

    def abandoned(self, conn: Connection) -> set[int]:
        """Return the abandoned batches of the group."""
        batches = self.batches.c
        query = sa.select(batches.batch_id).where(batches.consumer_group == self.group_id, batches.state == "abandoned")
        return set(conn.scalars(query))

    def left_after(self, conn: Connection, number: int, replacing: Sequence[OffsetRange]) -> int | None:
        """Return the last load after a batch whose rows should be there: no rewind after the last load has replaced all
        of them, or is about to. None where there is no such load.

        :param replacing: the offsets of a rewind that is about to replace rows
        """
        batches = self.batches
        ranges = batches.metadata.tables[batches.key.removesuffix("offset_batches") + "offset_ranges"]
        replaced = defaultdict[tuple[str, int], list[Span]](list)
        for range_ in replacing:
            replaced[range_.topic_partition].append((range_.start, range_.end))
        rewinds = [move.batch_id for move in self.moves if move.target_table == self.name]
        for row in conn.execute(ranges.select().where(ranges.c.batch_id.in_(rewinds))):
            if row.replaced_start_offset is not None:
                replaced[row.topic, row.partition].append((row.replaced_start_offset, row.replaced_end_offset))
        later = sa.and_(self._with_rows, ranges.c.batch_id > number, ranges.c.records > 0)
        written = sa.select(ranges).join(batches, batches.c.batch_id == ranges.c.batch_id).where(later)
        for row in stream(conn, written.order_by(ranges.c.batch_id.desc())):
            if subtract([(row.start_offset, row.end_offset)], replaced[row.topic, row.partition]):
                return int(row.batch_id)
        return None


def _moves(conn: Connection, batches: sa.Table, group_id: str, after: int) -> list[Any]:
    """Return the rewinds of a group that were not undone, the last one first.

    :param after: a batch; only what is later is meant
    """
    query = sa.select(batches.c.batch_id, batches.c.kind, batches.c.target_table, batches.c.committed_at).where(
        batches.c.consumer_group == group_id, batches.c.batch_id > after, batches.c.kind.in_(REWIND_KINDS)
    )
    moves, undone = [], False
    for move in conn.execute(query.order_by(batches.c.batch_id.desc())):
        if undone:
            undone = False
        elif move.kind == "undo":
            undone = True
        else:
            moves.append(move)
    return moves
