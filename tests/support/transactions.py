"""Errors of database drivers, and a table that transactions write to."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, OperationalError


class DriverError(Exception):
    """An error of a driver that hands on the SQLSTATE, as psycopg does."""

    def __init__(self, sqlstate: str, message: str = "deadlock detected") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class PgCodeError(Exception):
    """One of psycopg2."""

    pgcode = "40P01"


def failure(orig: Exception, *, connection_invalidated: bool = False) -> DBAPIError:
    return OperationalError("UPDATE output", None, orig, connection_invalidated=connection_invalidated)


def deadlock() -> DBAPIError:
    return failure(DriverError("40P01"))


class Output:
    """A table that transactions write to, and what they found and left there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.engine = sa.create_engine(f"sqlite:///{path}")
        self.attempts = 0
        with self.engine.begin() as conn:
            conn.exec_driver_sql("CREATE TABLE output (attempt INTEGER PRIMARY KEY, text TEXT)")

    def writing(self, *errors: Exception) -> Callable[[Connection], str]:
        """Work that writes a row and then ends in these errors, one an attempt, before it succeeds."""
        left = iter(errors)

        def work(conn: Connection) -> str:
            self.attempts += 1
            assert conn.exec_driver_sql("SELECT count(*) FROM output").scalar_one() == 0, "not a new transaction"
            conn.exec_driver_sql("INSERT INTO output VALUES (?, '')", (self.attempts,))
            if (error := next(left, None)) is not None:
                raise error
            return f"attempt {self.attempts}"

        return work

    def rows(self) -> list[int]:
        """What another program sees."""
        with closing(sqlite3.connect(self.path)) as conn:
            return [attempt for (attempt,) in conn.execute("SELECT attempt FROM output")]
