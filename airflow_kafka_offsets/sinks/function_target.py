"""The functions of a `FunctionSink` in one transaction: calls them, and checks what they return and do to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD
from airflow_kafka_offsets.exceptions import FunctionError, RecordError
from airflow_kafka_offsets.sinks.function_values import ReplacedRange, WrittenBatch
from airflow_kafka_offsets.sinks.guarded_call import RecordsRefusedError, call
from airflow_kafka_offsets.sinks.table import Dataset, Output, Table, Target
from airflow_kafka_offsets.sinks.target_rows import (
    Batches,
    Detail,
    DuplicatedOffsets,
    Removed,
    ReplacedOffsets,
    RowCount,
    TargetRows,
)
from airflow_kafka_offsets.staging.refused import Record
from airflow_kafka_offsets.staging.rows import StagedRows, TargetColumns

if TYPE_CHECKING:
    import sqlalchemy as sa

    from airflow_kafka_offsets.core.offsets import Slice
    from airflow_kafka_offsets.sinks.function import FunctionSink


@dataclass(frozen=True)
class ConnectedFunction(Table):
    """The functions for a database; see `Table`."""

    sink: FunctionSink
    engine: Engine

    def prepare(self, columns: pa.Schema | None, *, may_grow: bool = False) -> TargetColumns:
        """Import the functions, before Spark starts.

        :raises FunctionError: a function does not exist, or does not take what it is given
        """
        self.sink.write_function()
        if self.sink.remove is not None:
            self.sink.remove_function()
        return TargetColumns(self.sink.name, None, may_grow=may_grow)

    def publish(self, conn: Connection, output: Output) -> AbstractContextManager[FunctionTarget]:
        """Return the functions as they are called over the connection of a transaction."""
        return nullcontext(FunctionTarget(conn, self.sink, WrittenBatch(*output[:3])))

    def refuse_unknown_rows(self, conn: Connection, batches: sa.Table, output: Output) -> None:
        """Raise if the table that was named for `verify` holds rows of batches that the state tables do not know."""
        if (table := self._proved_table()) is not None:
            table.refuse_unknown_rows(conn, batches, output)

    def rows(self, conn: Connection) -> TargetRows:
        """Return the rows of the table that was named; nothing is known of what else a function writes."""
        table = self._proved_table()
        return UnknownRows(self.sink.write) if table is None else table.rows(conn)

    def datasets(self) -> Sequence[Dataset]:
        table = self._proved_table()
        return () if table is None else table.datasets()

    def _proved_table(self) -> Table | None:
        table = self.sink.proved_table()
        return None if table is None else table.connect(self.engine)


@dataclass(frozen=True)
class FunctionTarget(Target):
    """The functions, and the connection of a transaction; see `Target`."""

    conn: Connection
    sink: FunctionSink
    batch: WrittenBatch

    def add_columns(self, columns: pa.Schema) -> list[str]:
        """Add nothing: the function gets all columns."""
        return []

    def write(self, rows: StagedRows) -> int:
        """Call the function; again without the rows of the records that it refuses.

        :raises FunctionError: it raised, ended the transaction, or returned something that cannot be used
        :raises RecordError: it refuses a record, which is not to be a dead letter
        """
        function, what = self.sink.write_function(), f"Function {self.sink.write!r}, of batch {self.batch.batch_id},"
        while True:
            given = _GivenRows(rows)
            try:
                returned = call(self.conn, what, function, given, self.batch)
            except Exception as error:
                # The function may have caught it, and raised another one.
                if given.failure is not None:
                    raise given.failure from None
                if not isinstance(error, RecordsRefusedError):
                    raise
                refused = error.errors
            else:
                return given.number_of(returned, what)
            _refuse(rows, refused, what)

    def remove(self, replaced: ReplacedOffsets) -> list[Removed]:
        """Call the function that removes; see `Target.remove`.

        :raises FunctionError: it raised, ended the transaction, or returned something that cannot be used
        """
        function, what = self.sink.remove_function(), f"Function {self.sink.remove!r}"
        ranges = [ReplacedRange(*row) for row in self.conn.execute(replaced.ranges)]
        try:
            returned = call(self.conn, what, function, ranges, replaced.span)
        except RecordsRefusedError as refused:
            raise refused.errors[0] from None
        known = {range_[:3] for range_ in ranges}
        if not isinstance(returned, Mapping) or not all(
            key in known and _is_number(number) for key, number in returned.items()
        ):
            raise FunctionError(
                f"{what} returned {_described(returned)}: it has to return the number of rows that it removed by "
                "(batch_id, topic, partition) of the ranges that it was given. Nothing was changed"
            )
        return [
            Removed(batch_id, TopicPartition(topic, partition), number)
            for (batch_id, topic, partition), number in returned.items()
        ]


class _GivenRows:
    """The rows as the function iterates over them.

    :ivar failure: what reading them raised
    """

    def __init__(self, rows: StagedRows) -> None:
        self.failure: Exception | None = None
        self._count = 0
        self._rows = rows
        self._batches = self._read()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        return next(self._batches)

    def _read(self) -> Iterator[pa.RecordBatch]:
        try:
            columns = self._rows.schema()
            if columns is None:
                return
            for chunk in self._rows.chunks(columns.append(pa.field(BATCH_ID, pa.int64()))):
                for batch in chunk.rows.to_batches():
                    self._count += batch.num_rows
                    yield batch
        except Exception as error:
            self.failure = error
            raise

    def number_of(self, returned: Any, what: str) -> int:
        """Return the number of rows that the function wrote, and read the rest: files are proved where they are read.

        :param returned: what the function returned
        """
        if self.failure is not None:
            raise self.failure
        count = self._count
        for _ in self:
            pass
        if returned is None and self._count > count:
            raise FunctionError(
                f"{what} returned None after {count:,} of {self._count:,} rows: it has to read all of them, or to "
                "return the number of rows that it wrote. Nothing was written"
            )
        if returned is None:
            return count
        if not _is_number(returned):
            raise FunctionError(
                f"{what} returned {_described(returned)}, and not the number of rows that it wrote, or None. Nothing "
                "was written"
            )
        return int(returned)


def _refuse(rows: StagedRows, refused: Sequence[RecordError], what: str) -> None:
    """Take note of the records that the function refuses.

    :raises RecordError: they are no dead letters in this batch
    :raises FunctionError: it was given no row of a record
    """
    records = {Record(error.topic, error.partition, error.offset): error.reason for error in refused}
    columns = rows.schema()
    named: set[Record] = set()
    if columns is not None and set(RECORD) <= set(columns.names):
        named = {Record(*(row[name] for name in RECORD)) for row in rows.of_records(records)}
    for record, reason in records.items():
        if record not in named or record in rows.refused.reasons:
            raise FunctionError(
                f"{what} refuses topic {record.topic!r} partition {record.partition} offset {record.offset}, and was "
                "given no row of that record. Nothing was written"
            )
        rows.refused.add(record, reason)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _described(value: Any) -> str:
    return repr(value) if isinstance(value, int | float | bool) else f"a {type(value).__name__}"


class UnknownRows(NamedTuple):
    """Rows that say nothing of where they are from; see `TargetRows`."""

    function: str

    @property
    def branches(self) -> Mapping[str, TargetRows]:
        return {}

    @property
    def exists(self) -> bool:
        return True

    @property
    def detail(self) -> Detail:
        return "nothing"

    @property
    def limit(self) -> str:
        return f"What function {self.function!r} writes is known to it alone (FunctionSink without a table)"

    def counts(self, other_groups: sa.Select[int]) -> Iterator[tuple[int, RowCount]]:
        raise AssertionError("rows that say nothing are not counted")

    def duplicates(self, dead_letters: sa.Select[int, str, int, int]) -> Iterator[DuplicatedOffsets]:
        raise AssertionError("rows that say nothing are not compared")

    def offsets(self, of_batches: Batches, within: Slice) -> Iterator[int]:
        raise AssertionError("rows that say nothing have no offsets")
