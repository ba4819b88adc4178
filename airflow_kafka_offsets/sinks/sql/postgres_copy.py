"""Write rows into Postgres by COPY, within the transaction of the commit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import NamedTuple

import pgpq
import psycopg
import pyarrow as pa
import pyarrow.csv
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from airflow_kafka_offsets.database.errors import is_outage
from airflow_kafka_offsets.database.tables import without_placeholders
from airflow_kafka_offsets.sinks.sql.refused_rows import refused_row, refused_statement, write_rows
from airflow_kafka_offsets.staging.rows import StagedRows

# Types whose binary form is what pgpq makes of the Arrow type that `column_types.wire_type` chose.
_TEXTS = (sa.Text, sa.VARCHAR, sa.CHAR)
_BINARY = (sa.Boolean, sa.Integer, sa.Float, sa.Numeric, *_TEXTS, sa.Date, sa.DateTime, sa.LargeBinary)

_TOO_LARGE = "54000"

# What the input functions of some types say of a text: of tsquery a syntax error, of regclass an undefined table, of
# PostGIS's geometry an internal error.
_OF_INPUT = ("42", "3F", "0A", "XX000")


def copy_rows(conn: Connection, table: sa.Table, columns: pa.Schema, rows: StagedRows) -> int:
    """COPY all rows into a table: see `write_rows`.

    Binary where every column has a type with a known binary form, else CSV, which the server parses for any type.

    :return: the number that the server reports
    :raises RecordError: the database refuses a row, which is not to be a dead letter; names the record
    :raises TargetError: the database refuses the statement: the table was altered, for example, or has row security
    """
    preparer = without_placeholders(conn.dialect).identifier_preparer
    names = ", ".join(preparer.quote(column.name) for column in columns)
    binary = all(isinstance(table.columns[column.name].type, _BINARY) for column in columns)
    form = "binary" if binary else "csv"
    statement = f"COPY {preparer.format_table(table)} ({names}) FROM STDIN (FORMAT {form})"
    return write_rows(conn, columns, rows, _Copy(conn, table, statement, binary).write)


class _Copy(NamedTuple):
    """Copies rows by one statement."""

    conn: Connection
    table: sa.Table
    statement: str
    binary: bool

    def write(self, rows: pa.Table) -> int:
        """Copy rows, and return the number that the server reports."""
        cursor = self.conn.connection.cursor()
        try:
            with cursor.copy(self.statement) as copy:
                for data in _binary(rows) if self.binary else _csv(rows):
                    copy.write(data)
            return int(cursor.rowcount)
        except psycopg.Error as error:
            raise self._raised(error, cursor.connection.closed, rows) from None
        finally:
            cursor.close()

    def _raised(self, error: psycopg.Error, lost: bool, rows: pa.Table) -> Exception:
        """Return the error of a statement: of a row, of the table, or an outage."""
        # As SQLAlchemy would have raised it, so that the commit handles one kind of error.
        plain = _without_details(error)
        raised = DBAPIError.instance(
            self.statement, None, plain, psycopg.Error, connection_invalidated=lost, dialect=self.conn.dialect
        )
        if not isinstance(raised, DBAPIError) or is_outage(raised):
            return raised
        place = _failed_place(error.diag.context or "", self.table.name)
        if place is None:
            # Found before the first row, as missing columns are, or after the last, as by triggers and foreign keys.
            refused = refused_row(raised, self.table, None, error)
            if refused.has_bad_value:
                return refused
            return refused_statement(error, self.table)
        if error.sqlstate == _TOO_LARGE:
            # COPY stores rows together, and names the last one, if one is too large for a page.
            return refused_row(raised, self.table, None, error)
        row = place.line - 1 if self.binary else _row_of(place.line, rows.to_batches())
        refused = refused_row(raised, self.table, row, error)
        refused.has_bad_value |= place.is_value and str(error.sqlstate).startswith(_OF_INPUT)
        return refused


class _Place(NamedTuple):
    """Where COPY failed.

    :param is_value: whether it was at the value of a column, and not at the whole row
    """

    line: int
    is_value: bool


def _failed_place(context: str, table: str) -> _Place | None:
    """Return where COPY failed; None where the context does not say.

    Postgres writes the context in the language of `lc_messages`, which only a superuser may change: "COPY orders, line
    3" is "COPY orders, Zeile 3" or "ordersのCOPY、行 3" in others. It begins with the table's name, the first number is
    the line's, and a column follows a comma.

    :param table: its name without the schema
    """
    begin = rf"^(?:COPY )?{re.escape(table)}(?:[,，、]|\s*の|\s*복사)"
    found = re.search(rf"{begin}[^\d\n]*(\d+)([^\n:：\"«]*)", context, re.MULTILINE)
    return None if found is None else _Place(int(found[1]), re.search("[,，、]", found[2]) is not None)


def _without_details(error: psycopg.Error) -> psycopg.Error:
    """Return the error with its type, message and SQLSTATE, and without its details, which quote the row."""
    message = error.diag.message_primary
    if message is None:  # not from the server: the connection broke
        return error
    plain = type(error)(message)
    plain.sqlstate = error.sqlstate
    return plain


def _binary(rows: pa.Table) -> Iterator[bytes]:
    encoder = pgpq.ArrowToPostgresBinaryEncoder(rows.schema)
    yield encoder.write_header()
    for batch in rows.to_batches():
        yield encoder.write_batch(batch)
    yield encoder.finish()


def _csv(rows: pa.Table) -> Iterator[bytes]:
    options = pyarrow.csv.WriteOptions(include_header=False)
    for batch in rows.to_batches():
        plain = [_hexadecimal(column) if pa.types.is_binary(column.type) else column for column in batch.columns]
        sink = pa.BufferOutputStream()
        pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(plain, names=batch.schema.names), sink, options)
        yield sink.getvalue().to_pybytes()


def _row_of(line: int, batches: Iterable[pa.RecordBatch]) -> int:
    """Return the row of a line of the CSV, from 0.

    Postgres counts line breaks within values too. In the first row it counts carriage returns: only the end of that row
    says how lines end.
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
