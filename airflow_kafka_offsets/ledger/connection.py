"""Transactions and the clock of the database that holds the state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from airflow_kafka_offsets.exceptions import DatabaseBusyError

_SQLITE_PATIENCE_MS = 30_000


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """One transaction: committed at the end of the block, rolled back where it raises.

    :raises DatabaseBusyError: SQLite's write lock was not free within half a minute
    """
    with engine.connect() as conn:
        if conn.dialect.name == "sqlite":
            with _immediate(conn) as locked:
                yield locked
        else:
            with conn.begin():
                yield conn


def said(error: DBAPIError) -> str:
    """What the database said, in one line, without the statement and its values."""
    return str(error.orig).strip().split("\n", maxsplit=1)[0]


def sqlstate(error: DBAPIError) -> str | None:
    """The SQLSTATE of an error, where the driver hands it on (psycopg and psycopg2 do)."""
    return getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)


@contextmanager
def _immediate(conn: Connection) -> Iterator[Connection]:
    """A transaction of SQLite that takes the write lock at once.

    Its driver begins a transaction at the first write only, so that two processes could read the same position and then
    both write.
    """
    # The driver must not open transactions of its own around the explicit one.
    conn = conn.execution_options(isolation_level="AUTOCOMMIT")
    # Another group's commit may write millions of rows first.
    conn.exec_driver_sql(f"PRAGMA busy_timeout = {_SQLITE_PATIENCE_MS}")
    try:
        conn.exec_driver_sql("BEGIN IMMEDIATE")
    except OperationalError as error:
        if "locked" in said(error):
            raise DatabaseBusyError(
                f"The SQLite database {conn.engine.url.database!r} is locked by another writer; SQLite has one at a time"
            ) from error
        raise
    try:
        yield conn
    except BaseException:
        conn.exec_driver_sql("ROLLBACK")
        raise
    conn.exec_driver_sql("COMMIT")


def database_now(conn: Connection) -> datetime:
    """The database's own clock: clocks of workers decide nothing."""
    statements = {
        "postgresql": "SELECT clock_timestamp()",
        "sqlite": "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')",
        "mysql": "SELECT utc_timestamp(6)",
    }
    statement = statements.get(conn.dialect.name)
    value = conn.exec_driver_sql(statement).scalar_one() if statement else conn.scalar(sa.func.current_timestamp())
    now = datetime.fromisoformat(value) if isinstance(value, str) else value
    return now.astimezone(UTC) if now.tzinfo else now.replace(tzinfo=UTC)
