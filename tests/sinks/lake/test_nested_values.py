"""Nested values in lake tables: nulls stay nulls, also where a field is required, and where a file is written again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from pyiceberg.catalog import load_catalog

from airflow_kafka_offsets import DeltaTable
from airflow_kafka_offsets.core.offsets import OffsetRange
from airflow_kafka_offsets.exceptions import RecordError
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS
from airflow_kafka_offsets.sinks.lake.table import LakeTable
from airflow_kafka_offsets.sinks.table import Output
from tests.sinks.lake.test_zombies import offsets
from tests.support.iceberg import iceberg_sink
from tests.support.lake import publish_rows

NEEDED = pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])

TABLE = pa.schema(
    [
        ("one", NEEDED),
        ("many", pa.list_(pa.field("element", NEEDED))),
        ("named", pa.map_(pa.string(), NEEDED)),
        ("deep", pa.struct([pa.field("x", NEEDED), pa.field("ys", pa.list_(NEEDED), nullable=False)])),
        *ORIGIN_COLUMNS,
        ("_batch_id", pa.int64()),
    ]
)

PLAIN = pa.struct([("a", pa.int64()), ("b", pa.string())])

ROWS = pa.schema(
    [
        ("one", PLAIN),
        ("many", pa.list_(PLAIN)),
        ("named", pa.map_(pa.string(), PLAIN)),
        ("deep", pa.struct([("x", PLAIN), ("ys", pa.list_(PLAIN))])),
        *ORIGIN_COLUMNS,
    ]
)

NESTED = ROWS.names[:4]

VALUE = {"a": 1, "b": None}

VALUES: list[dict[str, Any]] = [
    {"one": VALUE, "many": [VALUE, None], "named": [("k", VALUE), ("l", None)], "deep": {"x": VALUE, "ys": [None]}},
    {"one": None, "many": None, "named": None, "deep": None},
    {"one": VALUE, "many": [], "named": [], "deep": {"x": None, "ys": []}},
    {"one": None, "many": [None], "named": None, "deep": {"x": VALUE, "ys": [VALUE]}},
]


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    """A table of another program, with required fields in structs that may be null."""
    engine = sa.create_engine("sqlite://", poolclass=sa.NullPool)
    if request.param == "delta":
        sink = DeltaTable(f"{tmp_path}/lake")
        deltalake.DeltaTable.create(sink.uri, deltalake.Schema.from_arrow(TABLE))
        return sink.connect(engine)
    iceberg = iceberg_sink("sql", tmp_path)
    assert isinstance(iceberg.catalog, dict)
    catalog = load_catalog("default", **iceberg.catalog)
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", TABLE)
    return iceberg.connect(engine)


def rows(values: list[dict[str, Any]]) -> pa.RecordBatch:
    places = [
        {"_kafka_topic": "orders", "_kafka_partition": 0, "_kafka_offset": 40 + offset} for offset in range(len(values))
    ]
    return pa.RecordBatch.from_pylist([each | place for each, place in zip(values, places, strict=True)], ROWS)


def read(table: LakeTable) -> list[dict[str, Any]]:
    """Return the rows as Parquet holds them: pyiceberg reads lists of structs that are null as empty ones."""
    snapshot: Any = table.snapshot()
    if isinstance(table.sink, DeltaTable):
        found = pa.table(snapshot.table.to_pyarrow_table())
    else:
        paths = [task.file.file_path.removeprefix("file://") for task in snapshot.table.scan().plan_files()]
        found = pa.concat_tables(pq.read_table(path, partitioning=None) for path in paths)
    plain: list[dict[str, Any]] = found.sort_by("_kafka_offset").select(NESTED).to_pylist()
    return plain


@pytest.mark.parametrize("present", [NESTED, []], ids=["held", "not_held"])
def test_a_struct_that_is_null_needs_no_field(table: LakeTable, tmp_path: Path, present: list[str]) -> None:
    publish_rows(table, rows(VALUES).select([*present, *ORIGIN_COLUMNS.names]), tmp_path)

    assert read(table) == (VALUES if present else [dict.fromkeys(NESTED)] * len(VALUES))


@pytest.mark.parametrize(
    "value",
    [
        {"one": {"a": None}},
        {"many": [VALUE, {"a": None}]},
        {"named": [("k", {"a": None})]},
        {"deep": {"ys": None}},
        {"deep": {"ys": [{"a": None}]}},
    ],
    ids=str,
)
def test_a_required_field_that_is_null_refuses_its_record(
    table: LakeTable, tmp_path: Path, value: dict[str, Any]
) -> None:
    values = [VALUES[0], dict.fromkeys(NESTED) | value, VALUES[1]]
    (name,) = value

    with pytest.raises(RecordError, match=rf"column '{name}' of table .* does not fit into .* (?i:not null)") as raised:
        publish_rows(table, rows(values), tmp_path)

    assert raised.value.offset == 41


def test_nested_nulls_stay_where_a_file_is_written_again(table: LakeTable, tmp_path: Path) -> None:
    publish_rows(table, rows(VALUES), tmp_path)

    (removed,) = table.retire(Output(1, "g", (OffsetRange("orders", 0, 40, 41, 41),), "other", "batch-1-a"))

    assert removed.rows == 1
    assert offsets(table) == [41, 42, 43]
    assert read(table) == VALUES[1:]


def test_a_file_without_field_ids_is_written_again_by_the_names_of_its_columns(tmp_path: Path) -> None:
    """Such as that of a table which was migrated from Hive: a mapping of the table says which name is which field."""
    engine = sa.create_engine("sqlite://", poolclass=sa.NullPool)
    table = iceberg_sink("sql", tmp_path).connect(engine)
    table.prepare(ROWS)
    batch = rows(VALUES).append_column("_batch_id", pa.array([1] * len(VALUES)))
    snapshot: Any = table.snapshot()
    directory = Path(snapshot.table.location().removeprefix("file://"), "data")
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_batches([batch]), directory / "foreign.parquet")
    snapshot.table.add_files([f"file://{directory}/foreign.parquet"])

    (removed,) = table.retire(Output(1, "g", (OffsetRange("orders", 0, 40, 41, 41),), "other", "batch-1-a"))

    assert removed.rows == 1
    assert read(table) == VALUES[1:]
