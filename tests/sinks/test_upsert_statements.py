"""What `upsert_key` makes of the rows of a transform, and of databases that it does not know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mssql, postgresql, sqlite
from sqlalchemy.engine import Connection, Dialect

from airflow_kafka_offsets.database.tables import without_placeholders
from airflow_kafka_offsets.exceptions import ConfigurationError, RecordError, TargetError
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS, row_columns
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.sinks.sql.column_types import created_table
from airflow_kafka_offsets.sinks.sql.connected_table import SqlTarget
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.sinks.sql.upsert_checks import check_key
from airflow_kafka_offsets.staging.arrow_files import ArrowFileWriter
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest, StagedFile
from airflow_kafka_offsets.staging.rows import StagedRows

SINK = SqlTable("target", upsert_key=("id",))

COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string()), *ORIGIN_COLUMNS])


def row(key: int | None, name: str | None, offset: int | None, partition: int | None = 0) -> dict[str, Any]:
    return {"id": key, "name": name, "_kafka_topic": "orders", "_kafka_partition": partition, "_kafka_offset": offset}


@pytest.fixture
def conn() -> Iterator[Connection]:
    engine = sa.create_engine("sqlite://")
    SINK.connect(engine).prepare(COLUMNS)
    with engine.connect() as made:
        yield made
    engine.dispose()


def staged(tmp_path: Path, *files: list[dict[str, Any]]) -> StagedRows:
    """Files as Spark leaves them."""
    directory = StagingDirectory(str(tmp_path))
    named: list[StagedFile] = []
    for index, rows in enumerate(files):
        with ArrowFileWriter(directory, f"part-{index}.arrow", COLUMNS) as writer:
            writer.write(pa.RecordBatch.from_pylist(rows, schema=COLUMNS))
        named.append(writer.file)
    return StagedRows(directory, Manifest(1, "", tuple(named), ()))


def held(conn: Connection) -> list[tuple[Any, ...]]:
    return [tuple(one) for one in conn.exec_driver_sql("SELECT id, name, _kafka_offset FROM target ORDER BY id")]


def test_last_row_of_a_record_wins(conn: Connection, tmp_path: Path) -> None:
    files = [[row(1, "c", 5), row(1, "a", 5), row(2, "x", 5)], [row(1, "b", 5), row(1, "older", 4)]]

    assert SqlTarget(conn, SINK.connect(conn.engine)).write(staged(tmp_path, *files)) == 2

    assert held(conn) == [(1, "b", 5), (2, "x", 5)]


def test_the_order_of_the_files_decides_nothing_else(conn: Connection, tmp_path: Path) -> None:
    assert (
        SqlTarget(conn, SINK.connect(conn.engine)).write(staged(tmp_path, [row(1, "new", 7)], [row(1, "old", 6)])) == 1
    )

    assert held(conn) == [(1, "new", 7)]


def test_a_batch_without_rows_writes_none(conn: Connection, tmp_path: Path) -> None:
    assert SqlTarget(conn, SINK.connect(conn.engine)).write(staged(tmp_path)) == 0


@pytest.mark.parametrize("lost", [row(1, "a", None), row(1, "a", 3, partition=None)], ids=["offset", "partition"])
def test_a_transform_that_loses_where_a_row_is_from_is_refused(
    conn: Connection, tmp_path: Path, lost: dict[str, Any]
) -> None:
    with pytest.raises(TargetError, match=r"returns a row whose '_kafka_(offset|partition)' is null.*into 'target'"):
        SqlTarget(conn, SINK.connect(conn.engine)).write(staged(tmp_path, [row(1, "b", 1), lost]))


def test_the_first_record_with_a_null_key_is_named(conn: Connection, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"'orders' partition 0 offset 3 .*'id' is null"):
        SqlTarget(conn, SINK.connect(conn.engine)).write(
            staged(tmp_path, [row(None, "b", 8), row(1, "a", 1)], [row(None, None, 3)])
        )


def test_another_database_is_refused_by_name() -> None:
    kind: type[Dialect] = mssql.dialect
    with pytest.raises(ConfigurationError, match=r"PostgreSQL, SQLite, MySQL and MariaDB, and .* leads to mssql"):
        check_key(kind(), ("id",), COLUMNS)


@pytest.mark.parametrize("name", ["_kafka_topic", "_kafka_partition", "_kafka_offset"])
def test_a_transform_that_drops_where_rows_are_from_is_refused(name: str) -> None:
    columns = pa.schema([field for field in COLUMNS if field.name != name])

    with pytest.raises(TargetError, match=f"The transform drops '{name}'"):
        check_key(sqlite.dialect(), ("id",), columns)


def test_a_table_without_the_column_of_the_key_is_refused_before_the_transform_runs(conn: Connection) -> None:
    with pytest.raises(TargetError, match="'target' has no column 'order', which upsert_key names"):
        SqlTable("target", upsert_key=("id", "order")).connect(conn.engine).prepare(None)


def test_key_and_origin_are_told_to_the_transform_before_anything_is_read(conn: Connection) -> None:
    assert SINK.connect(conn.engine).prepare(None).required == (
        "id",
        "_kafka_topic",
        "_kafka_partition",
        "_kafka_offset",
    )


def test_without_a_key_the_origin_is_not_needed(conn: Connection) -> None:
    assert SqlTable("target").connect(conn.engine).prepare(None).required == ()


def test_a_created_table_has_the_key_in_its_order_and_numbers_nothing() -> None:
    made = created_table("orders", None, row_columns(Json("a BIGINT, b STRING, c INT")), ("c", "a"))

    assert [column.name for column in made.primary_key] == ["c", "a"]
    assert created_table("orders", None, row_columns(Json("a BIGINT")), ("a",)).autoincrement_column is None
    assert not made.c.a.nullable
    assert made.c.b.nullable


def test_shown_names_have_the_percent_signs_that_they_have() -> None:
    kind: type[Dialect] = postgresql.psycopg.dialect
    dialect = kind()

    assert dialect.identifier_preparer.quote("50%") == '"50%%"'
    assert without_placeholders(dialect).identifier_preparer.quote("50%") == '"50%"'
