"""Writes rows by INSERT: into SQLite, and into every database for which this package has no faster way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError

from airflow_kafka_offsets.database.messages import refusal
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.sinks.sql.column_types import EXACT_DIGITS
from airflow_kafka_offsets.staging.rows import StagedRows

Insert = Callable[[Sequence[Any]], int]
"""Inserts rows, and returns how many the database reports."""


def insert_rows(conn: Connection, table: sa.Table, columns: pa.Schema, rows: StagedRows) -> int:
    """INSERT all rows, a record batch at a time, as the table's own types; text for other types is read by the database.

    :return: the number that the database reports; that of all rows if its driver passes on none
    :raises RecordError: the database refuses a row; names the record
    :raises TargetError: it refuses the statement: the table is not what it was a moment ago, for example
    """
    statement = _target(table, columns).insert()

    def insert(values: Sequence[Any]) -> int:
        with _row_counts(conn) as counts:
            conn.execute(statement, values)
        return sum(counts) if min(counts, default=-1) >= 0 else len(values)

    sent = inserted = 0
    for batch in rows.batches(columns):
        inserted += _insert(conn, table, rows, sent, insert, batch.to_pylist())
        sent += batch.num_rows
    return inserted


def insert_rows_sqlite(conn: Connection, table: sa.Table, columns: pa.Schema, rows: StagedRows) -> int:
    """INSERT all rows into SQLite, whose driver takes tuples of plain values several times faster.

    Dates and times are stored as SQLAlchemy stores them. Decimals go as text, of which a column of a number's type makes a number.

    :return: the number that the database reports
    :raises RecordError: also for a decimal that such a column would round
    """
    preparer = conn.dialect.identifier_preparer
    names = ", ".join(preparer.quote(column.name) for column in columns)
    holders = ", ".join("?" for _ in columns)
    statement = f"INSERT INTO {preparer.format_table(table)} ({names}) VALUES ({holders})"  # noqa: S608 - quoted by the dialect

    def insert(values: Sequence[Any]) -> int:
        return conn.exec_driver_sql(statement, values).rowcount

    sent = inserted = 0
    for batch in rows.batches(columns):
        plain = [_plain(column) for column in batch.columns]
        for column, texts in zip(columns, plain, strict=True):
            if pa.types.is_decimal(column.type) and isinstance(table.columns[column.name].type, sa.Numeric):
                _refuse_rounded(rows, sent, column, texts)
        inserted += _insert(conn, table, rows, sent, insert, list(zip(*plain, strict=True)))
        sent += batch.num_rows
    return inserted


def _insert(
    conn: Connection, table: sa.Table, rows: StagedRows, sent: int, insert: Insert, values: Sequence[Any]
) -> int:
    """Insert the rows of a record batch, or raise with the row that is refused.

    :param sent: how many rows came before
    """
    try:
        with _savepoint(conn):
            return insert(values)
    except (DataError, IntegrityError, ProgrammingError) as error:
        if not isinstance(error, ProgrammingError):
            refused = first_refused(conn, lambda first, end: insert(values[first:end]), 0, len(values))
            if refused is not None:
                raise rows.rejected(
                    sent + refused[0], f"the database refuses its row: {refusal(error, table)}"
                ) from None
        raise TargetError(f"Nothing was written into {table.fullname!r}: {refusal(error, table)}") from None


@contextmanager
def _row_counts(conn: Connection) -> Iterator[list[int]]:
    """Collect the number of rows that the driver reports for each statement of the block.

    SQLAlchemy makes several statements of many rows for some drivers, and its result has the number of the last one.
    """
    counts: list[int] = []

    def count(_: Connection, cursor: Any, *__: object) -> None:
        counts.append(cursor.rowcount)

    sa.event.listen(conn, "after_cursor_execute", count)
    try:
        yield counts
    finally:
        sa.event.remove(conn, "after_cursor_execute", count)


@contextmanager
def _savepoint(conn: Connection) -> Iterator[None]:
    nested = conn.begin_nested()
    try:
        yield
    except DBAPIError:
        # A database may have ended the whole transaction, as SQLite does when its disk is full: then there is no savepoint to
        # return to. The error of the insert is the one to raise; the transaction is rolled back in either case.
        with suppress(DBAPIError):
            nested.rollback()
        raise
    nested.commit()


def _target(table: sa.Table, columns: pa.Schema) -> sa.TableClause:
    """Return the table with the columns to write.

    A column that takes text without having a text type gets no type: SQLAlchemy would encode JSON again, and make an array of
    the letters of a text.
    """

    def typed(column: pa.Field) -> sa.ColumnClause[Any]:
        kind = table.columns[column.name].type
        is_read = pa.types.is_string(column.type) and not isinstance(kind, sa.String)
        return sa.column(column.name, None if is_read else kind)

    return sa.table(table.name, *map(typed, columns), schema=table.schema)


def first_refused(
    conn: Connection, write: Callable[[int, int], object], first: int, end: int
) -> tuple[int, DBAPIError] | None:
    """Return the number of the first row that is refused, and the error; None if none is.

    Databases do not say which of many rows it was: halves are tried, in a transaction that is rolled back anyway.

    :param write: writes the rows whose numbers are in [first, end)
    """
    middle = end
    while first < end:
        try:
            with _savepoint(conn):
                write(first, middle)
        except (DataError, IntegrityError) as error:
            if middle - first == 1:
                return first, error
            end = middle
        else:
            # What is not refused stays: a later row may be refused because of it.
            first = middle
        middle = (first + end + 1) // 2
    return None


def _plain(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us")).cast(pa.string())
    if pa.types.is_date(column.type):
        column = column.cast(pa.string())
    if pa.types.is_decimal(column.type):
        # Arrow writes 0.00000001 as 1E-8.
        texts: list[str | None] = column.cast(pa.string()).to_pylist()
        return [f"{Decimal(text):f}" if text is not None and "E" in text else text for text in texts]
    values: list[Any] = column.to_pylist()
    return values


def _refuse_rounded(rows: StagedRows, sent: int, column: pa.Field, texts: Sequence[str | None]) -> None:
    for index, text in enumerate(texts):
        if text is None or len(text.replace(".", "").strip("-0")) <= EXACT_DIGITS:
            continue
        # SQLite has whole numbers of 64 bits, and for all others doubles.
        if "." in text or not -(2**63) <= int(text) < 2**63:
            raise rows.rejected(
                sent + index,
                f"column {column.name!r}: a decimal of more than {EXACT_DIGITS} digits would be rounded by SQLite, which keeps it "
                "in a column of type TEXT only",
            )
