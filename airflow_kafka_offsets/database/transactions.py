"""Transactions, results of any size, and the clock of the database.

`transact` decides what happens after a deadlock, and when a connection breaks before COMMIT is answered.
"""

from __future__ import annotations

import logging
import pickle
import random
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from time import sleep
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from airflow_kafka_offsets.database.errors import database_message, rolled_back_by, translated_errors
from airflow_kafka_offsets.database.mysql import is_mysql
from airflow_kafka_offsets.exceptions import CommitUnknownError, ConfigurationError, DatabaseBusyError

log = logging.getLogger(__name__)

T = TypeVar("T")

_SQLITE_PATIENCE_MS = 30_000

_ROWS_AT_ONCE = 5_000

_ATTEMPTS = 5

_FIRST_PAUSE_SECONDS = 0.04


def transact(
    engine: Engine, work: Callable[[Connection], T], *, outcome: Callable[[Connection], T | None] | None = None
) -> T:
    """Run a transaction; repeat it after a deadlock or a serialization failure; look it up where the answer to COMMIT
    was lost.

    A transaction is repeated only where the database reports that it kept nothing of it, at a statement or at COMMIT. A
    broken connection is no such report, since COMMIT may have been executed: `outcome` finds out.

    :param work: writes over the given connection; called once for each attempt, in a separate transaction
    :param outcome: called after the connection broke, in a separate transaction. It waits for the locks of the broken
        transaction, which the server may still be executing, and returns what `work` returned if that was committed,
        else None. Without it, the error of the broken connection is raised
    :return: what `work` returned in the attempt that was committed
    :raises DatabaseBusyError: other writers interfered with every attempt, or hold SQLite's lock for half a minute;
        nothing was written
    :raises DBAPIError: any other error; nothing was written, unless the connection broke and there is no `outcome`
    :raises CommitUnknownError: the connection broke, and `outcome` failed
    """
    attempt = 1
    while True:
        try:
            with transaction(engine) as conn:
                return work(conn)
        except DBAPIError as error:
            if error.connection_invalidated and outcome is not None:
                broken = error
                break
            cause = rolled_back_by(error)
            if cause is None:
                raise
            if attempt == _ATTEMPTS:
                raise DatabaseBusyError(
                    f"Other writers of database {engine.url.database!r} conflicted with this transaction {_ATTEMPTS} "
                    f"times in a row, and each time the database rolled it back: {database_message(cause)}. Nothing "
                    "was written; run the task again, and if that does not help, find out who writes to the same rows"
                ) from error
            log.warning(
                "The database rolled the transaction back because of another writer: %s. Attempt %d of %d follows",
                database_message(cause),
                attempt + 1,
                _ATTEMPTS,
            )
        # Outside of the handler: an error of the next attempt must not have this one in its context.
        _pause(attempt)
        attempt += 1
    try:
        committed = transact(engine, outcome)
    except (DBAPIError, DatabaseBusyError) as unreachable:
        reason = database_message(unreachable) if isinstance(unreachable, DBAPIError) else str(unreachable)
        raise CommitUnknownError(
            f"The connection to database {engine.url.database!r} broke ({database_message(broken)}), and the database "
            f"could not be asked whether the transaction was committed: {reason}"
        ) from broken
    if committed is None:
        raise broken
    return committed


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """Open one transaction, and commit it at the end of the block, or roll it back where the block raises.

    :raises DatabaseBusyError: another program held SQLite's lock for half a minute
    """
    with engine.connect() as conn:
        if conn.dialect.name != "sqlite":
            with conn.begin():
                yield conn
            return
        try:
            # At once with the write lock. The driver begins a transaction at the first write: two processes could read
            # the same position, and then both write.
            with _explicit(conn, "BEGIN IMMEDIATE") as locked:
                yield locked
        except OperationalError as error:
            # Not only at BEGIN: a reader blocks COMMIT, and writes that exceed the cache.
            if "locked" in database_message(error):
                raise DatabaseBusyError(
                    f"The SQLite database {conn.engine.url.database!r} is locked by another program; SQLite takes one "
                    "writer at a time, and none while another program reads"
                ) from error
            raise


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that reads, and sees nothing that other transactions commit meanwhile.

    With SQLite, other transactions cannot commit meanwhile, unless the database is in WAL mode.

    :raises DatabaseUnavailableError: the database failed for a reason that is not in the statements
    """
    what = f"Database {engine.url.database!r} could not be read to the end"
    with translated_errors(what, "Nothing was proved; run the verification again."), engine.connect() as conn:
        if conn.dialect.name == "sqlite":
            # The driver begins no transaction for statements that only read.
            with _explicit(conn, "BEGIN") as reading:
                yield reading
            return
        # In other databases it would lock the rows it reads.
        if conn.dialect.name in ("postgresql", "mysql", "mariadb"):
            conn.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        with conn.begin():
            yield conn


def _pause(attempt: int) -> None:
    """Let the other writer finish: wait about 30 ms after the first attempt, a second before the last.

    The time is random, so that two transactions do not meet at the same statement again.
    """
    sleep(_FIRST_PAUSE_SECONDS * 3 ** (attempt - 1) * random.uniform(0.5, 1.0))  # noqa: S311 - no secret


@contextmanager
def _explicit(conn: Connection, begin: str) -> Iterator[Connection]:
    """Open a transaction of SQLite that its driver neither begins nor ends."""
    conn = conn.execution_options(isolation_level="AUTOCOMMIT")
    # The commit of another group may write millions of rows.
    conn.exec_driver_sql(f"PRAGMA busy_timeout = {_SQLITE_PATIENCE_MS}")
    conn.exec_driver_sql(begin)
    try:
        yield conn
        conn.exec_driver_sql("COMMIT")
    except BaseException:
        # SQLite itself rolls back after some errors (a full disk); the error of a second ROLLBACK would hide that one.
        # The pool rolls back what was closed. By the driver: code of the user may have left SQLAlchemy's transaction in
        # any state.
        if not conn.closed and not conn.invalidated and conn.connection.dbapi_connection.in_transaction:  # type: ignore[union-attr]
            conn.connection.dbapi_connection.rollback()  # type: ignore[union-attr]
        raise


def stream(conn: Connection, query: sa.Select[Any]) -> Generator[Any]:
    """Return the rows of a query as they are read; several results may be open side by side."""
    if is_mysql(conn.dialect):
        yield from _spooled(conn, query)
        return
    # Other drivers have one result at a time, unless the client holds all of its rows.
    options = {"yield_per": _ROWS_AT_ONCE} if conn.dialect.name in ("postgresql", "sqlite") else {}
    with conn.execute(query, execution_options=options) as result:
        yield from result


def _spooled(conn: Connection, query: sa.Select[Any]) -> Iterator[Any]:
    """Return the rows of a query of MySQL: more than are held at once are in a temporary file, which has no name.

    A connection has one result at a time that the client does not hold, and the next statement would discard the rest
    of it.
    """
    with tempfile.TemporaryFile() as spool:
        with conn.execute(query, execution_options={"yield_per": _ROWS_AT_ONCE}) as result:
            parts = result.partitions()
            first = next(parts, ())
            for part in parts:
                pickle.dump(part, spool)
        end = spool.tell()
        yield from first
        spool.seek(0)
        while spool.tell() < end:
            yield from pickle.load(spool)  # noqa: S301 - nobody else can write it


def now(engine: Engine) -> datetime:
    """Return the database's time, outside of a transaction."""
    with engine.connect() as conn:
        return database_now(conn)


def database_now(conn: Connection) -> datetime:
    """Return the time of the database's clock in UTC: the clocks of workers decide nothing.

    :raises ConfigurationError: no statement for UTC is known for the dialect, and its time has no zone
    """
    statements = {
        "postgresql": "SELECT clock_timestamp()",
        "sqlite": "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')",
        "mysql": "SELECT utc_timestamp(6)",
        "mariadb": "SELECT utc_timestamp(6)",  # SQLAlchemy gives it a separate dialect
        "mssql": "SELECT sysutcdatetime()",
    }
    statement = statements.get(conn.dialect.name)
    value = conn.exec_driver_sql(statement).scalar_one() if statement else conn.scalar(sa.func.current_timestamp())
    now = datetime.fromisoformat(value) if isinstance(value, str) else value
    if now.tzinfo is not None:
        return now.astimezone(UTC)
    if statement is None:
        # It may be local time: a `start` by duration would be wrong by hours.
        raise ConfigurationError(
            f"Databases of dialect {conn.dialect.name!r} report their time without a zone, and it cannot be converted "
            "to UTC; use PostgreSQL, MySQL, MariaDB, SQL Server or SQLite"
        )
    return now.replace(tzinfo=UTC)
