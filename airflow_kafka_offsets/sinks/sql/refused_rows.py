"""Rows that the database refuses: classify the errors, and write all other rows.

Errors with other causes than a row's own values (a broken connection, a missing privilege, another row with the same
key, a missing partition) do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from airflow_kafka_offsets.database import mysql
from airflow_kafka_offsets.database.errors import refusal, sqlstate
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.staging.rows import RowChunk, StagedRows

# Data exceptions; NOT NULL; CHECK; a row too large for its index; what a trigger raises, in PL/pgSQL and others.
_VALUE_STATES = ("22", "23502", "23514", "54000", "54001", "P0", "38")

# What was sent is no COPY: no fault of a value.
_BAD_COPY = "22P04"

_CHECK_VIOLATION = "23514"

_SQLITE_ERRORS = (
    *("SQLITE_CONSTRAINT_CHECK", "SQLITE_CONSTRAINT_NOTNULL", "SQLITE_CONSTRAINT_DATATYPE"),
    *("SQLITE_CONSTRAINT_TRIGGER", "SQLITE_TOOBIG"),
)


# Of rows that are written by statements of any size: the most statements, unless rows are very large. Each is a
# subtransaction; of more than 64, Postgres would look up the state of each row in a file.
_CHUNKS = 32

_CHUNK_ROWS = 50_000


class RowRefusedError(Exception):
    """The database refuses one of several rows.

    :param reason: the end of a message that names the record
    :param row: the index of the row among those that were written; None where the database does not say which
    :param has_bad_value: whether the row's own values are the reason
    """

    def __init__(self, reason: str, row: int | None, has_bad_value: bool) -> None:
        super().__init__(reason)
        self.row = row
        self.has_bad_value = has_bad_value


def is_of_row(error: DBAPIError) -> bool:
    """Return whether the database refuses a row, for its values or for another reason, and not the statement."""
    number = mysql.error_number(error.orig)
    is_of_value = mysql.is_value_number(number) if number is not None else _is_value_state(sqlstate(error) or "")
    return isinstance(error, (DataError, IntegrityError)) or is_of_value


def refused_row(
    error: DBAPIError, table: sa.Table, row: int | None = None, driver_error: BaseException | None = None
) -> RowRefusedError:
    """Return the error of the database as that of a row.

    :param row: its index among the rows that were written; None where the database does not say
    :param driver_error: the driver's, with its details; None is that of the error
    """
    detailed = driver_error or error.orig
    if detailed is not None and mysql.error_number(detailed) is not None:
        detailed = mysql.without_row(detailed)
    reason = f"the database refuses its row: {refusal(detailed or error, table)}"
    return RowRefusedError(reason, row, _is_of_value(error, getattr(detailed, "diag", None)))


def refused_statement(error: BaseException, table: sa.Table) -> TargetError:
    """Return the error of the database for a table, for example one that was just altered."""
    return TargetError(f"Nothing was written into {table.fullname!r}: {refusal(error, table)}")


def _is_of_value(error: DBAPIError, named: Any) -> bool:
    """Return whether the database refuses a row for one of its own values: its type, length or range, or a check."""
    number = mysql.error_number(error.orig)
    if number is not None:
        return mysql.is_value_number(number)
    state = sqlstate(error)
    if state is None:
        name = getattr(error.orig, "sqlite_errorname", None)
        return name in _SQLITE_ERRORS if name is not None else isinstance(error, DataError)
    if state == _CHECK_VIOLATION:
        # A partition that the table lacks has the same state, and names the table without a constraint.
        return bool(named.constraint_name) or not named.table_name
    return _is_value_state(state)


def _is_value_state(state: str) -> bool:
    return state.startswith(_VALUE_STATES) and state != _BAD_COPY


def write_rows(conn: Connection, columns: pa.Schema, rows: StagedRows, write: Callable[[pa.Table], int]) -> int:
    """Write all rows in some tens of statements, so that one refused row does not cause all others to be written again.

    :param write: writes some of them, and returns how many the database reports; raises RowRefusedError where one is
        refused
    :return: how many rows the database reports
    :raises RecordError: as `write_chunk`
    """

    def write_slice(chunk: RowChunk, first: int, end: int) -> int:
        return write(chunk.rows.slice(first, end - first))

    chunks = rows.chunks(columns, max(len(rows) // _CHUNKS, _CHUNK_ROWS))
    return sum(write_chunk(conn, chunk, partial(write_slice, chunk)) for chunk in chunks)


def write_chunk(conn: Connection, chunk: RowChunk, write: Callable[[int, int], int]) -> int:
    """Write the rows of a chunk, without those that the database refuses for their values.

    :param write: see `write_around`
    :return: how many rows the database reports
    :raises RecordError: a row is refused for another reason, or the batch allows no dead letters
    """

    def refuse(row: int, refused: RowRefusedError) -> None:
        if not refused.has_bad_value:
            raise chunk.error(row, str(refused)) from None
        chunk.refuse(row, str(refused))

    return write_around(conn, 0, chunk.rows.num_rows, write, refuse)


def write_around(
    conn: Connection,
    first: int,
    end: int,
    write: Callable[[int, int], int],
    refuse: Callable[[int, RowRefusedError], None],
) -> int:
    """Write rows in their order, around those that the database refuses.

    If the database does not say which of many rows it refuses, halves are tried, in order: a row may be refused because
    of an earlier one.

    :param first: the number of the first row
    :param write: writes the rows whose numbers are in [first, end), and returns how many the database reports; raises
        RowRefusedError where one is refused
    :param refuse: called with the number of each row that is refused; may raise
    """
    written, pending = 0, [(first, end)]
    while pending:
        first, end = pending.pop()
        if first == end:
            continue
        try:
            with savepoint(conn):
                written += write(first, end)
            continue
        except RowRefusedError as error:
            refused = error
        # Outside of the handler: an error that follows must not have the database's, which quotes the row, in its
        # context.
        if refused.row is None and end - first > 1:
            middle = (first + end) // 2
            pending += [(middle, end), (first, middle)]
            continue
        row = first if refused.row is None else first + refused.row
        # Halves: of the rows that follow, each may be refused, and what is sent after one is sent in vain.
        middle = (row + 1 + end) // 2
        pending += [(middle, end), (row + 1, middle), (first, row)]
        refuse(row, refused)
    return written


@contextmanager
def savepoint(conn: Connection) -> Iterator[None]:
    """Roll back the writes of the block if it raises."""
    nested = conn.begin_nested()
    try:
        yield
    except (DBAPIError, RowRefusedError):
        # A database may have ended the whole transaction, as SQLite does when its disk is full: then there is no
        # savepoint to return to. The error of the block is the one to raise; the transaction is rolled back in either
        # case.
        with suppress(DBAPIError):
            nested.rollback()
        raise
    nested.commit()
