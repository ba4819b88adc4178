"""Transactions and the clock of the database that holds the state."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from time import sleep
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from airflow_kafka_offsets.database.errors import (
    MYSQL_DEADLOCK,
    ROLLED_BACK_STATES,
    database_message,
    mysql_number,
    sqlstate,
    translated_errors,
)
from airflow_kafka_offsets.exceptions import CommitUnknownError, ConfigurationError, DatabaseBusyError

log = logging.getLogger(__name__)


T = TypeVar("T")

_SQLITE_PATIENCE_MS = 30_000

_ATTEMPTS = 5

_FIRST_PAUSE_SECONDS = 0.04


def transact(
    engine: Engine, work: Callable[[Connection], T], *, outcome: Callable[[Connection], T | None] | None = None
) -> T:
    """Run a whole transaction, and run it again where the database rolled it back for the sake of another one.

    Only a deadlock or a serialization failure is such a case, be it at a statement or at COMMIT: then the database itself
    says that nothing of it was kept. A broken connection is not: its COMMIT may have been executed. `outcome` looks that up.

    :param work: writes over the connection it is given; called once for every attempt, each in a transaction of its own
    :param outcome: called after the connection broke, in a transaction of its own. It waits for the locks of the broken
        transaction, because the server may still be executing that one, and returns what `work` returned where it was
        committed, else None. Without it, the error of the broken connection is raised as it is
    :return: what `work` returned in the attempt that was committed
    :raises DatabaseBusyError: other writers were in the way at every attempt, or hold SQLite's lock for half a minute;
        nothing was written
    :raises DBAPIError: any other error; nothing was written, unless the connection broke and there is no `outcome`
    :raises CommitUnknownError: the connection broke, and `outcome` could not be executed
    """
    attempt = 1
    while True:
        try:
            return _once(engine, work)
        except DBAPIError as error:
            if error.connection_invalidated and outcome is not None:
                broken = error
                break
            cause = _rolled_back_by(error)
            if cause is None:
                raise
            if attempt == _ATTEMPTS:
                raise DatabaseBusyError(
                    f"Other writers of database {engine.url.database!r} were in the way {_ATTEMPTS} times in a row, and "
                    f"each time the database rolled the transaction back: {database_message(cause)}. Nothing of it was written; run the "
                    "task again, and find out who writes to the same rows if it stays like that"
                ) from error
            log.warning(
                "Another writer was in the way, and the database rolled the transaction back: %s. Attempt %d of %d follows",
                database_message(cause),
                attempt + 1,
                _ATTEMPTS,
            )
        # Out of the handler: an error of the next attempt must not carry this one in its context.
        _pause(attempt)
        attempt += 1
    try:
        committed = transact(engine, outcome)
    except (DBAPIError, DatabaseBusyError) as unreachable:
        reason = database_message(unreachable) if isinstance(unreachable, DBAPIError) else str(unreachable)
        raise CommitUnknownError(
            f"The connection to database {engine.url.database!r} broke ({database_message(broken)}), and the database could not be asked "
            f"whether the transaction was committed: {reason}"
        ) from broken
    if committed is None:
        raise broken
    return committed


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """One transaction, attempted once: committed at the end of the block, rolled back where it raises.

    :raises DatabaseBusyError: SQLite's lock was not free within half a minute
    """
    with engine.connect() as conn:
        if conn.dialect.name == "sqlite":
            with _immediate(conn) as locked:
                yield locked
        else:
            with conn.begin():
                yield conn


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """A transaction that reads, and sees nothing of what others commit meanwhile.

    With SQLite, others cannot commit meanwhile, unless the database is in WAL mode.

    :raises DatabaseUnavailableError: the database could not be read, for a reason of its own
    """
    what = f"Database {engine.url.database!r} could not be read to the end"
    with translated_errors(what, "Nothing was proved; run the verification again."), engine.connect() as conn:
        if conn.dialect.name == "sqlite":
            # Its driver begins no transaction for statements that only read.
            conn = _by_hand(conn)
            conn.exec_driver_sql("BEGIN")
            try:
                yield conn
            finally:
                _roll_back(conn)
            return
        if conn.dialect.name in ("postgresql", "mysql", "mariadb"):  # elsewhere it would lock what it reads
            conn.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        with conn.begin():
            yield conn


def _once(engine: Engine, work: Callable[[Connection], T]) -> T:
    with transaction(engine) as conn:
        return work(conn)


def _rolled_back_by(error: DBAPIError) -> DBAPIError | None:
    """The deadlock or serialization failure behind an error: that surely left nothing of the transaction."""
    if error.connection_invalidated:
        return None
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, DBAPIError) and (
            sqlstate(found) in ROLLED_BACK_STATES or mysql_number(found) == MYSQL_DEADLOCK
        ):
            return found
        # MySQL drops savepoints with the transaction: the error of rolling back to one then hides the deadlock.
        found = found.__context__
    return None


def _pause(attempt: int) -> None:
    """Let the other writer finish: about 30 ms after the first attempt, a second after the last but one.

    Never the same twice, or two transactions would meet in the same place again.
    """
    sleep(_FIRST_PAUSE_SECONDS * 3 ** (attempt - 1) * random.uniform(0.5, 1.0))  # noqa: S311 - no secret


@contextmanager
def _immediate(conn: Connection) -> Iterator[Connection]:
    """A transaction of SQLite that takes the write lock at once.

    Its driver begins a transaction at the first write only, so that two processes could read the same position and then
    both write.
    """
    conn = _by_hand(conn)
    try:
        conn.exec_driver_sql("BEGIN IMMEDIATE")
        try:
            yield conn
            conn.exec_driver_sql("COMMIT")
        except BaseException:
            _roll_back(conn)
            raise
    except OperationalError as error:
        # Not at BEGIN alone: who reads keeps a writer from COMMIT, and from writing more than its cache holds.
        if "locked" in database_message(error):
            raise DatabaseBusyError(
                f"The SQLite database {conn.engine.url.database!r} is locked by another program; SQLite has one writer at "
                "a time, and none while somebody reads"
            ) from error
        raise


def _by_hand(conn: Connection) -> Connection:
    """SQLite without the transactions that its driver would open around the explicit one."""
    conn = conn.execution_options(isolation_level="AUTOCOMMIT")
    # Another group's commit may write millions of rows first.
    conn.exec_driver_sql(f"PRAGMA busy_timeout = {_SQLITE_PATIENCE_MS}")
    return conn


def _roll_back(conn: Connection) -> None:
    # A full disk, among others, makes SQLite roll back by itself; the error of a second time would hide that one.
    if conn.connection.dbapi_connection.in_transaction:  # type: ignore[union-attr]
        conn.exec_driver_sql("ROLLBACK")


def now(engine: Engine) -> datetime:
    """The database's time, outside of a transaction."""
    with engine.connect() as conn:
        return database_now(conn)


def database_now(conn: Connection) -> datetime:
    """The database's own clock: clocks of workers decide nothing.

    :raises ConfigurationError: the database's dialect is not one whose statement for UTC is known, and its time has no zone
    """
    statements = {
        "postgresql": "SELECT clock_timestamp()",
        "sqlite": "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')",
        "mysql": "SELECT utc_timestamp(6)",
        "mariadb": "SELECT utc_timestamp(6)",  # SQLAlchemy gives it a dialect of its own
        "mssql": "SELECT sysutcdatetime()",
    }
    statement = statements.get(conn.dialect.name)
    value = conn.exec_driver_sql(statement).scalar_one() if statement else conn.scalar(sa.func.current_timestamp())
    now = datetime.fromisoformat(value) if isinstance(value, str) else value
    if now.tzinfo is not None:
        return now.astimezone(UTC)
    if statement is None:
        # It may be local time: taken for UTC, an instant such as a `start` by duration would be wrong by hours.
        raise ConfigurationError(
            f"Databases of dialect {conn.dialect.name!r} report their time without a zone, so that it cannot be converted to "
            "UTC; use PostgreSQL, MySQL, MariaDB, SQL Server or SQLite"
        )
    return now.replace(tzinfo=UTC)
