"""The functions of a `FunctionSink` in one transaction, which they must not end: call them in a savepoint, and check
their results and the state of the transaction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.engine.base import NestedTransaction
from sqlalchemy.exc import DBAPIError, InvalidRequestError

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD
from airflow_kafka_offsets.database.errors import is_outage, refusal, rolled_back_by, sqlstate
from airflow_kafka_offsets.database.tables import forget_reflected
from airflow_kafka_offsets.exceptions import FunctionError, KafkaOffsetsError, RecordError
from airflow_kafka_offsets.sinks.table import Dataset, Output, Table, Target
from airflow_kafka_offsets.sinks.target_rows import Removed, ReplacedOffsets, TargetRows
from airflow_kafka_offsets.staging.rows import Record, StagedRows, TargetColumns
from airflow_kafka_offsets.transforms.user_errors import described

if TYPE_CHECKING:
    from airflow_kafka_offsets.core.offsets import OffsetRange
    from airflow_kafka_offsets.sinks.function import FunctionSink


_ENDS = re.compile(
    r"(?:\s|;|--[^\n]*\n|/\*.*?\*/)*"
    r"(COMMIT|END|ABORT|BEGIN|START\s+TRANSACTION|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)

# A statement after one that failed, in a transaction of Postgres: no outage, though the class is that of some.
_FAILED_TRANSACTION = "25P02"


class RecordsRefusedError(Exception):
    """The function refuses records; its writes were rolled back."""

    def __init__(self, errors: list[RecordError]) -> None:
        super().__init__(errors)
        self.errors = errors


def call(conn: Connection, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user with a connection, in a savepoint, and check that the transaction is still the same
    one.

    :param what: which function, for messages
    :param arguments: besides the connection
    :raises RecordsRefusedError: it raised RecordError, or a group of these
    :raises FunctionError: it raised anything else, or ended the transaction
    :raises DBAPIError: an outage, or a conflict with another writer: repeating the transaction may help
    """
    # The end of a transaction is the end of its savepoints, in every database: this one shows it.
    savepoint = conn.begin_nested()
    attempts: list[FunctionError] = []
    try:
        with _refused_ends(conn, what, attempts):
            result = function(conn, *arguments)
    except Exception as error:
        # The function may have caught it, and raised another one.
        if attempts:
            raise attempts[0] from None
        refused = _refused_records(error)
        if refused:
            _leave(what, savepoint, savepoint.rollback)
            raise RecordsRefusedError(refused) from None
        if isinstance(error, KafkaOffsetsError):
            raise
        raise _error(conn, what, error) from None
    finally:
        # It may have altered any table, or undone that.
        forget_reflected(conn)
    if attempts:
        raise attempts[0]
    if conn.get_nested_transaction() is not savepoint:
        raise FunctionError(f"{what} left a savepoint open, or closed one that is not its own. Nothing was written")
    _leave(what, savepoint, savepoint.commit)
    return result


@contextmanager
def _refused_ends(conn: Connection, what: str, attempts: list[FunctionError]) -> Iterator[None]:
    """Refuse to end the transaction within the block.

    :param attempts: gets an error for each attempt, should the block catch it
    """

    def refuse(words: str) -> None:
        attempts.append(
            FunctionError(
                f"{what} called {words} on the connection that it was given: the transaction moves the positions, too, "
                "and is committed afterwards. Nothing was written; leave commit(), rollback() and close() out, and "
                "use conn.begin_nested() for what may fail"
            )
        )
        raise attempts[-1]

    def on_statement(_: Connection, __: Any, statement: str, *___: Any) -> None:
        if ends := _ENDS.match(statement):
            refuse(ends.group(1).upper())

    listeners: dict[str, Callable[..., None]] = {
        "commit": lambda _: refuse("COMMIT"),
        "rollback": lambda _: refuse("ROLLBACK, or close(),"),
        "before_cursor_execute": on_statement,
    }
    for name, listener in listeners.items():
        sa.event.listen(conn, name, listener)
    try:
        yield
    finally:
        for name, listener in listeners.items():
            sa.event.remove(conn, name, listener)


def _refused_records(error: Exception) -> list[RecordError]:
    """Return the records that the code refuses; nothing where it raised something else."""
    if isinstance(error, RecordError):
        return [error]
    if not isinstance(error, ExceptionGroup) or error.split(RecordError)[1] is not None:
        return []
    return [refused for each in error.exceptions for refused in _refused_records(each)]


def _leave(what: str, savepoint: NestedTransaction, leave: Callable[[], None]) -> None:
    """Release a savepoint, or return to it.

    :raises FunctionError: there is none: the transaction is another one, or a statement of it had failed
    """
    try:
        leave()
    except DBAPIError as error:
        if sqlstate(error) == _FAILED_TRANSACTION:
            raise FunctionError(
                f"{what} continued after the database had refused a statement, which ends the transaction. Nothing "
                "was written; put statements that may fail into a block of conn.begin_nested()"
            ) from None
        if _may_pass(error):
            raise
        raise _ended(what, refusal(error)) from None
    except InvalidRequestError as error:
        raise _ended(what, str(error)) from None


def _ended(what: str, reason: str) -> FunctionError:
    return FunctionError(
        f"{what} ended the transaction without the connection that it was given ({reason}). No position moved, and a "
        "retry calls the function again. Its earlier writes may be committed: look for them, and delete them. Do not "
        "commit, for example by commit() of the driver's connection, or by DDL if the database commits before it"
    )


def _error(conn: Connection, what: str, error: Exception) -> Exception:
    """Return the error for an exception of the user's code; the error of the database if repeating the transaction may
    help.
    """
    raised = _database_error(conn, error)
    if raised is None:
        return FunctionError(described(what, error))
    if _may_pass(raised):
        return raised
    # Messages of the database quote values.
    return FunctionError(described(what, error, refusal(raised)))


def _may_pass(error: DBAPIError) -> bool:
    """Return whether repeating the transaction, now or later, may help."""
    if sqlstate(error) == _FAILED_TRANSACTION:
        return False
    return is_outage(error) or rolled_back_by(error) is not None


def _database_error(conn: Connection, error: BaseException | None) -> DBAPIError | None:
    """Return the error of the database that an exception is, or was caused by, as SQLAlchemy raises it."""
    dbapi = conn.dialect.loaded_dbapi
    while error is not None:
        if isinstance(error, DBAPIError):
            return error
        if isinstance(error, dbapi.Error):  # of a cursor of the driver
            lost = conn.invalidated or conn.dialect.is_disconnect(error, conn.connection.dbapi_connection, None)
            wrapped = DBAPIError.instance(
                None, None, error, dbapi.Error, connection_invalidated=lost, dialect=conn.dialect
            )
            return wrapped if isinstance(wrapped, DBAPIError) else None
        error = error.__cause__ or error.__context__
    return None


class WrittenBatch(NamedTuple):
    """The batch whose rows a function writes.

    :param batch_id: its number in the history, and what the rows have as `_batch_id`
    :param group_id: the group that it is of
    :param ranges: the offsets that it reads: `topic`, `partition`, `start` and `end` (exclusive) of each; none where
        dead letters are replayed
    """

    batch_id: int
    group_id: str
    ranges: tuple[OffsetRange, ...]


class ReplacedRange(NamedTuple):
    """Offsets of a batch whose rows a function removes.

    :param batch_id: the batch that wrote the rows
    :param end: exclusive
    """

    batch_id: int
    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class ConnectedFunction(Table):
    """The functions for a database; see `Table`.

    :param proved: the table that was named for `verify`; other writes of a function are unknown
    """

    sink: FunctionSink
    proved: Table | None

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

    def check_replaced(self, conn: Connection, replaced: ReplacedOffsets) -> None:
        """Check that there is a function that removes."""
        self.sink.remove_function()

    def refuse_unknown_rows(self, conn: Connection, batches: sa.Table, output: Output) -> None:
        """Raise if the table that was named for `verify` holds rows of batches that the state tables do not know."""
        if self.proved is not None:
            self.proved.refuse_unknown_rows(conn, batches, output)

    def rows(self, conn: Connection) -> TargetRows:
        """Return the rows of the table that was named."""
        return UnknownRows(self.sink.write) if self.proved is None else self.proved.rows(conn)

    def datasets(self) -> Sequence[Dataset]:
        return () if self.proved is None else self.proved.datasets()


@dataclass(frozen=True)
class FunctionTarget(Target):
    """The functions, which get all columns, and the connection of a transaction; see `Target`."""

    conn: Connection
    sink: FunctionSink
    batch: WrittenBatch

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
                f"{what} returned {_described(returned)}: it must return the number of removed rows by (batch_id, "
                "topic, partition) of the given ranges. Nothing was changed"
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
                f"{what} returned None after {count:,} of {self._count:,} rows: it must read all of them, or return "
                "the number of rows that it wrote. Nothing was written"
            )
        if returned is None:
            return count
        if not _is_number(returned):
            raise FunctionError(
                f"{what} returned {_described(returned)}, not the number of rows that it wrote, or None. Nothing was "
                "written"
            )
        return int(returned)


def _refuse(rows: StagedRows, refused: Sequence[RecordError], what: str) -> None:
    """Note the records that the function refuses.

    :raises RecordError: this batch allows no dead letters
    :raises FunctionError: it was given no row of a record
    """
    records = {Record(error.topic, error.partition, error.offset): error.reason for error in refused}
    columns = rows.schema()
    named: set[Record] = set()
    if columns is not None and set(RECORD) <= set(columns.names):
        for given in rows.of_records(records):
            named.update(map(Record._make, zip(*(given.column(name).to_pylist() for name in RECORD), strict=True)))
    for record, reason in records.items():
        if record not in named or record in rows.refused.reasons:
            raise FunctionError(
                f"{what} refuses topic {record.topic!r} partition {record.partition} offset {record.offset}, which is "
                "the record of no given row. Nothing was written"
            )
        rows.refused.add(record, reason)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _described(value: Any) -> str:
    return repr(value) if isinstance(value, int | float | bool) else f"a {type(value).__name__}"


@dataclass(frozen=True)
class UnknownRows(TargetRows):
    """Rows without an origin; see `TargetRows`."""

    function: str

    @property
    def limit(self) -> str:
        return f"Only function {self.function!r} knows what it writes (FunctionSink without a table)"
