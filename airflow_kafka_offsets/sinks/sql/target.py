"""A table in one transaction: its columns, its rows that are written, and those that are taken back."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.database.mysql import is_mysql
from airflow_kafka_offsets.database.tables import forget_reflected
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.sinks.sql import insert, upsert, upsert_key
from airflow_kafka_offsets.sinks.sql.column_types import match
from airflow_kafka_offsets.sinks.sql.new_columns import add_columns, lacking, lock_table
from airflow_kafka_offsets.sinks.table import Target
from airflow_kafka_offsets.sinks.target_rows import Removed, ReplacedOffsets
from airflow_kafka_offsets.staging.rows import StagedRows

if TYPE_CHECKING:
    from airflow_kafka_offsets.sinks.sql.connected_table import ConnectedSqlTable

Writer = Callable[[Connection, sa.Table, pa.Schema, StagedRows], int]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SqlTarget(Target):
    """A table, and the connection of a transaction; see `Target`."""

    conn: Connection
    table: ConnectedSqlTable

    def add_columns(self, columns: pa.Schema) -> list[str]:
        """Add the columns that the table lacks; see `Target.add_columns`."""
        table = self.table.reflect(self.conn)
        if table is None or not lacking(table, columns):
            return []
        lock_table(self.conn, table)
        forget_reflected(self.conn)
        table = self.table.reflect(self.conn)
        added = [] if table is None else add_columns(self.conn, table, columns)
        forget_reflected(self.conn)
        return added

    def remove(self, replaced: ReplacedOffsets) -> list[Removed]:
        """Delete the rows of replaced offsets; see `Target.remove`."""
        return self.table.rows(self.conn).remove(replaced)

    def write(self, rows: StagedRows) -> int:
        """Write rows over the connection of the transaction.

        :return: how many the database reports as appended; with `upsert_key`, how many as inserted or replaced
        :raises TargetError: the table does not fit the rows
        :raises RecordError: the database refuses a row, which is not to be a dead letter; names the record it came from
        """
        conn, sink, schema = self.conn, self.table.sink, rows.schema()
        if schema is None:
            return 0
        table = self.table.reflect(conn)
        if table is None:
            raise TargetError(f"Table {sink.name!r} disappeared between staging and commit; nothing was written")
        columns, append = match(table, schema, conn.dialect), _writer(conn)
        if not sink.upsert_key:
            count = append(conn, table, columns, rows)
            sent = len(rows) - rows.left_out
            if count != sent:
                log.warning(
                    "The database reports %s rows in table %r of the %s that were sent to it: a trigger or a rule of "
                    "the table drops rows, or writes them elsewhere. The history has the number that the database "
                    "reports",
                    f"{count:,}",
                    sink.name,
                    f"{sent:,}",
                )
            return count
        upsert_key.check_key(conn.dialect, sink.upsert_key, schema)
        upsert_key.check_target(conn, table, sink.upsert_key)
        return upsert.upsert_rows(conn, table, columns, rows, sink.upsert_key, append, _upsert_statements(conn))


def _upsert_statements(conn: Connection) -> type[upsert.Upsert]:
    if not is_mysql(conn.dialect):
        return upsert.Upsert
    from airflow_kafka_offsets.sinks.sql.mysql_upsert import MySqlUpsert

    return MySqlUpsert


def _writer(conn: Connection) -> Writer:
    """Return the fastest way into the database."""
    if conn.dialect.name == "sqlite":
        return insert.insert_rows_sqlite
    if is_mysql(conn.dialect):
        from airflow_kafka_offsets.sinks.sql import mysql_load

        return mysql_load.load_rows
    if conn.dialect.driver == "psycopg" and importlib.util.find_spec("pgpq") is not None:
        from airflow_kafka_offsets.sinks.sql import postgres_copy

        return postgres_copy.copy_rows
    return insert.insert_rows
