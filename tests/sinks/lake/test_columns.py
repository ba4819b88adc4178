"""Columns of a table of files that keep every value of the rows, and those that would not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeltaTable, ParquetFiles
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.sinks.delta.columns import delta_schema
from airflow_kafka_offsets.sinks.lake.columns import match
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.writers.table_rows import keeps, with_columns
from tests.support.iceberg import iceberg_sink

DECIMAL = pa.decimal128(10, 2)


@pytest.mark.parametrize(
    ("column", "rows"),
    [
        (pa.int64(), pa.int32()),
        (pa.float64(), pa.float32()),
        (pa.decimal128(20, 2), DECIMAL),
        (pa.large_string(), pa.string()),
        (pa.string(), pa.string_view()),
        (pa.binary(), pa.large_binary()),
        (pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC")),
        (pa.timestamp("us", "+00:00"), pa.timestamp("us", "UTC")),
        (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int32())])),
        (pa.large_list(pa.int64()), pa.list_(pa.int32())),
        (pa.map_(pa.string(), pa.float64()), pa.map_(pa.string(), pa.float32())),
    ],
    ids=str,
)
def test_a_column_keeps_the_same_values_and_narrower_ones(column: pa.DataType, rows: pa.DataType) -> None:
    assert keeps(column, rows)
    assert keeps(column, column)


@pytest.mark.parametrize(
    ("column", "rows"),
    [
        (pa.int32(), pa.int64()),
        (pa.float32(), pa.float64()),
        (pa.float64(), pa.int64()),
        (DECIMAL, pa.decimal128(10, 3)),
        (pa.decimal128(12, 4), DECIMAL),
        (DECIMAL, pa.int32()),
        (pa.string(), pa.int32()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.timestamp("us"), pa.timestamp("ns")),
        (pa.struct([("a", pa.int64())]), pa.struct([("b", pa.int64())])),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64())])),
        (pa.list_(pa.int32()), pa.list_(pa.int64())),
        (pa.list_(pa.int32()), pa.int32()),
    ],
    ids=str,
)
def test_a_column_that_would_lose_values_does_not_keep_them(column: pa.DataType, rows: pa.DataType) -> None:
    assert not keeps(column, rows)


TABLE = pa.schema([pa.field("id", pa.int32()), pa.field("name", pa.string()), pa.field("_batch_id", pa.int64())])


def test_rows_that_fit_pass() -> None:
    match("t", TABLE, ["_batch_id"], pa.schema([pa.field("id", pa.int32())]))
    match("t", TABLE, ["id"], pa.schema([pa.field("id", pa.int32(), nullable=False)]))


def test_every_fault_is_named() -> None:
    rows = pa.schema([pa.field("id", pa.float64()), pa.field("color", pa.string())])
    with pytest.raises(
        TargetError,
        match=(
            "Table 't' does not fit the rows: column 'id' is INT, the rows hold DOUBLE; it has no column 'color'; "
            "it needs a value for 'name', which the rows do not hold. Correct the declared columns, .* "
            r"ExtraColumns\(on_new_field=\"add\"\) adds"
        ),
    ):
        match("t", TABLE, ["name", "_batch_id"], rows)


@pytest.mark.parametrize(
    ("column", "rows"),
    [
        (pa.field("id", pa.int32(), nullable=False), pa.field("id", pa.int32())),
        (pa.field("id", pa.int16()), pa.field("id", pa.int64())),
        (pa.field("id", pa.decimal128(6, 2)), pa.field("id", pa.decimal128(18, 4))),
    ],
)
def test_column_that_fits_some_values_is_left_to_the_tasks(column: pa.Field, rows: pa.Field) -> None:
    match("t", pa.schema([column]), [] if column.nullable else ["id"], pa.schema([rows]))


def test_a_table_that_grows_lacks_nothing() -> None:
    match("t", TABLE, [], pa.schema([pa.field("color", pa.string())]), may_grow=True)


@pytest.mark.parametrize("existing", [(), ("id",), ("id", "amount")], ids=str)
@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])
def test_names_that_differ_in_case_only_are_refused_before_spark_starts(
    tmp_path: Path, kind: str, existing: tuple[str, ...]
) -> None:
    engine = sa.create_engine("sqlite://", poolclass=sa.NullPool)
    sinks: dict[str, Sink] = {
        "delta": DeltaTable(f"{tmp_path}/lake"),
        "iceberg": iceberg_sink("sql", tmp_path),
        "parquet": ParquetFiles(f"{tmp_path}/lake"),
    }
    table = sinks[kind].connect(engine)
    if existing:
        table.prepare(pa.schema([(name, pa.int64()) for name in existing]))

    rows = pa.schema([("id", pa.int64()), ("amount", pa.int64()), ("Amount", pa.int64())])
    with pytest.raises(TargetError, match="'amount' and 'Amount', whose names differ in case only"):
        table.prepare(rows, may_grow=True)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_field_of_an_older_schema_is_compared_with_the_column_of_its_name(tmp_path: Path, kind: str) -> None:
    engine = sa.create_engine("sqlite://", poolclass=sa.NullPool)
    sinks: dict[str, Sink] = {"delta": DeltaTable(f"{tmp_path}/lake"), "iceberg": iceberg_sink("sql", tmp_path)}
    table = sinks[kind].connect(engine)
    new = pa.field("note", pa.string())
    table.added_check()(new)
    table.prepare(pa.schema([("id", pa.int64())]))

    check = table.added_check()
    for fits in (new, pa.field("id", pa.int32())):
        check(fits)
    with pytest.raises(TargetError, match="column 'id' is BIGINT, the rows hold STRING"):
        check(pa.field("id", pa.string()))
    with pytest.raises(TargetError, match="'id' and 'ID', whose names differ in case only"):
        check(pa.field("ID", pa.int64()))


@pytest.mark.parametrize("make", [lambda kind: pa.struct([("a", kind)]), pa.list_], ids=["objects", "arrays"])
def test_no_table_is_made_that_delta_rs_cannot_open(tmp_path: Path, make: Callable[[pa.DataType], pa.DataType]) -> None:
    table, kind, engine = DeltaTable(f"{tmp_path}/lake"), pa.int64(), sa.create_engine("sqlite://")
    table.connect(engine).prepare(pa.schema([("id", pa.int64())]))
    check, deepest = table.connect(engine).added_check(), 0
    for depth in range(1, 130):
        kind = make(kind)
        with suppress(ConfigurationError):
            check(pa.field("a", kind))
            deepest, found = depth, kind

    assert 38 < deepest < 129
    with pytest.raises(ConfigurationError, match="cannot have column 'a', which is nested too deeply"):
        check(pa.field("a", kind))
    with pytest.raises(ConfigurationError, match="cannot have column 'a', which is nested too deeply"):
        table.connect(engine).prepare(pa.schema([("id", pa.int64()), ("a", kind)]), may_grow=True)
    deltalake.DeltaTable(table.uri).alter.add_columns(list(delta_schema(pa.schema([("a", found)])).fields))
    assert deltalake.DeltaTable(table.uri).version() == 1


def test_a_type_that_delta_lacks_is_refused_in_one_line(tmp_path: Path) -> None:
    nested = pa.schema([("s", pa.struct([("a", pa.int64()), ("A", pa.int64())]))])
    engine = sa.create_engine("sqlite://")

    with pytest.raises(ConfigurationError, match=r"^A Delta table cannot have these columns: .*'A'$"):
        DeltaTable(f"{tmp_path}/lake").connect(engine).prepare(nested)


class CountedNames:
    """Columns that count how often their names are asked for: Arrow makes a list of all of them each time."""

    def __init__(self, columns: Any) -> None:
        self._columns, self.asked = columns, 0

    @property
    def names(self) -> list[str]:
        self.asked += 1
        return list(getattr(self._columns, "schema", self._columns).names)

    @property
    def schema(self) -> CountedNames:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._columns, name)

    def __iter__(self) -> Iterator[pa.Field]:
        return iter(self._columns)


def test_the_names_of_columns_are_not_listed_for_each_column() -> None:
    table = CountedNames(pa.schema([(f"c{number}", pa.int64()) for number in range(50)]))
    match("orders", table, [f"c{number}" for number in range(50)], table)
    assert table.asked < 10

    rows = CountedNames(pa.RecordBatch.from_pylist([{}], schema=pa.schema(list(table))))
    assert with_columns(rows, pa.schema(list(table))).num_rows == 1
    assert rows.asked < 10
