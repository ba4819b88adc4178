"""Writes rows into Postgres by COPY, within the transaction of the commit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import repeat

import pgpq
import psycopg
import pyarrow as pa
import pyarrow.csv
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from airflow_kafka_offsets.database.errors import is_outage
from airflow_kafka_offsets.database.messages import refusal
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.sinks.sql.column_types import without_placeholders
from airflow_kafka_offsets.staging.rows import StagedRows

# Types whose binary form is what pgpq makes of the Arrow type that `column_types.wire_type` chose.
_TEXTS = (sa.Text, sa.VARCHAR, sa.CHAR)
_BINARY = (sa.Boolean, sa.Integer, sa.Float, sa.Numeric, *_TEXTS, sa.Date, sa.DateTime, sa.LargeBinary)


def copy_rows(conn: Connection, table: sa.Table, columns: pa.Schema, rows: StagedRows) -> int:
    """COPY all rows into a table.

    Binary where every column has a type with a known binary form, else CSV, which the server parses for any type.

    :return: the number that the server reports
    :raises RecordError: the database refuses a row; names the record
    :raises TargetError: it refuses the statement: the table is not what it was a moment ago, or has security for its rows
    """
    preparer = without_placeholders(conn.dialect).identifier_preparer
    names = ", ".join(preparer.quote(column.name) for column in columns)
    binary = all(isinstance(table.columns[column.name].type, _BINARY) for column in columns)
    statement = f"COPY {preparer.format_table(table)} ({names}) FROM STDIN (FORMAT {'binary' if binary else 'csv'})"
    batches = rows.batches(columns)
    chunks = _binary(batches, columns) if binary else _csv(batches)
    cursor = conn.connection.cursor()
    try:
        with cursor.copy(statement) as copy:
            for chunk in chunks:
                copy.write(chunk)
        return int(cursor.rowcount)
    except psycopg.Error as error:
        # As SQLAlchemy would have raised it, so that the commit handles one kind of error.
        lost, plain = cursor.connection.closed, _without_details(error)
        raised = DBAPIError.instance(
            statement, None, plain, psycopg.Error, connection_invalidated=lost, dialect=conn.dialect
        )
        if not isinstance(raised, DBAPIError) or is_outage(raised):
            raise raised from None
        # Not the details, which quote the row. And not as the cause either, which would be logged with them.
        reason = refusal(error, table)
        line = _failed_line(error.diag.context or "", table.name)
        if line is None:  # found before the first row, as missing columns are, or after the last, as foreign keys
            raise TargetError(f"Nothing was written into {table.fullname!r}: {reason}") from None
        row = line - 1 if binary else _row_of(line, rows.batches(columns))
        raise rows.rejected(row, f"the database refuses its row: {reason}") from None
    finally:
        cursor.close()


def _failed_line(context: str, table: str) -> int | None:
    """Return the line that COPY failed at; None where the context names none.

    Postgres writes the context in the language of `lc_messages`, which only a superuser may change: "COPY orders, line 3" is
    "COPY orders, Zeile 3" or "ordersのCOPY、行 3" elsewhere. It begins with the table's name, and the first number is the line's.

    :param table: its name without the schema
    """
    found = re.search(rf"^(?:COPY )?{re.escape(table)}(?:[,，、]|\s*の|\s*복사)[^\d\n]*(\d+)", context, re.MULTILINE)
    return int(found.group(1)) if found is not None else None


def _without_details(error: psycopg.Error) -> psycopg.Error:
    """Return the error with its type, message and SQLSTATE, and without its details, which quote the row."""
    message = error.diag.message_primary
    if message is None:  # not from the server: the connection broke
        return error
    plain = type(error)(message)
    plain.sqlstate = error.sqlstate
    return plain


def _binary(batches: Iterable[pa.RecordBatch], columns: pa.Schema) -> Iterator[bytes]:
    encoder = pgpq.ArrowToPostgresBinaryEncoder(columns)
    yield encoder.write_header()
    for batch in batches:
        yield encoder.write_batch(batch)
    yield encoder.finish()


def _csv(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    options = pyarrow.csv.WriteOptions(include_header=False)
    for batch in batches:
        plain = [_hexadecimal(column) if pa.types.is_binary(column.type) else column for column in batch.columns]
        sink = pa.BufferOutputStream()
        pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(plain, names=batch.schema.names), sink, options)
        yield sink.getvalue().to_pybytes()


def _row_of(line: int, batches: Iterable[pa.RecordBatch]) -> int:
    """Return the row of a line of the CSV, from 0.

    Postgres counts line breaks within values too. In the first row it counts carriage returns: only the end of that row says how
    lines end.
    """
    row = end = 0
    for batch in batches:
        texts = [column.to_pylist() for column in batch.columns if pa.types.is_string(column.type)]
        for values in zip(*texts, strict=True) if texts else repeat((), batch.num_rows):
            end += 1 + sum(value.count("\n" if row else "\r") for value in values if value)
            if line <= end:
                return row
            row += 1
    return row


def _hexadecimal(values: pa.Array) -> pa.Array:
    """Return bytes as Postgres reads them in text: unchanged, their backslashes would be escapes."""
    return pa.array([None if value is None else f"\\x{value.hex()}" for value in values.to_pylist()], pa.string())
