"""What a row holds is what another reader finds in the table, or its record is refused: all types, at their limits and
beyond.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeltaTable, IcebergTable, ParquetFiles
from airflow_kafka_offsets.exceptions import RecordError
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS, parse_ddl
from airflow_kafka_offsets.sinks.table import Table
from tests.support.iceberg import iceberg_sink
from tests.support.lake import publish_rows

LAST = datetime(9999, 12, 31, 23, 59, 59, 999999)

# The first and the last value of each type that can be declared, and others that are special.
LIMITS: dict[str, list[Any]] = {
    "BOOLEAN": [True, False],
    "TINYINT": [-(2**7), 2**7 - 1],
    "SMALLINT": [-(2**15), 2**15 - 1],
    "INT": [-(2**31), 2**31 - 1],
    "BIGINT": [-(2**63), 2**63 - 1],
    "FLOAT": [3.4028234663852886e38, 1.401298464324817e-45, math.nan, -0.0, -math.inf],
    "DOUBLE": [1.7976931348623157e308, 5e-324, math.nan, -0.0, math.inf],
    "DECIMAL(38,0)": [Decimal("9" * 38), Decimal("-" + "9" * 38)],
    "DECIMAL(38,38)": [Decimal("0." + "9" * 38), Decimal("-0." + "0" * 37 + "1")],
    "DECIMAL(9,2)": [Decimal("9999999.99"), Decimal("-0.01")],
    "STRING": ["", "\0", "\U0010ffff", "x" * 70_000, "\ud7ff\ue000"],
    "BINARY": [b"", b"\0\xff", b"\xff" * 70_000],
    "DATE": [date(1, 1, 1), date(9999, 12, 31)],
    "TIMESTAMP": [datetime(1, 1, 1, tzinfo=UTC), LAST.replace(tzinfo=UTC)],
    "TIMESTAMP_NTZ": [datetime(1, 1, 1), LAST],
    "ARRAY<DECIMAL(38,38)>": [[], [None], [Decimal("0." + "9" * 38)]],
    "ARRAY<STRUCT<a: TIMESTAMP, b: ARRAY<STRING>>>": [[], [None], [{"a": LAST.replace(tzinfo=UTC), "b": [None, ""]}]],
    "STRUCT<a: BIGINT, b: STRUCT<c: STRING>>": [{"a": None, "b": None}, {"a": 1, "b": {"c": ""}}],
}

COLUMNS = parse_ddl(", ".join(f"c{number} {ddl}" for number, ddl in enumerate(LIMITS)), binary=True)


def rows(values: dict[str, pa.Array]) -> pa.RecordBatch:
    count = len(next(iter(values.values())))
    places = [["orders"] * count, [0] * count, list(range(count)), [None] * count]
    arrays = [pa.array(each, field.type) for each, field in zip(places, ORIGIN_COLUMNS, strict=True)]
    return pa.RecordBatch.from_arrays([*values.values(), *arrays], [*values, *ORIGIN_COLUMNS.names])


@pytest.fixture(params=["delta", "iceberg", "parquet"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return connected(request.param, tmp_path)


def connected(kind: str, directory: Path, **options: Any) -> Table:
    engine = sa.create_engine("sqlite://", poolclass=sa.NullPool)
    if kind == "iceberg":
        return iceberg_sink("sql", directory, **options).connect(engine)
    uri = f"{directory}/lake"
    return (DeltaTable(uri, **options) if kind == "delta" else ParquetFiles(uri, **options)).connect(engine)


def readers(table: Table) -> list[Callable[[], pa.Table]]:
    """Return programs that read all rows."""
    sink: Any = table.sink
    if isinstance(sink, DeltaTable):
        delta = deltalake.DeltaTable(sink.uri)
        query = deltalake.QueryBuilder().register("orders", delta)
        return [
            lambda: pa.table(delta.to_pyarrow_table()),
            lambda: pa.table(query.execute("SELECT * FROM orders").read_all()),
        ]
    if isinstance(sink, ParquetFiles):
        return [lambda: read_by_duckdb(f"{sink.uri}/**/[0-9]*.parquet")]
    connected_table: Any = table
    snapshot = connected_table.snapshot()
    return [lambda: snapshot.table.scan().to_arrow()]


def read_by_duckdb(files: str) -> pa.Table:
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        found = engine.sql(f"FROM read_parquet('{files}')")
        assert found is not None
        return found.to_arrow_table()


def read(reader: Callable[[], pa.Table], columns: pa.Schema) -> list[dict[str, Any]]:
    wanted = pa.schema([*columns, ORIGIN_COLUMNS.field("_kafka_offset")])
    found = reader().select(wanted.names).cast(wanted)
    plain: list[dict[str, Any]] = found.sort_by("_kafka_offset").select(columns.names).to_pylist()
    return plain


def test_values_at_the_limits_of_their_types_are_read_back(table: Table, tmp_path: Path) -> None:
    most = max(map(len, LIMITS.values()))
    values = {
        field.name: pa.array([*each, *[None] * (most - len(each) + 1)], field.type)
        for field, each in zip(COLUMNS, LIMITS.values(), strict=True)
    }
    batch = rows(values)

    publish_rows(table, batch, tmp_path)

    expected = batch.select(COLUMNS.names).to_pylist()
    if isinstance(table.sink, IcebergTable):  # pyiceberg reads a list of structs that is null as an empty one
        lists = COLUMNS.names[list(LIMITS).index("ARRAY<STRUCT<a: TIMESTAMP, b: ARRAY<STRING>>>")]
        expected = [each | {lists: each[lists] or []} for each in expected]
    for reader in readers(table):
        assert repr(read(reader, COLUMNS)) == repr(expected)  # NaN is unlike itself, and -0.0 like 0.0


@pytest.mark.parametrize("term", ["day(at)", "hour(at)", "month(day)", "truncate(3, text)", "bucket(4, data)", "data"])
def test_values_at_the_limits_are_in_partitions_of_iceberg(tmp_path: Path, term: str) -> None:
    columns = parse_ddl("at TIMESTAMP, day DATE, text STRING, data BINARY", binary=True)
    kinds = ["TIMESTAMP", "DATE", "STRING", "BINARY"]
    values = {
        name: pa.array([*LIMITS[kind][:2], None], columns.field(name).type)
        for name, kind in zip(columns.names, kinds, strict=True)
    }
    table = connected("iceberg", tmp_path, partition_by=(term,))

    publish_rows(table, rows(values), tmp_path)

    (reader,) = readers(table)
    assert read(reader, columns) == rows(values).select(columns.names).to_pylist()


def second_is_refused(table: Table, values: dict[str, pa.Array], staging: Path, reason: str) -> None:
    with pytest.raises(RecordError, match=reason) as raised:
        publish_rows(table, rows(values), staging)
    assert raised.value.offset == 1


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])
@pytest.mark.parametrize(
    "text",
    ["a\0b", "y" * 253, "y" * 254, "é" * 200, "/" * 100, "__HIVE_DEFAULT_PARTITION__"],
    ids=["nul", "253", "254", "é", "/", "null"],
)
def test_a_text_that_is_no_name_of_a_directory_is_kept_or_refused(tmp_path: Path, kind: str, text: str) -> None:
    """Paths of plain files alone say the values of their partition columns."""
    table = connected(kind, tmp_path, partition_by=("x",))
    values = {"x": pa.array(["a", text])}

    if kind == "parquet" and len(text) in (254, 200, 100, 26):
        second_is_refused(table, values, tmp_path, r"column 'x' is the name of a directory, which (has 255|.* null)")
        return
    publish_rows(table, rows(values), tmp_path)

    for reader in readers(table):
        assert read(reader, pa.schema([("x", pa.string())])) == [{"x": "a"}, {"x": text}]


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])
@pytest.mark.parametrize(("columns", "text"), [(4, "y" * 245), (40, "é/" * 8), (40, "%" * 40)])
def test_texts_that_are_too_long_a_path_together_are_kept_or_refused(
    tmp_path: Path, kind: str, columns: int, text: str
) -> None:
    """A name of an object has 1,024 bytes at most, and each of these is short enough for a directory."""
    names = [f"x{number}" for number in range(columns)]
    table = connected(kind, tmp_path, partition_by=tuple(names))
    values = {name: pa.array(["a", text]) for name in names}

    if kind == "parquet":
        reason = r"columns 'x0', 'x1', .* are names of directories, whose path is too long"
        second_is_refused(table, values, tmp_path, reason)
        return
    publish_rows(table, rows(values), tmp_path)

    paths = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")]
    assert paths
    assert max(len(path.encode()) for path in paths) < 1_000
    for reader in readers(table):
        assert (
            read(reader, pa.schema([(name, pa.string()) for name in names])) == rows(values).select(names).to_pylist()
        )


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_value_of_a_partition_is_short_because_metadata_holds_it_for_each_file(tmp_path: Path, kind: str) -> None:
    table = connected(kind, tmp_path, partition_by=("x", "y"))

    def pair(x: str, y: str) -> dict[str, pa.Array]:
        return {"x": pa.array(["a", x]), "y": pa.array(["b", y])}

    for x, y in [("x" * 2_049, "y"), ("é" * 512, "y" * 1_025)]:
        second_is_refused(table, pair(x, y), tmp_path, "the values of x, y, .* have more than 2,048 bytes together")
    for batch in (3, 4):
        publish_rows(table, rows(pair("é" * 512, "y" * 1_024)), tmp_path, batch)
    for reader in readers(table):
        assert reader().num_rows == 4


@pytest.mark.parametrize(("columns", "mode"), [(1, "full"), (1, "truncate(1000000)"), (40, "full")])
def test_metadata_with_texts_that_compress_well_can_be_read_again(tmp_path: Path, columns: int, mode: str) -> None:
    table = connected("iceberg", tmp_path, properties={"write.metadata.metrics.default": mode})
    values = {f"x{number}": pa.array(["x" * (1 << 20) if columns == 1 else "x" * 20_000]) for number in range(columns)}
    for batch in range(1, 4):
        publish_rows(table, rows(values), tmp_path, batch)
    (reader,) = readers(table)
    assert reader().num_rows == 3


FAR = 10_000 * 366 * 86_400_000_000

INSTANT = pa.timestamp("us", "UTC")


def instants(kind: pa.DataType = INSTANT) -> pa.Array:
    """Two instants, of which the second one is after the year 9999."""
    return pa.array([0, FAR], pa.int64()).cast(kind)


@pytest.mark.parametrize(
    "values",
    [
        instants(),
        instants(pa.timestamp("us")),
        pa.array([0, 3_000_000], pa.int32()).cast(pa.date32()),
        pa.StructArray.from_arrays([instants()], ["x"]),
        pa.ListArray.from_arrays([0, 1, 2], instants()),
        pa.LargeListArray.from_arrays([0, 1, 2], pa.StructArray.from_arrays([instants()], ["x"])),
    ],
    ids=lambda values: str(values.type),
)
def test_values_beyond_the_year_9999_are_refused(table: Table, tmp_path: Path, values: pa.Array) -> None:
    with pytest.raises(RecordError, match="it lies outside of the years 1 to 9999") as raised:
        publish_rows(table, rows({"x": values}), tmp_path)

    assert raised.value.offset == 1


NARROW = [
    (pa.int32(), pa.array([-(2**31), -(2**31) - 1], pa.int64())),
    (pa.decimal128(6, 2), pa.array([Decimal("9999.99"), Decimal("10000.00")], pa.decimal128(9, 2))),
    (pa.decimal128(6, 2), pa.array([Decimal("0.110"), Decimal("0.111")], pa.decimal128(9, 3))),
    (pa.decimal128(6, 2), pa.array([Decimal("9999.9"), Decimal("99999.9")], pa.decimal128(6, 1))),
]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize(("column", "values"), NARROW, ids=str)
def test_values_beyond_a_column_are_refused(tmp_path: Path, kind: str, column: pa.DataType, values: pa.Array) -> None:
    table = connected(kind, tmp_path)
    table.prepare(pa.schema([("x", column), *ORIGIN_COLUMNS]))

    with pytest.raises(RecordError, match="does not fit into") as raised:
        publish_rows(table, rows({"x": values}), tmp_path)
    assert raised.value.offset == 1

    publish_rows(table, rows({"x": values.slice(0, 1)}), tmp_path)
    assert readers(table)[0]()["x"].to_pylist() == values.slice(0, 1).to_pylist()
