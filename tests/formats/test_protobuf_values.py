"""What a field of a Protobuf message becomes, and what does not fit its column."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats.columns import spark_ddl
from tests.support.protobuf import compiled, decoded, given, known, message_class, own_columns, wire

_IMPORTS = "".join(
    f'import "google/protobuf/{name}.proto";' for name in ("timestamp", "duration", "wrappers", "struct", "any")
)
_REST = "enum E { ZERO = 0; ONE = 1; UNO = 1; option allow_alias = true; } message P { int32 x = 1; string y = 2; }"


def proto3(fields: str) -> str:
    return f'syntax = "proto3"; {_IMPORTS} message M {{ {fields} }} {_REST}'


def proto2(fields: str) -> str:
    return (
        f'syntax = "proto2"; message M {{ {fields} }} enum E {{ TWO = 2; ONE = 1; }} '
        "message P { optional int32 x = 1; }"
    )


def entry(key: Any, value: Any) -> dict[str, Any]:
    return {"key": key, "value": value}


def datum(proto: str, **value: Any) -> bytes:
    found: bytes = message_class(proto, "M")(**value).SerializePartialToString()
    return found


def read(proto: str, *records: bytes, **options: Any) -> list[Any]:
    rows, bad = decoded(given(proto, message="M", **options), records)
    assert not bad, bad
    return [row["a"] for row in own_columns(rows)]


def reason_of(proto: str, record: bytes, **options: Any) -> str:
    _, (bad,) = decoded(given(proto, message="M", **options), [record])
    return bad.reason


P = "STRUCT<`x`: INT, `y`: STRING>"


@pytest.mark.parametrize(
    ("field", "written", "ddl_type", "value", "absent"),
    [
        ("int32 a = 1;", -(2**31), "INT", -(2**31), 0),
        ("sint32 a = 1;", -(2**31), "INT", -(2**31), 0),
        ("sfixed32 a = 1;", -1, "INT", -1, 0),
        ("int64 a = 1;", -(2**63), "BIGINT", -(2**63), 0),
        ("sint64 a = 1;", 2**63 - 1, "BIGINT", 2**63 - 1, 0),
        ("sfixed64 a = 1;", -1, "BIGINT", -1, 0),
        ("uint32 a = 1;", 2**32 - 1, "BIGINT", 2**32 - 1, 0),
        ("fixed32 a = 1;", 2**32 - 1, "BIGINT", 2**32 - 1, 0),
        ("uint64 a = 1;", 2**64 - 1, "DECIMAL(20,0)", Decimal(2**64 - 1), Decimal(0)),
        ("fixed64 a = 1;", 2**64 - 1, "DECIMAL(20,0)", Decimal(2**64 - 1), Decimal(0)),
        ("float a = 1;", 0.5, "FLOAT", 0.5, 0.0),
        ("double a = 1;", 1e308, "DOUBLE", 1e308, 0.0),
        ("bool a = 1;", True, "BOOLEAN", True, False),
        ("string a = 1;", "größer 😀", "STRING", "größer 😀", ""),
        ("bytes a = 1;", b"\0\xff", "BINARY", b"\0\xff", b""),
        ("E a = 1;", 1, "STRING", "ONE", "ZERO"),
        ("E a = 1;", 77, "STRING", "77", "ZERO"),
        ("optional int32 a = 1;", 0, "INT", 0, None),
        ("optional E a = 1;", 0, "STRING", "ZERO", None),
        ("oneof o { string a = 1; int32 b = 2; }", "", "STRING", "", None),
        ("P a = 1;", {"x": 5}, P, {"x": 5, "y": ""}, None),
        ("repeated int32 a = 1;", [1, -2], "ARRAY<INT>", [1, -2], []),
        ("repeated E a = 1;", [1, 5], "ARRAY<STRING>", ["ONE", "5"], []),
        ("repeated P a = 1;", [{"y": "q"}, {}], f"ARRAY<{P}>", [{"x": 0, "y": "q"}, {"x": 0, "y": ""}], []),
        ("map<string, int32> a = 1;", {"k": 0}, "ARRAY<STRUCT<`key`: STRING, `value`: INT>>",
         [{"key": "k", "value": 0}], []),
        ("map<int64, P> a = 1;", {0: {}}, f"ARRAY<STRUCT<`key`: BIGINT, `value`: {P}>>",
         [{"key": 0, "value": {"x": 0, "y": ""}}], []),
        ("google.protobuf.Timestamp a = 1;", {"seconds": -1, "nanos": 999_999_999}, "TIMESTAMP",
         datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), None),
        ("google.protobuf.Timestamp a = 1;", {"seconds": -62_135_596_800}, "TIMESTAMP", datetime(1, 1, 1, tzinfo=UTC),
         None),
        ("google.protobuf.Duration a = 1;", {"seconds": -315_576_000_000, "nanos": -1}, "DECIMAL(21,9)",
         Decimal("-315576000000.000000001"), None),
        ("google.protobuf.Int32Value a = 1;", {}, "INT", 0, None),
        ("google.protobuf.UInt64Value a = 1;", {"value": 3}, "DECIMAL(20,0)", Decimal(3), None),
        ("google.protobuf.StringValue a = 1;", {"value": "é"}, "STRING", "é", None),
        ("google.protobuf.BytesValue a = 1;", {}, "BINARY", b"", None),
        ("repeated google.protobuf.BoolValue a = 1;", [{}, {"value": True}], "ARRAY<BOOLEAN>", [False, True], []),
        ("google.protobuf.Value a = 1;", {"string_value": "é"}, "STRING", '"é"', None),
        ("google.protobuf.ListValue a = 1;", {"values": [{"number_value": 1.5}, {"null_value": 0}]}, "STRING",
         "[1.5, null]", None),
        ("google.protobuf.Struct a = 1;", {"b": 1.5}, "STRING", '{"b": 1.5}', None),
        ("google.protobuf.Any a = 1;", {"type_url": "t/x", "value": b"\1"},
         "STRUCT<`type_url`: STRING, `value`: BINARY>", {"type_url": "t/x", "value": b"\1"}, None),
    ],
)  # fmt: skip
def test_the_column_of_a_type_and_its_values(field: str, written: Any, ddl_type: str, value: Any, absent: Any) -> None:
    proto = proto3(field)
    columns = spark_ddl(given(proto, message="M").columns())
    assert columns.split(", `b`")[0] == f"`a` {ddl_type}"
    assert read(proto, datum(proto, a=written), b"") == [value, absent]


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        ("google.protobuf.Value", {"string_value": "é"}, '"é"'),
        ("google.protobuf.ListValue", {"values": [{"number_value": 1.5}, {"null_value": 0}]}, "[1.5, null]"),
        ("google.protobuf.Struct", {"b": 1.5}, '{"b": 1.5}'),
        ("repeated google.protobuf.Value", [{"bool_value": True}, {"null_value": 0}], ["true", "null"]),
        ("repeated google.protobuf.Struct", [{"b": 1.5}, {}], ['{"b": 1.5}', "{}"]),
    ],
)
def test_json_may_stand_between_tags(kind: str, written: Any, value: Any) -> None:
    imports = 'import "google/protobuf/struct.proto"; '
    proto = f'edition = "2023"; {imports}message M {{ {kind} a = 1 [features.message_encoding = DELIMITED]; }}'
    assert read(proto, datum(proto, a=written)) == [value]


@pytest.mark.parametrize(
    ("field", "written", "value", "absent"),
    [
        ("optional int32 a = 1;", 0, 0, None),
        ("optional int32 a = 1 [default = 7];", 0, 0, 7),
        ('optional string a = 1 [default = "-"];', "", "", "-"),
        ('optional bytes a = 1 [default = "\\377"];', b"", b"", b"\xff"),
        ("optional double a = 1 [default = -inf];", 0.0, 0.0, float("-inf")),
        ("optional uint64 a = 1 [default = 5];", 0, Decimal(0), Decimal(5)),
        ("optional E a = 1;", 1, "ONE", None),
        ("optional E a = 1 [default = ONE];", 2, "TWO", "ONE"),
        ("required int32 a = 1;", 5, 5, None),
        ("repeated E a = 1;", [1, 2], ["ONE", "TWO"], []),
        ("optional P a = 1;", {}, {"x": None}, None),
    ],
)
def test_proto2_optional_is_null_or_its_default(field: str, written: Any, value: Any, absent: Any) -> None:
    proto = proto2(field)
    assert read(proto, datum(proto, a=written), b"") == [value, absent]


@pytest.mark.parametrize(
    ("proto", "record", "expected"),
    [
        # An entry without bytes has the key 0, and the value 0.
        (
            proto3("map<int32, int32> m = 1;"),
            b"\x0a\x00" * 100_000 + b"\x0a\x04\x08\x01\x10\x02",
            [entry(0, 0), entry(1, 2)],
        ),
        (
            proto3("map<int32, int32> m = 1;"),
            b"\x0a\x04\x08\x01\x10\x02\x0a\x00\x0a\x04\x08\x01\x10\x03",
            [entry(1, 3), entry(0, 0)],
        ),
        (
            proto2("repeated E e = 1 [packed=true]; enum E { A = 1; }"),
            b"\x0a\xa0\x8d\x06" + b"\x01" * 99_999 + b"\x02",
            ["A"] * 99_999,
        ),
    ],
)
def test_values_that_are_left_out_of_lists_and_maps_are_no_objects(proto: str, record: bytes, expected: Any) -> None:
    record_format = given(proto)
    decoded(record_format, [record])  # with what is imported and made once
    tracemalloc.start()
    try:
        rows = decoded(record_format, [None, record, b""]).rows
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()
    assert rows.column(0).to_pylist() == [None, expected, []]


def test_numbers_that_a_closed_enum_does_not_have_count_as_not_written() -> None:
    assert read(proto2("optional E a = 1;"), b"\x08\x05") == [None]
    assert read(proto2("optional E a = 1 [default = ONE];"), b"\x08\x05") == ["ONE"]
    assert read(proto2("repeated E a = 1;"), b"\x08\x05\x08\x01", b"\x0a\x02\x02\x09") == [["ONE"], ["TWO"]]
    of_map = 'syntax = "proto2"; message M { map<string, E> a = 1; } enum E { ZERO = 0; ONE = 1; }'
    assert read(of_map, b"\x0a\x05\x0a\x01k\x10\x05\x0a\x05\x0a\x01l\x10\x01") == [[{"key": "l", "value": "ONE"}]]


@pytest.mark.parametrize(
    ("field", "written", "ddl_type", "value"),
    [
        ("int32 a = 1;", 7, "BIGINT", 7),
        ("uint64 a = 1;", 2**63 - 1, "BIGINT", 2**63 - 1),
        ("int64 a = 1;", 7, "SMALLINT", 7),
        ("int64 a = 1;", 7, "DOUBLE", 7.0),
        ("int64 a = 1;", -7, "DECIMAL(12,2)", Decimal("-7.00")),
        ("float a = 1;", 0.5, "DOUBLE", 0.5),
        ("string a = 1;", "é", "BINARY", "é".encode()),
        ("bytes a = 1;", "é".encode(), "STRING", "é"),
        ("E a = 1;", 1, "INT", 1),
        ("google.protobuf.Duration a = 1;", {"seconds": 1, "nanos": 500_000_000}, "DECIMAL(5,1)", Decimal("1.5")),
        ("google.protobuf.Int32Value a = 1;", {"value": 4}, "BIGINT", 4),
        ("google.protobuf.Int32Value a = 1;", {"value": 4}, "STRUCT<value: INT>", {"value": 4}),
        ("google.protobuf.Timestamp a = 1;", {"seconds": 4}, "STRUCT<seconds: BIGINT>", {"seconds": 4}),
        ("P a = 1;", {"x": 3}, "BINARY", b"\x08\x03"),
        ("P a = 1;", {"x": 3}, "STRUCT<z: INT, x: BIGINT>", {"z": None, "x": 3}),
        ("repeated P a = 1;", [{"x": 3}, {}], "ARRAY<BINARY>", [b"\x08\x03", b""]),
        ("map<string, P> a = 1;", {"k": {"x": 3}}, "ARRAY<STRUCT<k: STRING, v: STRUCT<x: INT>>>",
         [{"k": "k", "v": {"x": 3}}]),
    ],
)  # fmt: skip
def test_a_column_can_be_declared_as(field: str, written: Any, ddl_type: str, value: Any) -> None:
    proto = proto3(field)
    assert read(proto, datum(proto, a=written), ddl=f"a {ddl_type}") == [value]


@pytest.mark.parametrize(
    ("field", "written", "ddl_type", "reason"),
    [
        ("string a = 1;", "1", "BIGINT", "column 'a': it was written as string, which cannot become BIGINT"),
        ("double a = 1;", 1.0, "FLOAT", "it was written as double, which cannot become FLOAT"),
        ("int64 a = 1;", 1, "TIMESTAMP", "it was written as int64, which cannot become TIMESTAMP"),
        ("repeated int32 a = 1;", [1], "INT", "column 'a': it is repeated, but the column is INT"),
        ("map<string, int32> a = 1;", {}, "ARRAY<INT>", "declare ARRAY<STRUCT<key: …, value: …>>"),
        ("P a = 1;", {}, "STRING", "it was written as the message P, which cannot become STRING"),
        ("P a = 1;", {}, "STRUCT<x: STRING>", "column 'a': field 'x': it was written as int32"),
        ("uint64 a = 1;", 2**63, "BIGINT", "column 'a': a value does not fit BIGINT"),
        ("int32 a = 1;", 1000, "DECIMAL(3,1)", "column 'a': a value does not fit DECIMAL(3,1)"),
        ("bytes a = 1;", b"\xff", "STRING", "column 'a': a value does not fit STRING"),
        ("optional int32 a = 1;", None, "INT NOT NULL", "column 'a' is declared NOT NULL, and is missing or null"),
        ("google.protobuf.Timestamp a = 1;", {"seconds": 253_402_300_800}, "TIMESTAMP",
         "it lies outside of the years 1 to 9999"),
        ("google.protobuf.Timestamp a = 1;", {"seconds": 2**63 - 1}, "TIMESTAMP",
         "it lies outside of the years 1 to 9999"),
        ("google.protobuf.Timestamp a = 1;", {"nanos": -1}, "TIMESTAMP",
         "the nanoseconds of a timestamp lie outside of its second"),
        ("fixed64 a = 1;", 10_213_032_860_304_716_035, "DECIMAL(38,20)",
         "column 'a': a value does not fit DECIMAL(38,20)"),
        ("google.protobuf.Duration a = 1;", {"seconds": 1_000_000_000}, "DECIMAL(38,30)",
         "a duration does not fit DECIMAL(38,30)"),
        ("google.protobuf.Duration a = 1;", {"nanos": 10**9}, "DECIMAL(21,9)",
         "the nanoseconds of a duration are more than a second"),
        ("google.protobuf.Duration a = 1;", {"seconds": 2**62}, "DECIMAL(21,9)",
         "a duration does not fit DECIMAL(21,9)"),
        ("google.protobuf.Value a = 1;", {"number_value": float("nan")}, "STRING",
         "column 'a': a google.protobuf.Value cannot be written as JSON"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_its_column_is_bad(field: str, written: Any, ddl_type: str, reason: str) -> None:
    proto = proto3(field)
    assert reason in reason_of(proto, datum(proto, a=written), ddl=f"a {ddl_type}")


def test_no_reason_holds_a_value() -> None:
    proto = proto3("string a = 1; bytes b = 2; int64 c = 3;")
    record = datum(proto, a="s3cret", b=b"s3cret\xff", c=31337)
    for ddl in ("a STRING, b STRING", "c TINYINT", "b STRING NOT NULL"):
        reason = reason_of(proto, record, ddl=ddl)
        assert "s3cret" not in reason
        assert "31337" not in reason


TREE = 'syntax = "proto3"; message M { int32 v = 1; M a = 2; repeated M all = 3; }'


def test_recursive_message_is_read_to_the_declared_depth() -> None:
    record = datum(TREE, v=1, a={"v": 2, "a": {"v": 3}})
    with pytest.raises(ConfigurationError, match="'a' is recursive, which cannot be a column; declare the columns"):
        given(TREE, message="M").columns()
    assert read(TREE, record, ddl="a STRUCT<v: INT, a: STRUCT<v: INT>>") == [{"v": 2, "a": {"v": 3}}]
    assert read(TREE, record, b"", ddl="a BINARY") == [b"\x08\x02\x12\x02\x08\x03", None]


def test_a_message_without_fields_is_no_column() -> None:
    proto = 'syntax = "proto3"; message M { Nothing a = 1; int32 b = 2; } message Nothing {}'
    with pytest.raises(ConfigurationError, match="'a' is a message without fields"):
        given(proto, message="M").columns()
    rows, bad = decoded(given(proto, message="M", ddl="b INT"), [b"\x0a\x00\x10\x05"])
    assert (own_columns(rows), bad) == ([{"b": 5}], [])


def test_text_of_proto2_that_is_not_utf8_is_bad_where_it_is_a_column() -> None:
    proto = proto2("optional string a = 1; optional int32 b = 2;")
    assert reason_of(proto, b"\x0a\x01\xff") == "it holds text that is not UTF-8"
    rows, bad = decoded(given(proto, message="M", ddl="b INT"), [b"\x0a\x01\xff\x10\x02"])
    assert (own_columns(rows), bad) == ([{"b": 2}], [])


def test_known_schemas_of_confluent_can_be_imported() -> None:
    proto = (
        'syntax = "proto3"; import "confluent/meta.proto"; import "confluent/type/decimal.proto";'
        'message M { confluent.type.Decimal a = 1 [(confluent.field_meta).doc = "price"]; }'
    )
    assert compiled(proto)
    found = read(proto, datum(proto, a={"value": b"\1", "scale": 2}))
    assert found == [{"value": b"\1", "precision": 0, "scale": 2}]


def test_a_declared_column_that_a_writer_does_not_have_is_null() -> None:
    record_format = known({1: 'syntax = "proto3"; message M { int32 a = 1; }'}, ddl="a INT, b INT, c STRUCT<d: INT>")
    rows, _ = decoded(record_format, [wire(1, b"\x08\x01", 0)])
    assert own_columns(rows) == [{"a": 1, "b": None, "c": None}]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (b"\x10\x05\x0a\x03ab", "at byte 2 of 6, in field 'a'"),
        (b"\x10\x05\x08\x05\x1a\x02\x10", "at byte 4 of 7, in field 'inner'"),
        (b"\x1a\x02\x10\x80\x10\x05", "at byte 0 of 6, in field 'inner'"),
        (b"\x10\x05\x15\0\0\0", "at byte 2 of 6, in field 'b'"),
        (b"\x10\x05\x90", "at byte 2 of 3"),
        (b"\x10\x05" + b"\xff" * 11, "at byte 2 of 13"),
        (b"\x10\x05\x17", "at byte 2 of 3, in field 'b'"),
    ],
)
def test_a_bad_message_says_where_it_is_wrong(value: bytes, place: str) -> None:
    proto = 'syntax = "proto3"; message M { string a = 1; int32 b = 2; N inner = 3; } message N { int32 b = 2; }'
    assert reason_of(proto, value) == f"it is not a message of its schema, {place}"
    assert reason_of(proto, b"\x10\x05" * 1_000 + value) == "it is not a message of its schema"
