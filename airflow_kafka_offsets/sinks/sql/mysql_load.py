"""Write rows into MySQL and MariaDB: by LOAD DATA LOCAL where the server allows it, else by INSERT with many rows,
always in the transaction of the commit.

LOCAL implies IGNORE: the server changes values that do not fit, skips rows with an existing key, and warns. A chunk
with a warning is rolled back, and written by INSERT, which refuses these rows.

There is no file. The server asks for the name in the statement, and gets rows from memory; for any other name, it gets
nothing. The driver itself refuses such requests (`database.mysql`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pymysql
import sqlalchemy as sa
from pymysql.constants import CLIENT
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError

from airflow_kafka_offsets.database import mysql, pymysql_protocol
from airflow_kafka_offsets.database.errors import is_outage
from airflow_kafka_offsets.database.tables import without_placeholders
from airflow_kafka_offsets.sinks.sql.refused_rows import (
    RowRefusedError,
    is_of_row,
    refused_row,
    refused_statement,
    savepoint,
    write_rows,
)
from airflow_kafka_offsets.staging.rows import StagedRows

log = logging.getLogger(__name__)

_INSERT_ROWS = 1_000

# Of a statement without its rows.
_STATEMENT_BYTES = 64 << 10

# The server, the client's connection, or what is between them does not allow LOCAL.
_NOT_ALLOWED = (1148, 3948, 4166)

# Deprecated syntax, statements that are unsafe to replicate, warnings that a trigger raises: values are as they were
# sent.
_HARMLESS = (1287, 1592, 1642, 1681)


def load_rows(conn: Connection, table: sa.Table, columns: pa.Schema, rows: StagedRows) -> int:
    """Write all rows into a table: see `write_rows`. Each of its statements may be several here.

    :return: the number that the server reports
    :raises RecordError: the database refuses a row, which is not to be a dead letter; names the record
    :raises TargetError: the database refuses the statement: the table was altered, for example
    """
    driver: Any = conn.connection.dbapi_connection
    local_infile, packet = conn.exec_driver_sql("SELECT @@GLOBAL.local_infile, @@SESSION.max_allowed_packet").one()
    is_allowed = bool(local_infile) and bool(driver.client_flag & CLIENT.LOCAL_FILES)
    if not is_allowed:
        log.warning(
            "Rows are written by INSERT, at half the speed of LOAD DATA LOCAL, which the server does not allow: an "
            "administrator can SET GLOBAL local_infile = ON"
        )
    return write_rows(conn, columns, rows, _Load(conn, driver, table, columns, int(packet), is_allowed).write)


@dataclass(slots=True)
class _Load:
    """Writes rows into a table.

    :param packet: the most bytes of a statement
    :param is_allowed: whether LOAD DATA LOCAL is
    """

    conn: Connection
    driver: Any
    table: sa.Table
    columns: pa.Schema
    packet: int
    is_allowed: bool

    def write(self, rows: pa.Table) -> int:
        """Write rows, and return the number that the server reports.

        :raises RowRefusedError: a row is refused
        """
        if self.is_allowed:
            try:
                with savepoint(self.conn):
                    return self._load(rows)
            except RowRefusedError:
                # By INSERT, the server names the row and the reason: in halves down to as many as one statement takes.
                if rows.num_rows > _INSERT_ROWS:
                    raise
            except DBAPIError as error:
                if mysql.error_number(error.orig) in _NOT_ALLOWED:
                    self.is_allowed = False
                elif not is_of_row(error):
                    raise
                elif rows.num_rows > _INSERT_ROWS:
                    raise refused_row(error, self.table) from None
        return sum(self._insert(texts, place) for place, texts in self._statements(rows))

    def _load(self, rows: pa.Table) -> int:
        preparer = without_placeholders(self.conn.dialect).identifier_preparer
        name = f"airflow_kafka_offsets-{token_hex(16)}"
        fields, values = [], []
        for number, column in enumerate(rows.schema):
            quoted = preparer.quote(column.name)
            # The characters of the statement are not bytes of any kind: these come in hexadecimal.
            is_binary = pa.types.is_binary(column.type)
            fields.append(f"@_kafka_{number}" if is_binary else quoted)
            values += [f"{quoted} = UNHEX(@_kafka_{number})"] if is_binary else []
        statement = (
            f"LOAD DATA LOCAL INFILE '{name}' INTO TABLE {preparer.format_table(self.table)} CHARACTER SET utf8mb4 "
            r"FIELDS TERMINATED BY '\t' ESCAPED BY '\\' LINES TERMINATED BY '\n' "
            f"({', '.join(fields)}){' SET ' if values else ''}{', '.join(values)}"
        )
        result = self._run(statement, name, _lines(rows))
        if result.affected_rows != rows.num_rows or self._warnings(result):
            raise RowRefusedError(
                "the database changes a value of its row, or leaves the row out", None, has_bad_value=True
            )
        return int(result.affected_rows)

    def _statements(self, rows: pa.Table) -> Iterator[tuple[int, list[str]]]:
        """Yield rows as SQL, as many as a statement takes, with the index of the first."""
        place, size, texts = 0, 0, list[str]()
        limit = self.packet - _STATEMENT_BYTES
        for row, text in enumerate(_tuples(rows)):
            length = len(text.encode())
            if length > limit:
                reason = (
                    f"its row takes {length:,} bytes in a statement, but the server allows {limit:,} "
                    "(max_allowed_packet)"
                )
                raise RowRefusedError(reason, row, has_bad_value=True)
            if texts and (len(texts) == _INSERT_ROWS or size + length > limit):
                yield place, texts
                place, size, texts = row, 0, []
            texts.append(text)
            size += length + 1
        if texts:
            yield place, texts

    def _insert(self, texts: list[str], place: int) -> int:
        """Insert rows by one statement.

        :param place: the index of the first among those that are written
        """
        preparer = without_placeholders(self.conn.dialect).identifier_preparer
        names = ", ".join(preparer.quote(column.name) for column in self.columns)
        # All values are made by `_tuples`, as literals.
        insert = f"INSERT INTO {preparer.format_table(self.table)} ({names}) VALUES "  # noqa: S608
        try:
            result = self._run(insert + ",".join(texts))
        except DBAPIError as error:
            number = mysql.error_number(error.orig)
            if number is None or is_outage(error):
                raise
            if not (mysql.is_value_number(number) or isinstance(error, IntegrityError)):
                raise refused_statement(error, self.table) from None
            raise self._refused(error, number, insert, texts, place) from None
        for number, message in self._warnings(result):
            # Such as spaces at the end of a text, of which a shorter column keeps fewer even in strict mode.
            warned = sa.exc.DataError(None, None, pymysql.err.DataError(number, message))
            raise self._refused(warned, number, insert, texts, place)
        return int(result.affected_rows)

    def _is_refused_alone(self, statement: str) -> bool:
        """Return whether the server refuses a row by itself, or changes one of its values. It is not written."""
        trial = self.conn.begin_nested()
        try:
            return bool(self._warnings(self._run(statement)))
        except DBAPIError as error:
            if is_outage(error):
                raise
            return True
        finally:
            with suppress(DBAPIError):
                trial.rollback()

    def _refused(self, error: DBAPIError, number: int, insert: str, texts: list[str], place: int) -> RowRefusedError:
        """Return the error of the server as that of the row that it names, if this is one that it refuses: within a
        trigger, the number is that of a row of the trigger's own statement.
        """
        row = mysql.row_of_message(str(error.orig.args[1])) if mysql.is_value_number(number) and error.orig else None
        if row is not None and len(texts) == 1:
            row = 0
        elif row is not None and not (row < len(texts) and self._is_refused_alone(insert + texts[row])):
            row = None
        return refused_row(error, self.table, None if row is None else place + row)

    def _warnings(self, result: Any) -> list[tuple[int, str]]:
        """Return the warnings of a statement about changed values."""
        if not result.warning_count:
            return []
        listed = self.conn.exec_driver_sql("SHOW WARNINGS").all()
        return [(number, message) for _, number, message in listed if number not in _HARMLESS]

    def _run(self, statement: str, name: str = "", lines: Iterable[bytes] = ()) -> Any:
        """Run a statement, and return the driver's result; rows are sent where the server asks for them.

        :raises DBAPIError: as SQLAlchemy raises it
        """
        try:
            return pymysql_protocol.run(self.driver, statement, name.encode(), lines)
        except pymysql.Error as error:
            is_lost = self.conn.dialect.is_disconnect(error, self.driver, None)
            if is_lost:
                self.conn.invalidate(error)
            # Without the statement, which quotes rows.
            raised = DBAPIError.instance(
                None, None, error, pymysql.Error, connection_invalidated=is_lost, dialect=self.conn.dialect
            )
            raise raised from None


def _lines(rows: pa.Table) -> Iterator[bytes]:
    """Yield rows as LOAD DATA reads them."""
    for batch in rows.to_batches():
        fields = [
            pc.fill_null(_replaced(_texts(column), {"\\": r"\\", "\t": r"\t", "\n": r"\n"}), r"\N")
            for column in batch.columns
        ]
        fields[-1] = pc.binary_join_element_wise(fields[-1], "", "\n")
        lines = pc.binary_join_element_wise(*fields, "\t")
        # The bytes of all lines, one after the other.
        yield lines.buffers()[2].slice(0, pc.sum(pc.binary_length(lines)).as_py()).to_pybytes()


def _tuples(rows: pa.Table) -> Iterator[str]:
    """Yield rows as lists of literals."""
    for batch in rows.to_batches():
        literals = []
        for column in batch.columns:
            prefix = "X'" if pa.types.is_binary(column.type) else "'"
            text = _replaced(_texts(column), {"\\": r"\\", "'": r"\'"})
            literals.append(pc.fill_null(pc.binary_join_element_wise(prefix, text, "'", ""), "NULL"))
        joined = pc.binary_join_element_wise(*literals, ",")
        yield from (f"({text})" for text in joined.to_pylist())


def _texts(column: pa.Array) -> pa.Array:
    """Return values as the server reads them; bytes in hexadecimal."""
    if pa.types.is_boolean(column.type):
        return column.cast(pa.uint8()).cast(pa.string())
    if pa.types.is_binary(column.type):
        return pa.array([None if value is None else value.hex() for value in column.to_pylist()], pa.string())
    return column.cast(pa.string())


def _replaced(texts: pa.Array, replacements: dict[str, str]) -> pa.Array:
    for pattern, replacement in replacements.items():
        texts = pc.replace_substring(texts, pattern, replacement)
    return texts
