"""Foreign readers skip files by our statistics, and find all rows that a full scan finds."""

from __future__ import annotations

import math
import operator
import tempfile
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake.transaction import AddAction, RemoveAction
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import expressions as iceberg
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions.literals import literal
from pyiceberg.table import Table

from airflow_kafka_offsets.sinks.iceberg.shapes import shape_of
from airflow_kafka_offsets.writers.data_files import DataFile, FileLayout, write_data_files
from airflow_kafka_offsets.writers.delta_files import add_action
from airflow_kafka_offsets.writers.iceberg_files import IcebergStorage
from airflow_kafka_offsets.writers.object_files import ObjectFiles
from tests.support.examples import examples

LAST = datetime(9999, 12, 31, 23, 59, 59, 999999)

CHARACTERS = ("a", "b", "\ud7ff", "\ue000", "\U0010ffff", "😀")

# Of a length at which bounds are cut, or beyond that at which Parquet has none.
TEXTS = st.builds(
    lambda head, character, count, tail: head + character * count + tail,
    st.sampled_from(["", "a", "b", "a" * 15, "a" * 31]),
    st.sampled_from(CHARACTERS),
    st.sampled_from([0, 1, 15, 16, 17, 31, 32, 33, 5000]),
    st.sampled_from(["", *CHARACTERS]),
)

NUMBERS = st.sampled_from([0.0, -0.0, 1.0, 2.5, -3.0, 1e300, math.inf, -math.inf, math.nan])

VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), TEXTS),
    "bytes": (pa.binary(), st.one_of(TEXTS.map(str.encode), st.sampled_from([b"\xff" * 20, b"\xff" * 5000]))),
    "number": (pa.float64(), NUMBERS),
    "small": (pa.float32(), NUMBERS.filter(lambda value: value != 1e300)),
    "whole": (pa.int64(), st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)])),
    "amount": (pa.decimal128(9, 2), st.decimals(-10, 10, places=2)),
    "large": (
        pa.decimal128(38, 2),
        st.sampled_from([Decimal(f"{10**30}.00"), Decimal(f"-{10**30}.00"), Decimal("0.01")]),
    ),
    "at": (
        pa.timestamp("us", "UTC"),
        st.sampled_from([LAST, datetime(1, 1, 1), datetime(2026, 5, 6, 7, 8, 9, 123456)]).map(
            lambda value: value.replace(tzinfo=UTC)
        ),
    ),
    "local": (pa.timestamp("us"), st.sampled_from([LAST, datetime(1969, 12, 31, 23, 59, 59, 999999)])),
    "day": (pa.date32(), st.sampled_from([date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)])),
    "flag": (pa.bool_(), st.booleans()),
}

COLUMNS = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}

# The rows of a file, of which three are in a row group.
FILE = st.lists(
    st.fixed_dictionaries({name: st.one_of(st.none(), values) for name, (_, values) in VALUES.items()}),
    min_size=1,
    max_size=8,
)

OF_BATCHES = examples(80)


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, COLUMNS)


def written(
    rows: list[dict[str, Any]],
    files: Any,
    layout: FileLayout,
    path: Callable[[Any], str],
) -> list[DataFile]:
    return list(write_data_files(files, [batch_of(rows).cast(layout.columns)], layout, path))


def new_path(partition: Any) -> str:
    return f"batch-1/part-{uuid.uuid4().hex}.parquet"


def delta_table(directory: str, parts: Sequence[list[dict[str, Any]]]) -> deltalake.DeltaTable:
    table = deltalake.DeltaTable.create(directory, deltalake.Schema.from_arrow(COLUMNS))
    layout = FileLayout(COLUMNS, options={"row_group_rows": 3})
    files = [file for rows in parts for file in written(rows, ObjectFiles(directory, {}), layout, new_path)]
    actions: list[AddAction | RemoveAction] = [AddAction(**add_action(file)) for file in files]
    table.create_write_transaction(actions, mode="append", schema=table.schema(), partition_by=[])
    return deltalake.DeltaTable(directory)


def iceberg_table(directory: str, parts: Sequence[list[dict[str, Any]]]) -> Table:
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{directory}/c.db", warehouse=f"file://{directory}/lake")
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", COLUMNS, properties={"write.parquet.row-group-limit": "3"})
    shape = shape_of(table)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for rows in parts:
            for file in written(
                rows,
                IcebergStorage.of(table),
                shape.layout,
                partial(shape.path, "batch-1"),
            ):
                entry = shape.from_json(shape.to_json(file))
                assert entry is not None
                append.append_data_file(entry)
    return table


@OF_BATCHES
@given(st.lists(FILE, min_size=1, max_size=3), st.sampled_from(sorted(VALUES)), st.integers(0, 23))
def test_arrow_datasets_of_delta_find_all_rows(parts: list[list[dict[str, Any]]], name: str, chosen: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        dataset = delta_table(directory, parts).to_pyarrow_dataset()
        everything = dataset.to_table()
        for name, (kind, _) in VALUES.items():
            column = ds.field(name)
            value = value_of(parts, name, chosen)
            conditions = {name: compare(column, pa.scalar(value, kind)) for name, compare in OPERATORS.items()}
            # Arrow simplifies comparisons with NaN and infinities wrongly.
            if value is None or (isinstance(value, float) and not math.isfinite(value)):
                conditions = {"valid": column.is_valid()}
            for sign, condition in conditions.items():
                expected = everything.filter(condition).num_rows
                assert dataset.to_table(filter=condition).num_rows == expected, (name, sign, value)


@OF_BATCHES
@given(st.lists(FILE, min_size=1, max_size=3), st.integers(0, 23))
def test_datafusion_on_delta_finds_all_rows(parts: list[list[dict[str, Any]]], chosen: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        engine = deltalake.QueryBuilder().register("orders", delta_table(directory, parts))
        for name, (kind, _) in VALUES.items():
            value = value_of(parts, name, chosen)
            for condition in sql_conditions(name, kind, value, datafusion_literal(value, kind)):
                # The second one is too difficult for it to skip files.
                unskipped = f"CASE WHEN {condition} THEN random() >= 0 ELSE false END"
                counts = [f"(SELECT count(*) FROM orders WHERE {each})" for each in (condition, unskipped)]
                found = pa.table(engine.execute(f"SELECT {counts[0]} = {counts[1]} AS same").read_all())
                assert found["same"].to_pylist() == [True], condition


@OF_BATCHES
@given(st.lists(FILE, min_size=1, max_size=3), st.integers(0, 23))
def test_readers_of_plain_files_find_all_rows(parts: list[list[dict[str, Any]]], chosen: int) -> None:
    layout = FileLayout(COLUMNS, options={"row_group_rows": 3})
    with tempfile.TemporaryDirectory() as directory, duckdb.connect() as engine:
        storage = ObjectFiles(directory, {})
        for rows in parts:
            written(rows, storage, layout, new_path)
        engine.execute("SET TimeZone = 'UTC'")
        engine.execute(f"CREATE VIEW files AS SELECT * FROM read_parquet('{directory}/**/*.parquet')")
        dataset, everything = ds.dataset(directory), pa.Table.from_batches([batch_of(rows) for rows in parts])
        engine.register("everything", everything)
        for name, (kind, _) in VALUES.items():
            value = value_of(parts, name, chosen)
            if pa.types.is_floating(kind) and pc.any(pc.is_nan(everything[name])).as_py():
                continue  # DuckDB and Arrow take Parquet's bounds, which leave NaN out, for those of all values
            for condition in sql_conditions(name, kind, value, duckdb_literal(value, kind)):
                counts = [f"(SELECT count(*) FROM {each} WHERE {condition})" for each in ("files", "everything")]
                assert engine.sql(f"SELECT {counts[0]} = {counts[1]}").fetchall() == [(True,)], condition
            if value is not None and not (isinstance(value, float) and not math.isfinite(value)):
                for compare in OPERATORS.values():
                    predicate = compare(ds.field(name), pa.scalar(value, kind))
                    assert dataset.count_rows(filter=predicate) == everything.filter(predicate).num_rows, predicate


def sql_conditions(name: str, kind: pa.DataType, value: Any, literal: str) -> list[str]:
    """Return conditions of a column with a value that some row has."""
    name = f'"{name}"'
    conditions = [f"{name} IS NULL", f"{name} IS NOT NULL"]
    # Parquet's own statistics leave NaN out, to which nothing else is comparable.
    numbers = f" AND NOT isnan({name})" if pa.types.is_floating(kind) else ""
    if numbers:
        conditions.append(f"isnan({name})")
    if value is not None and not (numbers and math.isnan(value)):
        conditions += [f"{name} {sign} {literal}{numbers}" for sign in ("=", ">=", "<=", ">", "<")]
    return conditions


def datafusion_literal(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    names = {pa.float64(): "Float64", pa.float32(): "Float32", pa.date32(): "Date32", pa.int64(): "Int64"}
    if pa.types.is_decimal(kind):
        name = f"Decimal128({kind.precision}, {kind.scale})"
    elif pa.types.is_timestamp(kind):
        zone = "None" if kind.tz is None else 'Some("UTC")'
        name = f"Timestamp(Microsecond, {zone})"
    else:
        name = names.get(kind, "")
    return f"arrow_cast('{value}', '{name}')" if name else f"'{value}'" if isinstance(value, str) else str(value)


def duckdb_literal(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, bytes):
        return f"from_hex('{value.hex()}')"
    if isinstance(value, datetime):
        value = value.replace(tzinfo=None)
        return f"CAST('{value}' AS {'TIMESTAMP' if kind.tz is None else 'TIMESTAMPTZ'})"
    names = {pa.float64(): "DOUBLE", pa.float32(): "FLOAT", pa.date32(): "DATE", pa.int64(): "BIGINT"}
    name = f"DECIMAL({kind.precision}, {kind.scale})" if pa.types.is_decimal(kind) else names.get(kind)
    return f"'{value}'" if name is None and isinstance(value, str) else f"CAST('{value}' AS {name or 'BOOLEAN'})"


@OF_BATCHES
@given(st.lists(FILE, min_size=1, max_size=3), st.sampled_from(sorted(VALUES)), st.integers(0, 23))
def test_pyiceberg_finds_all_rows(parts: list[list[dict[str, Any]]], name: str, chosen: int) -> None:
    predicates = {
        "==": iceberg.EqualTo,
        ">=": iceberg.GreaterThanOrEqual,
        "<=": iceberg.LessThanOrEqual,
        ">": iceberg.GreaterThan,
        "<": iceberg.LessThan,
    }
    with tempfile.TemporaryDirectory() as directory:
        table = iceberg_table(directory, parts)
        everything = table.scan().to_arrow()
        kind = VALUES[name][0]
        value = value_of(parts, name, chosen)
        column = everything[name]
        if value is None:
            found = table.scan(iceberg.IsNull(name)).to_arrow().num_rows  # type: ignore[call-arg,arg-type]
            assert found == column.null_count, name
        elif isinstance(value, float) and math.isnan(value):
            # Arrow skips row groups by Parquet's statistics, which leave NaN out: here, only files count.
            tasks = table.scan(iceberg.IsNaN(iceberg.Reference(name))).plan_files()  # type: ignore[call-arg]
            read = [pq.read_table(task.file.file_path.removeprefix("file://"))[name] for task in tasks]
            found = sum(pc.sum(pc.is_nan(values)).as_py() or 0 for values in read)
            assert found == pc.sum(pc.is_nan(column)).as_py(), name
        elif name == "small" and isinstance(value, float) and math.isinf(value):
            return  # pyiceberg takes infinity for a number that no FLOAT has
        else:
            for sign, predicate in predicates.items():
                compare = OPERATORS[sign]
                expected = everything.filter(compare(ds.field(name), pa.scalar(value, kind))).num_rows
                condition = predicate(name, as_literal(value))
                assert table.scan(condition).to_arrow().num_rows == expected, (name, sign, value)


def value_of(parts: Sequence[list[dict[str, Any]]], name: str, chosen: int) -> Any:
    """Return a value of a column that some row has."""
    values = [row[name] for rows in parts for row in rows]
    return values[chosen % len(values)]


def as_literal(value: Any) -> Any:
    """Return a value in a form that pyiceberg takes for a literal."""
    if isinstance(value, datetime):
        return value.isoformat()
    return value.isoformat() if isinstance(value, date) else literal(value)


@pytest.mark.parametrize("text", ["é" * 5000, "\U0010ffff" * 5000], ids=["long", "greatest"])
def test_bounds_hold_for_row_groups_in_which_parquet_has_none(tmp_path: Path, text: str) -> None:
    """Parquet has no bounds of a row group with a text of more than 4096 bytes."""
    texts = ["a1", "a2", "a3", "b1", "b2", text]
    table = iceberg_table(str(tmp_path), [[dict.fromkeys(VALUES) | {"text": each} for each in texts]])

    assert table.scan("text >= 'b1'").to_arrow()["text"].to_pylist() == ["b1", "b2", text]
    assert table.scan("text = 'b2'").to_arrow().num_rows == 1


def test_a_delta_file_with_nan_or_infinity_has_bounds(tmp_path: Path) -> None:
    parts = [[math.nan, 1.0], [math.nan], [math.inf, 2.0], [-math.inf], [3.0]]
    rows = [[dict.fromkeys(VALUES) | {"number": each} for each in numbers] for numbers in parts]

    actions = pa.table(delta_table(str(tmp_path), rows).get_add_actions(flatten=True))

    found = sorted(zip(actions["min.number"].to_pylist(), actions["max.number"].to_pylist(), strict=True))
    infinity = math.inf
    assert found == [(-infinity, -infinity), (-infinity, infinity), (-infinity, infinity), (2.0, infinity), (3.0, 3.0)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("at", LAST.replace(tzinfo=UTC)),
        ("local", LAST),
        ("text", "é" * 5000),
        ("text", "\U0010ffff" * 33),
        ("text", "a" * 32 + "\U0010ffff" * 3 + "a"),
        ("number", math.inf),
    ],
    ids=["instant", "local", "long", "greatest", "greatest_within", "infinity"],
)
def test_a_delta_file_with_the_last_value_of_a_type_is_read(tmp_path: Path, name: str, value: Any) -> None:
    """Beside a file that has bounds of the column."""
    others = {"at": datetime(2026, 1, 1, tzinfo=UTC), "local": datetime(2026, 1, 1), "text": "b", "number": 1.0}
    rows = [[dict.fromkeys(VALUES) | {name: each}] for each in (value, others[name])]

    dataset = delta_table(str(tmp_path), rows).to_pyarrow_dataset()

    assert dataset.to_table(filter=ds.field(name) == pa.scalar(value, VALUES[name][0])).num_rows == 1


def test_bounds_of_row_groups_do_not_hold_for_others(tmp_path: Path) -> None:
    """What is in lists is not measured: where Parquet has no bounds of a row group, the file has none."""
    columns = pa.schema([("texts", pa.list_(pa.string()))])
    rows = pa.RecordBatch.from_pylist([{"texts": ["b"]}, {"texts": ["a" * 5000, None]}], columns)
    layout = FileLayout(columns, options={"row_group_rows": 1})

    (file,) = write_data_files(ObjectFiles(str(tmp_path), {}), [rows], layout, lambda _: "file.parquet")

    (texts,) = file.columns
    assert (texts.values, texts.nulls, texts.least, texts.greatest) == (3, 1, None, None)
