"""The data files that tasks write: field ids, partitions, statistics, order and size."""

from __future__ import annotations

import math
import pickle
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.expressions.parser import parse
from pyiceberg.table import Table

from airflow_kafka_offsets import IcebergTable
from airflow_kafka_offsets.exceptions import ConfigurationError, RecordError, TargetError
from airflow_kafka_offsets.sinks.iceberg.shapes import create_table, shape_of
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.staging.rows import schema_text
from airflow_kafka_offsets.writers import data_files
from airflow_kafka_offsets.writers.lake_writer import LakeWriter
from airflow_kafka_offsets.writers.table_rows import RefusedRows

START = datetime(2026, 1, 30, 22, tzinfo=UTC)

NOWHERE = StagingDirectory("/nowhere")

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("created", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("amount", pa.decimal128(9, 2)),
        ("ratio", pa.float64()),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("nested", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("_kafka_topic", pa.string()),
        ("_kafka_partition", pa.int32()),
        ("_kafka_offset", pa.int64()),
    ]
)


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": None if number % 7 == 0 else f"name-{number % 5}",
        "created": START + timedelta(hours=number),
        "day": date(2026, 1, 1) + timedelta(days=number % 3),
        "amount": Decimal(number) / 4,
        "ratio": math.nan if number % 11 == 0 else number / 2,
        "raw": bytes([number % 256]),
        "tags": [str(number), "x"],
        "nested": {"a": number, "b": "y"},
        "_kafka_topic": "orders",
        "_kafka_partition": 0,
        "_kafka_offset": number,
    }


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/lake")


def make(
    catalog: Catalog, *partition_by: str, sort_by: tuple[str, ...] = (), properties: dict[str, str] | None = None
) -> Table:
    sink = IcebergTable("shop.orders", partition_by=partition_by, sort_by=sort_by, properties=properties or {})
    create_table(catalog, sink, COLUMNS)
    return catalog.load_table(sink.identifier)


def write(
    table: Table, rows: list[dict[str, Any]], at_once: int = 10, columns: pa.Schema = COLUMNS
) -> list[StagedFile]:
    """Write rows as a task does, to which the writer was sent."""
    writer = LakeWriter("iceberg", "orders", schema_text(columns), asdict(shape_of(table)), 7, "batch-7-abc")
    batches = (pa.RecordBatch.from_pylist(rows[i : i + at_once], columns) for i in range(0, len(rows), at_once))
    return list(pickle.loads(pickle.dumps(writer)).write(batches, NOWHERE, {}, RefusedRows(NOWHERE)))


def commit(table: Table, files: list[StagedFile]) -> pa.Table:
    shape = shape_of(table)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for file in files:
            entry = shape.from_json(file.data)
            assert entry is not None
            append.append_data_file(entry)
    return table.scan().to_arrow()


@pytest.mark.parametrize(
    ("partition_by", "partitions"),
    [
        ((), 1),
        (("name",), 6),
        (("day(created)",), 3),
        (("hour(created)",), 50),
        (("month(created)", "day(created)"), 3),
        (("year(day)",), 1),
        (("bucket(4, id)",), 4),
        (("bucket(4, name)", "truncate(1, name)"), None),
        (("truncate(10, id)",), 5),
        (("amount",), 50),
        (("raw",), 50),
        (("truncate(2, raw)",), 50),
        (("day", "bucket(2, id)"), 6),
        (("nested.a",), 50),
    ],
    ids=str,
)
def test_rows_are_partitioned_and_read_back(
    catalog: Catalog, partition_by: tuple[str, ...], partitions: int | None
) -> None:
    table, rows = make(catalog, *partition_by), [row(number) for number in range(50)]

    files = write(table, rows)

    found = commit(table, files).sort_by("id")
    expected = pa.Table.from_pylist([{**each, "_batch_id": 7} for each in rows], found.schema)
    assert repr(found.to_pylist()) == repr(expected.to_pylist())  # NaN is unlike itself
    assert partitions is None or len(files) == partitions
    assert sum(file.rows for file in files) == 50
    assert all(file.name.startswith(f"{table.location()}/data/batch-7-abc/") for file in files)


def unaligned(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows whose values begin at odd addresses, as those that are read from a file may."""
    text = pa.BufferOutputStream()
    with pa.ipc.new_stream(text, rows.schema) as stream:
        stream.write_batch(rows)
    read = pa.ipc.open_stream(pa.py_buffer(b" " + text.getvalue().to_pybytes()).slice(1)).read_next_batch()
    assert all(buffer.address % 2 for column in read.columns for buffer in column.buffers() if buffer is not None)
    return read


@pytest.mark.parametrize(
    "term",
    ["day(created)", "month(day)", "truncate(10, id)"]
    + [f"bucket(4, {name})" for name in ("id", "name", "created", "amount", "raw")],
)
def test_rows_from_anywhere_in_memory_are_partitioned(catalog: Catalog, term: str) -> None:
    rows = pa.RecordBatch.from_pylist([row(number) for number in range(9)], COLUMNS)
    (partition,) = shape_of(make(catalog, term)).layout.partition_by
    assert partition.transform is not None
    (name,) = partition.source
    expected = partition.transform(rows.column(name))
    assert partition.transform(unaligned(rows).column(name)).equals(expected)


def test_partitions_and_statistics_prune(catalog: Catalog) -> None:
    table = make(catalog, "day(created)")
    commit(table, write(table, [row(number) for number in range(50)]))

    def planned(condition: str) -> int:
        return len(list(table.scan(parse(condition)).plan_files()))

    assert planned("created < '2026-01-31T00:00:00+00:00'") == 1
    assert planned("_kafka_offset >= 48") == 1
    assert planned("_batch_id = 7") == 3
    assert planned("_batch_id = 8") == 0


def test_files_have_field_ids(catalog: Catalog) -> None:
    table = make(catalog)
    (file,) = write(table, [row(1)])

    columns = pq.read_schema(file.name.removeprefix("file://"))

    ids = {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in columns}
    assert ids == {field.name: field.field_id for field in table.schema().fields}


def test_a_file_of_the_target_size_is_closed_and_memory_is_bounded(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_files, "_GROUP_BYTES", 20_000)
    monkeypatch.setattr(data_files, "_SPLIT_BYTES", 5_000)
    table = make(catalog, properties={"write.target-file-size-bytes": "30000"})

    files = write(table, [row(number) for number in range(5000)], at_once=100)

    assert len(files) > 3
    assert all(30_000 < file.bytes < 60_000 for file in files[:-1])
    assert commit(table, files).num_rows == 5000


def test_more_partitions_than_open_files(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "_OPEN_FILES", 2)
    monkeypatch.setattr(data_files, "_KEPT_BYTES", 3_000)
    monkeypatch.setattr(data_files, "_SPLIT_BYTES", 1_000)
    table = make(catalog, "bucket(8, id)")

    assert commit(table, write(table, [row(number) for number in range(300)])).num_rows == 300


def test_rows_of_a_file_are_sorted(catalog: Catalog) -> None:
    table = make(catalog, sort_by=("name", "id DESC"))
    (file,) = write(table, [row(number) for number in range(50)])

    found = pq.read_table(file.name.removeprefix("file://"), columns=["name", "id"]).to_pylist()

    keys = [(each["name"] or "~", -each["id"]) for each in found]
    assert keys == sorted(keys)


def test_files_of_a_task_that_fails_are_removed(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "_KEPT_BYTES", 1_000)
    monkeypatch.setattr(data_files, "_SPLIT_BYTES", 100)
    table, wrong = make(catalog, "bucket(4, id)"), {**row(10), "created": None}
    late = pa.RecordBatch.from_pylist([wrong], COLUMNS).set_column(
        2, COLUMNS.field(2), pa.array([2**62], pa.int64()).cast(COLUMNS.field(2).type)
    )
    writer = LakeWriter("iceberg", "orders", schema_text(COLUMNS), asdict(shape_of(table)), 7, "batch-7-abc")
    first = pa.RecordBatch.from_pylist([row(number) for number in range(10)], COLUMNS)

    with pytest.raises(RecordError, match="outside of the years") as raised:
        list(writer.write([first, late], NOWHERE, {}, RefusedRows(NOWHERE)))

    assert raised.value.offset == 10
    assert list(Path(table.location().removeprefix("file://")).rglob("*.parquet")) == []


def test_values_are_widened_and_never_changed(catalog: Catalog) -> None:
    table = make(catalog)
    narrow = pa.schema([("id", pa.int16()), ("ratio", pa.float32()), ("amount", pa.decimal128(5, 2))])
    files = write(table, [{"id": 3, "ratio": 0.5, "amount": Decimal("1.25")}], columns=narrow)
    assert commit(table, files).select(["id", "ratio", "amount"]).to_pylist() == [
        {"id": 3, "ratio": 0.5, "amount": Decimal("1.25")}
    ]

    for kind, value in ((pa.float64(), 0.5), (pa.string(), "x"), (pa.decimal128(9, 2), Decimal("0.25"))):
        with pytest.raises(TargetError, match="olumn 'id'"):
            write(table, [{"id": value}], columns=pa.schema([("id", kind)]))
    with pytest.raises(TargetError, match="no column 'other'"):
        write(table, [{"other": 1}], columns=pa.schema([("other", pa.int64())]))


@pytest.mark.parametrize(
    ("term", "problem"),
    [("week(created)", "week"), ("bucket(id)", "bucket"), ("day(nothing)", "no column 'nothing'"), ("day(id)", "id")],
)
def test_partitions_that_cannot_be_are_named(catalog: Catalog, term: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        make(catalog, term)


@pytest.mark.parametrize("column", ["name", "tags", "nested"])
def test_a_text_without_an_upper_bound_of_sixteen_characters_is_written(catalog: Catalog, column: str) -> None:
    """After U+D7FF come the surrogates, which are no characters."""
    text = "x" * 15 + "\ud7ff" + "more"
    table = make(catalog)
    values = {"name": text, "tags": [text], "nested": {"a": 1, "b": text}}
    rows = [{**row(number), column: values[column]} for number in range(3)]
    files = write(table, rows)
    assert commit(table, files)[column].to_pylist() == [each[column] for each in rows]
    (found,) = table.inspect.files().to_pylist()
    bounds = {name: value["upper_bound"] for name, value in found["readable_metrics"].items() if value["upper_bound"]}
    assert (bounds["_kafka_topic"], bounds["_kafka_offset"], bounds["_batch_id"]) == ("orders", 2, 7)
    assert found["record_count"] == 3


def test_a_column_with_a_value_of_its_own_in_each_row_has_no_dictionary(catalog: Catalog) -> None:
    """Unless a property of the table gives dictionaries more room."""

    def sizes(table: Table) -> dict[str, int]:
        (file,) = write(table, [row(number) for number in range(40_000)], at_once=10_000)
        group = pq.read_metadata(file.name.removeprefix("file://")).row_group(0)
        columns = [group.column(index) for index in range(group.num_columns)]
        return {column.path_in_schema: column.total_uncompressed_size for column in columns}

    usual = sizes(make(catalog))
    catalog.drop_table("shop.orders")
    roomy = sizes(make(catalog, properties={"write.parquet.dict-size-bytes": "4000000"}))
    # The values are in the dictionary, and their numbers there are beside it.
    assert roomy["id"] > 40_000 * 8 + 40_000 * 15 // 8 > usual["id"]
    assert roomy["name"] == usual["name"]
