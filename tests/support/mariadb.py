"""Rows as Spark leaves them, for tests of what MariaDB makes of them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.database import mysql
from airflow_kafka_offsets.database.mysql import PADDED, exact_collation
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS
from airflow_kafka_offsets.sinks.sql.connected_table import SqlTarget
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.staging.arrow_files import ArrowFileWriter
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest, SliceRead
from airflow_kafka_offsets.staging.rows import RefusedRecords, StagedRows

Row = dict[str, Any]


def columns(**types: pa.DataType) -> pa.Schema:
    return pa.schema([*(pa.field(name, type_) for name, type_ in types.items()), *ORIGIN_COLUMNS])


def at(offset: int, **values: Any) -> Row:
    """Return the row of a record."""
    return values | {"_kafka_topic": "orders", "_kafka_partition": 0, "_kafka_offset": offset}


def staged(tmp_path: Path, schema: pa.Schema, rows: Sequence[Row], *, dead_letters: bool = False) -> StagedRows:
    """
    :param dead letters: whether refused records are dead letters
    """
    directory = StagingDirectory(tempfile.mkdtemp(dir=tmp_path))
    with ArrowFileWriter(directory, "part-0.arrow", schema) as writer:
        writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
    reads = [SliceRead(0, "orders", 0, 0, len(rows) + 1_000_000, len(rows))]
    return StagedRows(directory, Manifest(1, "", (writer.file,), ()), RefusedRecords(dead_letters, reads=reads))


def write(engine: Engine, sink: SqlTable, rows: StagedRows) -> int:
    with engine.begin() as conn:
        return SqlTarget(conn, sink.connect(engine)).write(rows)


def do(engine: Engine, *statements: str) -> None:
    with engine.begin() as conn:
        for statement in statements:
            conn.exec_driver_sql(statement)


def pads(engine: Engine) -> bool:
    """Return whether exact texts of the server are equal if they differ in spaces at their ends."""
    with engine.connect() as conn:
        return exact_collation(conn.dialect) == PADDED


def is_mysql(engine: Engine) -> bool:
    """Return whether a database is MySQL, and not MariaDB."""
    with engine.connect() as conn:
        return mysql.is_mysql(conn.dialect) and not mysql.is_mariadb(conn.dialect)


def needs_checks(engine: Engine) -> None:
    """Skip the test on MySQL before 8.0.16, which reads and ignores CHECK constraints."""
    if is_mysql(engine):
        pytest.skip("the server does not enforce CHECK")


NUMBERS = (
    "(WITH RECURSIVE n AS (SELECT 0 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 49) "
    "SELECT 50 * a.i + b.i + 1 AS seq FROM n AS a, n AS b WHERE a.i < 40) AS numbers"
)
"""A table of the numbers from 1 to 2000."""


def counted(conn: Connection, what: str) -> int:
    """Return how many statements of a kind the session has executed."""
    return int(conn.exec_driver_sql(f"SHOW SESSION STATUS LIKE 'Com_{what}'").one()[1])


def select(engine: Engine, query: str) -> list[tuple[Any, ...]]:
    with engine.connect() as conn:
        return [tuple(row) for row in conn.execute(sa.text(query))]
