"""Iceberg: columns and nested fields keep their values, also where Avro could not name them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from airflow_kafka_offsets.sinks.iceberg.shapes import shape_of
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.rows import schema_text
from airflow_kafka_offsets.writers.data_files import FileLayout, write_data_files
from airflow_kafka_offsets.writers.iceberg_files import IcebergStorage
from airflow_kafka_offsets.writers.lake_writer import LakeWriter
from airflow_kafka_offsets.writers.table_rows import RefusedRows

USER = pa.struct([("user-id", pa.string()), ("@type", pa.int64()), ("ok", pa.int64())])

COLUMNS = pa.schema(
    [
        ("unit price", pa.int64()),
        ("user", USER),
        ("users", pa.list_(USER)),
        ("by-name", pa.map_(pa.string(), USER)),
        ("deep", pa.struct([("2fa", pa.list_(pa.struct([("x-y", USER)])))])),
    ]
)

VALUE = {"user-id": "u1", "@type": 2, "ok": 3}

ROWS: list[dict[str, Any]] = [
    {
        "unit price": 1,
        "user": VALUE,
        "users": [VALUE, None],
        "by-name": [("a", VALUE), ("b", None)],
        "deep": {"2fa": [{"x-y": VALUE}]},
    },
    # pyiceberg reads lists and maps of structs that are null as empty ones.
    {"unit price": None, "user": None, "users": [], "by-name": [], "deep": {"2fa": []}},
    {"unit price": 3, "user": {**VALUE, "user-id": None}, "users": [VALUE], "by-name": [], "deep": {"2fa": []}},
]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/lake")
    catalog.create_namespace("shop")
    return catalog.create_table("shop.orders", COLUMNS)


def load(table: Table) -> None:
    from dataclasses import asdict

    shape, nowhere = shape_of(table), StagingDirectory("/nowhere")
    writer = LakeWriter("iceberg", "orders", schema_text(COLUMNS), asdict(shape), 7, "batch-7-abc")
    batch = pa.RecordBatch.from_pylist(ROWS, COLUMNS)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for file in writer.write([batch.slice(0, 1), batch.slice(1)], nowhere, {}, RefusedRows(nowhere)):
            entry = shape.from_json(file.data)
            assert entry is not None
            append.append_data_file(entry)


def test_nested_fields_are_appended(table: Table) -> None:
    load(table)

    assert table.scan().to_arrow().to_pylist() == ROWS


def test_nested_fields_are_written_again(table: Table) -> None:
    load(table)
    shape, staying = shape_of(table), table.scan().to_arrow().cast(shape_of(table).layout.columns).slice(1)

    path = partial(shape.path, "batch-8-abc")
    (file,) = write_data_files(IcebergStorage.of(table), staying.to_batches(), shape.layout, path)
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
        for task in table.scan().plan_files():
            overwrite.delete_data_file(task.file)
        entry = shape.from_json(shape.to_json(file))
        assert entry is not None
        overwrite.append_data_file(entry)

    assert table.scan().to_arrow().to_pylist() == ROWS[1:]


def test_all_levels_of_a_file_have_field_ids(table: Table) -> None:
    load(table)
    (task,) = table.scan().plan_files()

    kind = pq.read_schema(task.file.file_path.removeprefix("file://")).field("user").type

    ids = {kind.field(index).name: int(kind.field(index).metadata[b"PARQUET:field_id"]) for index in range(3)}
    names = {name: table.schema().find_field(f"user.{name}").field_id for name in ("user-id", "@type", "ok")}
    assert list(ids.values()) == list(names.values())


def test_columns_of_other_types_are_refused(table: Table) -> None:
    with pytest.raises(ValueError, match="other types"):
        FileLayout(pa.schema([("a", pa.list_(pa.string()))]), pa.schema([("a", pa.list_(pa.large_string()))]))
    with pytest.raises(ValueError, match="other types"):
        shape_of(table).layout.stored_rows(pa.Table.from_pylist(ROWS, COLUMNS))
