"""Write rows by INSERT: into SQLite, and into databases without a faster method in this package."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, ProgrammingError

from airflow_kafka_offsets.database.errors import is_outage
from airflow_kafka_offsets.sinks.sql.refused_rows import (
    RowRefusedError,
    is_of_row,
    refused_row,
    refused_statement,
    write_chunk,
)
from airflow_kafka_offsets.staging.rows import RowChunk, StagedRows

Insert = Callable[[Sequence[Any]], int]
"""Inserts rows, and returns how many the database reports."""


def insert_rows(conn: Connection, table: sa.Table, columns: pa.Schema, rows: StagedRows) -> int:
    """INSERT all rows, a record batch at a time, as the table's own types; text for other types is read by the
    database.

    :return: the number that the database reports; that of all rows if its driver reports none
    :raises RecordError: the database refuses a row, which is not to be a dead letter; names the record
    :raises TargetError: it refuses the statement: the table is not what it was a moment ago, for example
    """
    statement = _target(table, columns).insert()

    def insert(values: Sequence[Any]) -> int:
        with _row_counts(conn) as counts:
            conn.execute(statement, values)
        return sum(counts) if min(counts, default=-1) >= 0 else len(values)

    return sum(_insert(conn, table, chunk, insert, chunk.rows.to_pylist()) for chunk in rows.chunks(columns))


def insert_rows_sqlite(conn: Connection, table: sa.Table, columns: pa.Schema, rows: StagedRows) -> int:
    """INSERT all rows into SQLite, whose driver takes tuples of plain values several times faster.

    Dates and times are stored as SQLAlchemy stores them. Decimals go as text, of which a column of a number's type
    makes a number.

    :return: the number that the database reports
    :raises RecordError: as `insert_rows`
    """
    preparer = conn.dialect.identifier_preparer
    names = ", ".join(preparer.quote(column.name) for column in columns)
    holders = ", ".join("?" for _ in columns)
    statement = f"INSERT INTO {preparer.format_table(table)} ({names}) VALUES ({holders})"  # noqa: S608 - quoted by the dialect

    def insert(values: Sequence[Any]) -> int:
        return conn.exec_driver_sql(statement, values).rowcount

    inserted = 0
    for chunk in rows.chunks(columns):
        values = list(zip(*map(_plain, chunk.rows.columns), strict=True))
        inserted += _insert(conn, table, chunk, insert, values)
    return inserted


def _insert(conn: Connection, table: sa.Table, chunk: RowChunk, insert: Insert, values: Sequence[Any]) -> int:
    """Insert the rows of a chunk, but those that the database refuses for their values.

    :param values: of the rows, as the driver takes them
    """

    def write(first: int, end: int) -> int:
        try:
            return insert(values[first:end])
        except DBAPIError as error:
            if is_outage(error) or not is_of_row(error):
                raise
            raise refused_row(error, table) from None
        except ValueError as error:
            # A driver of Postgres refuses NUL in a text itself.
            raise RowRefusedError(f"the database's driver refuses its row: {error}", None, has_bad_value=True) from None

    try:
        return write_chunk(conn, chunk, write)
    except ProgrammingError as error:
        raise refused_statement(error, table) from None


@contextmanager
def _row_counts(conn: Connection) -> Iterator[list[int]]:
    """Collect the number of rows that the driver reports for each statement of the block.

    For some drivers, SQLAlchemy splits many rows into several statements, and its result has the number of the last
    one.
    """
    counts: list[int] = []

    def count(_: Connection, cursor: Any, *__: object) -> None:
        counts.append(cursor.rowcount)

    sa.event.listen(conn, "after_cursor_execute", count)
    try:
        yield counts
    finally:
        sa.event.remove(conn, "after_cursor_execute", count)


def _target(table: sa.Table, columns: pa.Schema) -> sa.TableClause:
    """Return the table with the columns to write.

    A column that takes text without having a text type gets no type: SQLAlchemy would encode JSON again, and make an
    array of the characters of a text.
    """

    def typed(column: pa.Field) -> sa.ColumnClause[Any]:
        kind = table.columns[column.name].type
        is_read = pa.types.is_string(column.type) and not isinstance(kind, sa.String)
        return sa.column(column.name, None if is_read else kind)

    return sa.table(table.name, *map(typed, columns), schema=table.schema)


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
