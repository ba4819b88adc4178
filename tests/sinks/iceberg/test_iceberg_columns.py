"""Columns that a commit adds to an Iceberg table, columns of transforms, and what travels and is shown of the sink."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.database.transactions import transact
from airflow_kafka_offsets.exceptions import ConfigurationError, StagedFileError
from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable
from airflow_kafka_offsets.sinks.table import Output
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest
from airflow_kafka_offsets.staging.rows import StagedRows
from airflow_kafka_offsets.writers.table_rows import RefusedRows
from tests.support.iceberg import IcebergGroup, open_table, scanned

NOWHERE = StagingDirectory("/nowhere")

NARROW = pa.schema([("id", pa.int64())])
WIDE = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.struct([("x", pa.int32()), ("y", pa.int32())]))])
ROWS = [{"id": 1, "name": "one", "at": {"x": 1, "y": 2}}]


def output(batch_id: int) -> Output:
    return Output(batch_id, "loader", (), "series", f"batch-{batch_id}-x")


def stage(
    sink: IcebergTable, engine: Engine, columns: pa.Schema, rows: list[dict[str, Any]], batch_id: int
) -> StagedRows:
    sink.connect(engine).prepare(columns, may_grow=True)
    writer = sink.connect(engine).writer(columns, output(batch_id))
    batch = pa.RecordBatch.from_pylist(rows, columns)
    files = tuple(writer.write([batch], NOWHERE, sink.connect(engine).storage_options(), RefusedRows(NOWHERE)))
    return StagedRows(NOWHERE, Manifest(batch_id, "", files, (), (), writer.columns))


def commit(sink: IcebergTable, engine: Engine, rows: StagedRows, columns: pa.Schema, batch_id: int) -> list[str]:
    def work(conn: Any) -> list[str]:
        with sink.connect(engine).publish(conn, output(batch_id)) as target:
            added = target.add_columns(columns)
            assert target.write(rows) == len(rows)
        return added

    return transact(engine, work)


@pytest.fixture
def table(sink: IcebergTable, engine: Engine) -> IcebergTable:
    """A table of one column, with one row."""
    commit(sink, engine, stage(sink, engine, NARROW, [{"id": 0}], 1), NARROW, 1)
    return sink


def test_a_commit_adds_columns_with_the_ids_that_the_tasks_wrote(table: IcebergTable, engine: Engine) -> None:
    rows = stage(table, engine, WIDE, ROWS, 2)
    assert open_table(table, engine).schema().column_names == ["id", "_batch_id"]

    assert commit(table, engine, rows, WIDE, 2) == ["name", "at"]

    found = open_table(table, engine)
    assert scanned(found, "id", "name") == [(0, None), (1, "one")]
    assert found.scan("id = 1").to_arrow()["at"].to_pylist() == [{"x": 1, "y": 2}]
    assert found.scan("name = 'one'").count() == 1


def test_files_are_staged_again_where_others_added_columns_first(table: IcebergTable, engine: Engine) -> None:
    rows = stage(table, engine, WIDE, ROWS, 4)
    other = pa.schema([("id", pa.int64()), ("other", pa.string())])
    commit(table, engine, stage(table, engine, other, [{"id": 5, "other": "x"}], 3), other, 3)

    with pytest.raises(StagedFileError, match="written for other columns"):
        commit(table, engine, rows, WIDE, 4)

    assert commit(table, engine, stage(table, engine, WIDE, ROWS, 4), WIDE, 4) == ["name", "at"]
    assert scanned(open_table(table, engine), "id", "name") == [(0, None), (1, "one"), (5, None)]


def test_a_table_is_created_from_declared_columns(sink: IcebergTable, engine: Engine) -> None:
    declared = replace(sink, columns="id BIGINT, created TIMESTAMP", partition_by=("day(created)",))

    known = declared.connect(engine).prepare(None)

    names = ("id", "created", "_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp", "_batch_id")
    assert known.known == names
    found = open_table(sink, engine)
    assert [str(each) for each in found.spec().fields] == ["1000: created_day: day(2)"]
    assert declared.connect(engine).writer(None, output(1)).columns is not None


def test_a_partition_that_does_not_fit_its_column_is_named(sink: IcebergTable, engine: Engine) -> None:
    declared = replace(sink, columns="id BIGINT", partition_by=("day(id)",))
    with pytest.raises(
        ConfigurationError, match=r"cannot be created with partition_by=\('day\(id\)',\), sort_by=\(\): "
    ):
        declared.connect(engine).prepare(None)


def test_a_column_of_type_double_is_no_partition(sink: IcebergTable, engine: Engine) -> None:
    declared = replace(sink, columns="id BIGINT, ratio DOUBLE", partition_by=("ratio",))
    with pytest.raises(ConfigurationError, match=r"partition_by names ratio: .* single precision"):
        declared.connect(engine).prepare(None)
    assert declared.connect(engine).snapshot() is None


def test_columns_that_nobody_knows_are_asked_for(sink: IcebergTable, engine: Engine) -> None:
    assert sink.connect(engine).prepare(None).known is None
    with pytest.raises(ConfigurationError, match=r"Declare them, as in IcebergTable\(…, columns="):
        sink.connect(engine).writer(None, output(1))


@pytest.mark.parametrize("name", ["orders", "", "shop.", ".orders"])
def test_a_name_needs_a_namespace(sink: IcebergTable, name: str) -> None:
    with pytest.raises(ConfigurationError, match="namespace and name"):
        replace(sink, identifier=name)


def test_a_created_table_needs_a_place(engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="warehouse="):
        IcebergTable("shop.orders").connect(engine).prepare(NARROW)


@pytest.mark.parametrize("warehouse", ["lake/x", "~/lake", "file://lake/x"])
def test_the_place_does_not_depend_on_the_directory_of_a_process(
    tmp_path: Path, engine: Engine, warehouse: str
) -> None:
    external = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": warehouse}
    for sink in (IcebergTable("shop.orders", warehouse=warehouse), IcebergTable("shop.orders", catalog=external)):
        with pytest.raises(ConfigurationError, match=f"must be an absolute path or a URI.*{warehouse}"):
            sink.connect(engine).prepare(NARROW)


def test_secrets_are_neither_shown_nor_in_the_writer(tmp_path: Path, engine: Engine) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/lake"}
    secret = {"s3.secret-access-key": "hidden-1", "token": "hidden-2"}
    connections: dict[str, dict[str, Any]] = {
        "store": {
            "conn_type": "aws",
            "login": "key",
            "password": "hidden-3",
            "extra": {"endpoint_url": "http://127.0.0.1:9"},
        },
        "catalog": {"extra": {**catalog, **secret}},
    }
    sink = IcebergTable("shop.orders", catalog_conn_id="catalog", storage_conn_id="store")
    assert sink.commits_externally
    assert sink.conn_ids == ("catalog", "store")

    connected = sink.connect(engine, connections)

    connected.prepare(NARROW)
    writer = connected.writer(NARROW, output(1))
    options = connected.storage_options()
    assert "hidden" not in repr(connected) + repr(writer) + repr(IcebergTable("a.b", {**catalog, **secret}))
    assert options["s3.secret-access-key"] == "hidden-3"
    assert options["s3.access-key-id"] == "key"
    assert "token" not in options


def test_a_sink_travels_with_its_dag(sink: IcebergTable) -> None:
    assert pickle.loads(pickle.dumps(sink)) == sink
    assert type(replace(sink, sort_by=("id",))) is type(sink)


def test_a_snapshot_names_group_batch_and_ranges(group: IcebergGroup) -> None:
    group.load(limits=Limits(max_records=4))

    snapshot = group.table.snapshots()[-1]

    assert snapshot.summary is not None
    named = {name: value for name, value in snapshot.summary.additional_properties.items() if "kafka" in name}
    assert named == {
        "kafka-offsets.group": "loader",
        "kafka-offsets.batch": "3",
        "kafka-offsets.ranges": f"{group.orders}[0] 8..10",
    }
