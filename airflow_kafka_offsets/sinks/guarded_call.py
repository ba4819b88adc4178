"""Calls the user's code with the connection of a transaction that is not the user's to end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.engine.base import NestedTransaction
from sqlalchemy.exc import DBAPIError, InvalidRequestError

from airflow_kafka_offsets.database.errors import is_outage, refusal, rolled_back_by, sqlstate
from airflow_kafka_offsets.database.tables import forget_reflected
from airflow_kafka_offsets.exceptions import FunctionError, KafkaOffsetsError, RecordError
from airflow_kafka_offsets.transforms.user_errors import described

_ENDS = re.compile(
    r"(?:\s|;|--[^\n]*\n|/\*.*?\*/)*"
    r"(COMMIT|END|ABORT|BEGIN|START\s+TRANSACTION|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)

# A statement after one that failed, in a transaction of Postgres: no outage, though the class is that of some.
_FAILED_TRANSACTION = "25P02"


class RecordsRefusedError(Exception):
    """The code refuses records; what it wrote was taken back."""

    def __init__(self, errors: list[RecordError]) -> None:
        super().__init__(errors)
        self.errors = errors


def call(conn: Connection, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user with a connection, in a savepoint, and check that the transaction is still the same
    one.

    :param what: which function, for messages
    :param arguments: beside the connection
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

    def on_commit(_: Connection) -> None:
        refuse("COMMIT")

    def on_rollback(_: Connection) -> None:
        refuse("ROLLBACK, or close(),")

    def on_statement(_: Connection, __: Any, statement: str, *___: Any) -> None:
        if ends := _ENDS.match(statement):
            refuse(ends.group(1).upper())

    listeners: dict[str, Callable[..., None]] = {
        "commit": on_commit,
        "rollback": on_rollback,
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
                f"{what} went on after the database had refused a statement, which nothing in the transaction can "
                "follow. Nothing was written; put what may fail into a block of conn.begin_nested()"
            ) from None
        if _may_pass(error):
            raise
        raise _ended(what, refusal(error)) from None
    except InvalidRequestError as error:
        raise _ended(what, str(error)) from None


def _ended(what: str, reason: str) -> FunctionError:
    return FunctionError(
        f"{what} ended the transaction that it was given, behind the connection's back ({reason}). No position moved, "
        "and a retry calls the function again. What it had written by then may be committed: look for it, and delete "
        "it. Leave out what commits, such as commit() of the driver's connection, and DDL where the database commits "
        "before it"
    )


def _error(conn: Connection, what: str, error: Exception) -> Exception:
    """Return the error of an exception of the user's code; that of the database itself where repeating the transaction
    may help.
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
