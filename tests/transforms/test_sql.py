"""What `Sql` makes of a batch: names, types, nulls, overflow, and records that it cannot transform."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_kafka_offsets.exceptions import ConfigurationError, TransformError
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS, parse_ddl, spark_ddl
from airflow_kafka_offsets.formats.record_format import BadRecord
from airflow_kafka_offsets.transforms.sql import Sql
from airflow_kafka_offsets.transforms.transform import Transformed

DECLARED = parse_ddl(
    "id BIGINT, orderId STRING, amount DECIMAL(10,2), ratio DOUBLE, created TIMESTAMP, local TIMESTAMP_NTZ, day DATE, "
    "tags ARRAY<INT>, place STRUCT<town: STRING>, small TINYINT, raw BINARY",
    binary=True,
)
COLUMNS = pa.schema([*DECLARED, *ORIGIN_COLUMNS])
ORIGIN = ORIGIN_COLUMNS.names
AT = datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


def batch(*records: dict[str, Any]) -> pa.RecordBatch:
    origin = [
        {"_kafka_topic": "orders", "_kafka_partition": 1, "_kafka_offset": 10 + row, "_kafka_timestamp": AT}
        for row in range(len(records))
    ]
    return pa.RecordBatch.from_pylist([a | b for a, b in zip(records, origin, strict=True)], schema=COLUMNS)


def transformed(select: str, *records: dict[str, Any], where: str = "") -> Transformed:
    sql = Sql(f"SELECT {select} FROM records {where}").prepared(COLUMNS)
    result = sql.function(COLUMNS)(batch(*records))
    assert result.rows.schema == sql.columns
    return result


def values(select: str, *records: dict[str, Any], where: str = "") -> list[dict[str, Any]]:
    rows, bad = transformed(select, *records, where=where)
    assert bad == []
    return [{name: value for name, value in row.items() if name not in ORIGIN} for row in rows.to_pylist()]


def test_the_origin_columns_are_kept_without_being_selected() -> None:
    rows, _ = transformed(
        "id, amount * 2 AS double", {"id": 1, "amount": Decimal("1.50")}, {"id": 2}, where="WHERE id = 2"
    )
    assert rows.to_pylist() == [
        {
            "id": 2,
            "double": None,
            "_kafka_topic": "orders",
            "_kafka_partition": 1,
            "_kafka_offset": 11,
            "_kafka_timestamp": AT,
        }
    ]


@pytest.mark.parametrize(
    "select", ["*", "r.*", "_kafka_offset, *  EXCLUDE (_kafka_offset, _kafka_topic)", "id, _kafka_offset AS at"]
)
def test_each_origin_column_is_there_once(select: str) -> None:
    rows, _ = transformed(select, {"id": 1}, where="AS r")
    assert [name for name in rows.schema.names if name in ORIGIN].count("_kafka_offset") == 1
    assert set(ORIGIN) <= set(rows.schema.names)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 'eu' AS region -- of one order\nFROM records",
        "SELECT 'eu' AS region --\n-- FROM nowhere\nFROM records -- all of them",
        "SELECT 'eu' AS region /* -- of\none */ FROM records",
        "SELECT 'eu' -- where\nAS region\r\nFROM records WHERE id > 0 -- FROM",
    ],
)
def test_a_comment_hides_nothing_of_what_is_added(query: str) -> None:
    sql = Sql(query).prepared(COLUMNS)
    rows, bad = sql.function(COLUMNS)(batch({"id": 1}, {"id": 2}))

    assert not bad
    assert rows.select(["region", "_kafka_offset"]).to_pylist() == [
        {"region": "eu", "_kafka_offset": 10},
        {"region": "eu", "_kafka_offset": 11},
    ]


def test_what_datafusion_reads_must_select_from_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_kafka_offsets.transforms.sql_text.resolved", lambda *_: "SELECT 1 AS n")
    with pytest.raises(ConfigurationError, match="does something else than to select from one batch: EmptyRelation"):
        Sql("SELECT 1 AS n FROM records").prepared(COLUMNS)


def test_names_are_compared_without_case_and_written_as_declared_or_as_they_are_named() -> None:
    assert values('ORDERID, "OrderId" AS Second, orderid AS "third one", records.OrderID AS x', {"orderId": "a"}) == [
        {"orderId": "a", "Second": "a", "third one": "a", "x": "a"}
    ]


def test_nulls_are_those_of_sql() -> None:
    records: list[dict[str, Any]] = [{"id": 1, "ratio": 1.0}, {"id": 2}, {"id": 3, "ratio": float("nan")}]
    assert values("id", *records, where="WHERE ratio = 1.0 OR ratio <> 1.0") == [{"id": 1}, {"id": 3}]
    assert values("id, ratio IS NULL AS missing, coalesce(ratio, 0) AS r", records[1]) == [
        {"id": 2, "missing": True, "r": 0.0}
    ]


def test_no_row_may_be_left() -> None:
    assert values("id", {"id": 1}, where="WHERE id > 1") == []


@pytest.mark.parametrize(
    ("expression", "ddl", "value"),
    [
        ("amount * amount", "DECIMAL(21,4)", Decimal("2.2500")),
        ("amount / 7", "DECIMAL(14,6)", Decimal("0.214285")),
        ("amount * 2.5", "DOUBLE", 3.75),
        ("CAST(amount AS DECIMAL(38,10))", "DECIMAL(38,10)", Decimal("1.5000000000")),
        ("id + small", "BIGINT", 8),
        ("small + small", "TINYINT", 2),
        ("id / 2", "BIGINT", 3),
        ("length(orderId)", "INT", 3),
        ("array_length(tags)", "BIGINT", 2),
        ("tags[2]", "INT", 9),
        ("place.town", "STRING", "Köln"),
        ("'größe'", "STRING", "größe"),
        ("'a\nFROM b'", "STRING", "a\nFROM b"),
        ("arrow_cast(id, 'UInt32')", "BIGINT", 7),
        ("arrow_cast(orderId, 'Utf8View')", "STRING", "a-1"),
        ("arrow_cast(orderId, 'LargeUtf8')", "STRING", "a-1"),
        ("arrow_cast(orderId, 'Dictionary(Int32, Utf8)')", "STRING", "a-1"),
        ("arrow_cast(amount, 'Decimal256(50, 2)')", None, None),
        ("arrow_cast(ratio, 'Float16')", "FLOAT", 0.5),
        ("created", "TIMESTAMP", AT),
        ("date_trunc('day', created)", "TIMESTAMP", datetime(1969, 12, 31, tzinfo=UTC)),
        ("created AT TIME ZONE 'Europe/Berlin'", "TIMESTAMP", AT),
        ("to_timestamp('2026-01-01T00:00:00.123456789')", "TIMESTAMP", datetime(2026, 1, 1, 0, 0, 0, 123_456, UTC)),
        ("local", "TIMESTAMP_NTZ", datetime(2026, 1, 2, 3)),
        ("CAST(created AS DATE)", "DATE", date(1969, 12, 31)),
        ("day", "DATE", date(2026, 2, 3)),
        ("raw", "BINARY", b"\0\xff"),
        ("id > 3", "BOOLEAN", True),
        ("CAST(NULL AS INT)", "INT", None),
        ("NULL", None, None),
        ("created - local", None, None),
        ("CAST('12:00' AS TIME)", None, None),
    ],
)
def test_types_become_those_of_spark(expression: str, ddl: str | None, value: Any) -> None:
    record = {
        "id": 7, "orderId": "a-1", "amount": Decimal("1.50"), "ratio": 0.5, "created": AT,
        "local": datetime(2026, 1, 2, 3), "day": date(2026, 2, 3), "tags": [1, 9], "place": {"town": "Köln"},
        "small": 1, "raw": b"\0\xff",
    }  # fmt: skip
    if ddl is None:
        with pytest.raises(TransformError, match=r"column 'x'.*cast it"):
            transformed(f"{expression} AS x", record)
        return
    rows, _ = transformed(f"{expression} AS x", record)
    assert spark_ddl(pa.schema([rows.schema.field("x")])) == f"`x` {ddl}"
    assert rows.column("x").to_pylist() == [value]


def test_whole_numbers_wrap_around_and_decimals_do_not() -> None:
    assert values("id + 1 AS x", {"id": 2**63 - 1}) == [{"x": -(2**63)}]
    assert values("CAST(id AS DECIMAL(38,0)) + 1 AS x", {"id": 2**63 - 1}) == [{"x": Decimal(2**63)}]
    _, bad = transformed(
        "CAST(id AS DECIMAL(38,0)) * CAST('1' || repeat('0', 30) AS DECIMAL(38,0)) AS x", {"id": 10**9}
    )
    assert [record.reason.partition(",")[0] for record in bad] == ["Arithmetic overflow"]


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("result", ["{}", "named_struct('a', {})", "make_array({})"])
def test_a_decimal_of_39_digits_is_a_bad_record(sign: str, result: str) -> None:
    # It has room in the 128 bits in which datafusion computes.
    product = f"{sign}CAST('1' || repeat('0', 37) AS DECIMAL(38,0)) * CAST(id AS DECIMAL(2,0))"
    select = f"{result.format(product)} AS x"
    rows, bad = transformed(select, {"id": 9}, {"id": 10}, {"id": 17}, {"id": 1})
    assert rows.column("_kafka_offset").to_pylist() == [10, 13]
    assert bad_rows(bad) == [1, 2]
    assert {record.reason.partition(",")[0] for record in bad} == {"Arithmetic overflow of a decimal"}


def bad_rows(bad: Sequence[BadRecord]) -> list[int]:
    return [record.row for record in bad]


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_the_records_that_it_raises_for_are_found(count: int) -> None:
    records = [{"id": number % 7, "orderId": "x"} for number in range(count)]
    rows, bad = transformed("700 / id AS x", *records)
    assert bad_rows(bad) == [row for row in range(count) if row % 7 == 0]
    assert rows.column("_kafka_offset").to_pylist() == [10 + row for row in range(count) if row % 7]
    assert {record.part for record in bad} == {"transform"}


@pytest.mark.parametrize("place", [0, 50, 199])
def test_bytes_that_are_no_text_are_one_bad_record(place: int) -> None:
    records = [{"raw": b"%d" % number} for number in range(200)]
    records[place] = {"raw": b"\xff"}
    rows, bad = transformed("CAST(raw AS VARCHAR) AS x", *records)
    assert bad_rows(bad) == [place]
    assert rows.column("x").to_pylist() == [str(number) for number in range(200) if number != place]


@pytest.mark.parametrize(
    ("select", "record", "reason"),
    [
        ("1 / id AS x", {"id": 0}, "Divide by zero, in Sql("),
        ("CAST(orderId AS INT) AS x", {"orderId": "secret to type Hidden"}, "Cast error, to Int32, in Sql("),
        ("CAST(id AS INT) AS x", {"id": 4711 << 40}, "Cast error, to Int32, in Sql("),
        ("CAST(orderId AS TIMESTAMP) AS x", {"orderId": "secret"}, "Parser error, in Sql("),
        (
            "arrow_cast(arrow_cast(id, 'UInt64') + arrow_cast(9223372036854775807, 'UInt64'), 'UInt64') AS x",
            {"id": 4711},
            "the rec",
        ),
    ],
)
def test_the_reason_has_no_value_of_the_record(select: str, record: dict[str, Any], reason: str) -> None:
    _, (bad,) = transformed(select, record)
    assert bad.reason.startswith(reason)
    assert not any(
        word in bad.reason.partition(", in Sql(")[0] for word in ("secret", "Hidden", "4711", str(4711 << 40))
    )


@pytest.mark.parametrize(
    ("select", "error"),
    [
        ("nowhere", "No field named nowhere"),
        ("uper(orderId) AS x", "Invalid function 'uper'"),
        ("id, ID", "unique|ambiguous"),
        ("amount + orderId AS x, place + 1 AS y", "Cannot coerce|coerce"),
    ],
)
def test_invalid_sql_is_refused_before_reading(select: str, error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        Sql(f"SELECT {select} FROM records").prepared(COLUMNS)


def test_a_name_twice_is_refused() -> None:
    with pytest.raises(TransformError, match="'ID' twice"):
        Sql("SELECT id, small AS ID FROM records").prepared(COLUMNS)


def test_without_datafusion_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datafusion", None)
    with pytest.raises(
        ConfigurationError, match=r"extra 'airflow-kafka-offsets\[sql\]' on the worker, and datafusion where"
    ):
        Sql("SELECT id FROM records").prepared(COLUMNS)


POINT = pa.struct([("x", pa.int64()), ("deep", pa.struct([("y", pa.string())]))])


def points() -> pa.Array:
    """Structs whose fields have values where they are null themselves."""
    deep = pa.StructArray.from_arrays([pa.array(["a", "b", "c"])], ["y"], mask=pa.array([False, True, False]))
    fields = [pa.array([1, 2, 3]), deep]
    return pa.StructArray.from_arrays(fields, fields=list(POINT), mask=pa.array([True, False, False]))


def hidden(kind: str) -> pa.Array:
    found = points()
    if kind == "struct":
        return found
    offsets = pa.array([0, 2, 2, 3], pa.int32())
    if kind == "list":
        return pa.ListArray.from_arrays(offsets, found)
    return pa.MapArray.from_arrays(offsets, pa.array(["k", "l", "k"]), found)


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize(
    ("kind", "place"), [("struct", "column"), ("list", "column[1]"), ("list", "column[2]"), ("map", "column['k']")]
)
def test_a_field_of_a_null_struct_is_null(kind: str, place: str, sliced: bool) -> None:
    """Readers of Protobuf leave zeros and empty texts there."""
    array = hidden(kind)
    plain = batch(*[{"id": row} for row in range(3)])
    rows = plain.append_column("column", array)
    if sliced:
        twice = [pa.concat_arrays([column, column]) for column in rows.columns]
        rows = pa.RecordBatch.from_arrays(twice, schema=rows.schema).slice(2, 3)
    sql = Sql(f"SELECT {place}['x'] AS x, {place}['deep']['y'] AS y FROM records").prepared(rows.schema)

    found, bad = sql.function(rows.schema)(rows)

    assert bad == []
    expected = []
    for value in rows.column("column").to_pylist():
        if kind == "list":
            number = int(place[-2]) - 1
            value = value[number] if number < len(value) else None
        elif kind == "map":
            value = dict(value).get("k")
        expected.append((value and value["x"], value and value["deep"] and value["deep"]["y"]))
    assert [(row["x"], row["y"]) for row in found.to_pylist()] == expected


def test_a_record_that_fails_beside_structs_is_alone_bad() -> None:
    rows = batch(*[{"id": row, "place": {"town": f"t{row}"} if row % 2 else None} for row in range(8)])
    sql = Sql("SELECT id, place['town'] AS town, 100 / (id - 3) AS part FROM records").prepared(COLUMNS)

    found, bad = sql.function(COLUMNS)(rows)

    assert [record.row for record in bad] == [3]
    assert [row["town"] for row in found.to_pylist()] == [None, "t1", None, None, "t5", None, "t7"]
