"""What a field of an Avro schema becomes, and how a writer's schema is resolved to the columns."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from airflow_kafka_offsets.core.templates import with_values
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats.avro_format import Avro
from airflow_kafka_offsets.formats.columns import spark_ddl
from tests.support.avro import decoded, decoded_alone, encode, known, own_columns, wire


def record(*fields: dict[str, Any] | tuple[str, Any], name: str = "r") -> dict[str, Any]:
    plain = [field if isinstance(field, dict) else dict(zip(("name", "type"), field, strict=True)) for field in fields]
    return {"type": "record", "name": name, "fields": plain}


def logical(kind: str, name: str, /, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def read(kind: Any, value: Any, **options: Any) -> Any:
    return decoded_alone(record(("a", kind)), {"a": value}, **options)["a"]


def reason_of(kind: Any, value: Any, **options: Any) -> str:
    schema = record(("a", kind))
    _, (bad,) = decoded(Avro(schema=json.dumps(schema), **options), [encode(schema, {"a": value})])
    return bad.reason


def type_of(kind: Any) -> str:
    return spark_ddl(Avro(schema=json.dumps(record(("a", kind)))).columns()).removeprefix("`a` ")


UNION = ["null", "string", "long", record(("x", "int"), name="point")]


@pytest.mark.parametrize(
    ("kind", "written", "ddl_type", "value"),
    [
        (logical("int", "date"), date(1, 1, 1), "DATE", date(1, 1, 1)),
        (logical("long", "timestamp-millis"), -1, "TIMESTAMP", datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)),
        (logical("long", "timestamp-micros"), -1, "TIMESTAMP", datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        (logical("long", "timestamp-nanos"), -1, "TIMESTAMP", datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        (logical("long", "timestamp-nanos"), 1999, "TIMESTAMP", datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        (logical("long", "local-timestamp-millis"), 1, "TIMESTAMP_NTZ", datetime(1970, 1, 1, 0, 0, 0, 1000)),
        (logical("int", "time-millis"), 1, "STRING", "00:00:00.001"),
        (logical("long", "time-micros"), 86_399_999_999, "STRING", "23:59:59.999999"),
        (logical("string", "uuid"), str(uuid.UUID(int=7)), "STRING", str(uuid.UUID(int=7))),
        (logical("fixed", "uuid", name="u", size=16), uuid.UUID(int=7).bytes, "STRING", str(uuid.UUID(int=7))),
        (logical("bytes", "decimal", precision=38, scale=0), Decimal(10**38 - 1), "DECIMAL(38,0)", Decimal(10**38 - 1)),
        (logical("fixed", "decimal", name="d", size=20, precision=9, scale=2), Decimal("-0.01"), "DECIMAL(9,2)",
         Decimal("-0.01")),
        ({"type": "fixed", "name": "f", "size": 3}, b"abc", "BINARY", b"abc"),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "B", "STRING", "B"),
        (["null", {"type": "map", "values": "int"}], {"k": 1}, "ARRAY<STRUCT<`key`: STRING, `value`: INT>>",
         [{"key": "k", "value": 1}]),
        (["int", "long"], 2**40, "BIGINT", 2**40),
        (["null", "float", "double"], 0.5, "DOUBLE", 0.5),
        (UNION, None, "STRUCT<`member0`: STRING, `member1`: BIGINT, `member2`: STRUCT<`x`: INT>>", None),
        (UNION, "s", "STRUCT<`member0`: STRING, `member1`: BIGINT, `member2`: STRUCT<`x`: INT>>",
         {"member0": "s", "member1": None, "member2": None}),
        (UNION, {"x": 5}, "STRUCT<`member0`: STRING, `member1`: BIGINT, `member2`: STRUCT<`x`: INT>>",
         {"member0": None, "member1": None, "member2": {"x": 5}}),
        (logical("int", "no such type"), 5, "INT", 5),
    ],
)  # fmt: skip
def test_the_column_of_a_type_and_its_values(kind: Any, written: Any, ddl_type: str, value: Any) -> None:
    assert type_of(kind) == ddl_type
    assert read(kind, written) == value


@pytest.mark.parametrize(
    ("kind", "written", "ddl_type", "value"),
    [
        ("int", 7, "BIGINT", 7),
        ("int", 7, "DOUBLE", 7.0),
        ("long", 2**62 + 1, "DOUBLE", float(2**62)),
        ("float", 0.5, "DOUBLE", 0.5),
        ("bytes", "é".encode(), "STRING", "é"),
        ("string", "é", "BINARY", "é".encode()),
        (logical("long", "timestamp-millis"), 5, "BIGINT", 5),
        (logical("bytes", "decimal", precision=4, scale=1), Decimal("1.5"), "DECIMAL(20,4)", Decimal("1.5000")),
        (["null", "string", "long"], 5, "BIGINT", 5),
        (UNION, {"x": 5}, "STRUCT<x: BIGINT>", {"x": 5}),
        ({"type": "array", "items": "int"}, [1, 2], "ARRAY<BIGINT>", [1, 2]),
        (record(("x", "int"), ("gone", "string"), name="p"), {"x": 1, "gone": "-"}, "STRUCT<y: INT, x: BIGINT>",
         {"y": None, "x": 1}),
    ],
)  # fmt: skip
def test_a_declared_column_is_promoted_to(kind: Any, written: Any, ddl_type: str, value: Any) -> None:
    assert read(kind, written, ddl=f"a {ddl_type}") == value


@pytest.mark.parametrize(
    ("kind", "written", "ddl_type", "reason"),
    [
        ("long", 1, "INT", "column 'a': it was written as long, which cannot become INT"),
        ("string", "1", "BIGINT", "column 'a': it was written as string, which cannot become BIGINT"),
        ("long", 1, "TIMESTAMP", "column 'a': it was written as long, which cannot become TIMESTAMP"),
        ({"type": "map", "values": "int"}, {}, "STRING", "written as map, which cannot become STRING"),
        # Its bytes are the text "09".
        (logical("bytes", "decimal", precision=9, scale=2), Decimal("123.45"), "STRING",
         "written as decimal, which cannot become STRING"),
        ({"type": "map", "values": "int"}, {}, "ARRAY<INT>", "declare ARRAY<STRUCT<key: STRING, value: …>>"),
        (["null", "string", "long"], "x", "BIGINT",
         "column 'a': its branch of the union does not fit: it was written as string"),
        (["null", "int"], None, "INT NOT NULL", "column 'a' is declared NOT NULL, and is missing or null"),
        ("bytes", b"\xff", "STRING", "column 'a': a value of type bytes does not fit STRING"),
        (logical("bytes", "decimal", precision=4, scale=1), Decimal("999.9"), "DECIMAL(3,1)",
         "a decimal does not fit DECIMAL(3,1)"),
        (logical("bytes", "decimal", precision=38, scale=0), Decimal(4_459_210_574_094_415_717), "DECIMAL(38,20)",
         "a decimal does not fit DECIMAL(38,20)"),
        (logical("bytes", "decimal", precision=50, scale=1), 10**38 * b"\1"[0], "DECIMAL(38,1)", "more than 38 digits"),
        (logical("long", "timestamp-millis"), 2**62, "TIMESTAMP",
         "column 'a': a value of type timestamp-millis does not fit TIMESTAMP"),
        (logical("long", "timestamp-micros"), 2**62, "TIMESTAMP", "column 'a': it lies outside of the years 1 to 9999"),
        (logical("int", "time-millis"), 86_400_000, "STRING", "column 'a': a time lies outside of the day"),
        (record(("x", "string"), name="p"), {"x": "s"}, "STRUCT<x: INT>",
         "column 'a': field 'x': it was written as string"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_its_column_is_bad(kind: Any, written: Any, ddl_type: str, reason: str) -> None:
    if isinstance(written, int) and "decimal" in str(kind):
        written = Decimal(written)
    assert reason in reason_of(kind, written, ddl=f"a {ddl_type}")


def test_missing_fields_have_their_defaults_and_renamed_ones_are_found() -> None:
    nested = record({"name": "x", "type": "int"}, {"name": "y", "type": "long", "default": 3}, name="p")
    reader = record(
        {"name": "title", "type": "string", "aliases": ["name", "label"]},
        {"name": "count", "type": ["null", "int"], "default": None},
        {"name": "level", "type": ["int", "null"], "default": 4},
        {"name": "data", "type": "bytes", "default": "\u00ff"},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": ["a"]},
        {"name": "more", "type": {"type": "map", "values": "int"}, "default": {"k": 1}},
        {"name": "kind", "type": {"type": "enum", "name": "k", "symbols": ["A", "B"]}, "default": "B"},
        {"name": "place", "type": nested},
        {"name": "other", "type": "p", "default": {"x": 9}},
        ("no_default", "string"),
    )
    writer = record(("label", "string"), ("place", record(("x", "int"), name="q")))
    record_format = with_values(
        Avro(registry_conn_id="r", schema=json.dumps(reader)), schemas={"1": [json.dumps(writer)]}
    )

    rows, bad = decoded(record_format, [wire(1, encode(writer, {"label": "a", "place": {"x": 1}}))])

    assert not bad
    assert own_columns(rows) == [
        {
            "title": "a",
            "count": None,
            "level": 4,
            "data": b"\xff",
            "tags": ["a"],
            "more": [{"key": "k", "value": 1}],
            "kind": "B",
            "place": {"x": 1, "y": 3},
            "other": {"x": 9, "y": 3},
            "no_default": None,
        }
    ]


def test_without_a_readers_schema_missing_fields_are_null() -> None:
    schema = record(("a", "int"))
    rows, _ = decoded(known({1: schema}, ddl="a INT, b STRING, c STRUCT<d: INT>"), [wire(1, encode(schema, {"a": 1}))])
    assert own_columns(rows) == [{"a": 1, "b": None, "c": None}]


@pytest.mark.parametrize(("options", "name"), [({}, "value"), ({"column": "id"}, "id"), ({"ddl": "key BIGINT"}, "key")])
def test_a_schema_that_is_no_record_is_one_column(options: dict[str, Any], name: str) -> None:
    rows, bad = decoded(Avro(schema='"long"', **options), [b"\x02", None, b"", b"\x02\x02"])
    assert own_columns(rows) == [{name: 1}, {name: None}]
    assert [record.row for record in bad] == [2, 3]


NODE = record(("value", "int"), ("next", ["null", "node"]), name="node")


def test_recursive_schema_loses_its_recursive_fields() -> None:
    chain: dict[str, Any] = {"value": 1, "next": {"value": 2, "next": None}}
    datum = encode(NODE, chain)
    as_declared = Avro("value BIGINT", schema=json.dumps(NODE))

    rows, bad = decoded(as_declared, [datum, datum[:-1], datum + b"\0", None, b"\x02" * 5_000])

    assert own_columns(rows) == [{"value": 1}, {"value": None}]
    assert [record.row for record in bad] == [1, 2, 4]
    with pytest.raises(ConfigurationError, match="'next' is of the type recursive, which cannot be a column"):
        Avro(schema=json.dumps(NODE)).columns()
    _, (refused,) = decoded(Avro("next STRUCT<value: INT>", schema=json.dumps(NODE)), [datum])
    assert refused.reason == "column 'next': it is recursive, which no column can be"


def test_a_value_nested_as_deep_as_its_bytes_allow_is_read() -> None:
    schema = record(("next", ["null", "chain"]), ("value", "int"), name="chain")

    def nested(depth: int) -> bytes:
        return b"\x02" * depth + b"\0" + b"\x04" * (depth + 1)

    rows, bad = decoded(Avro("value INT", schema=json.dumps(schema)), [nested(900), nested(100_000), b"\x02" * 2_000])
    assert own_columns(rows) == [{"value": 2}]
    assert bad[0].reason.startswith("it is nested too deep, at byte ")
    assert bad[1].reason == "it does not end where its schema says, at byte 2,000 of 2,000"


def test_a_large_value_of_a_recursive_schema_is_read() -> None:
    tree = record(("name", "string"), ("children", {"type": "array", "items": "tree"}), name="tree")
    datum = encode(tree, {"name": "root", "children": [{"name": "x" * 20, "children": []}] * 1_000})
    rows, bad = decoded(Avro("name STRING", schema=json.dumps(tree)), [datum, datum[:-1]])
    assert (own_columns(rows), len(bad)) == ([{"name": "root"}], 1)


@pytest.mark.parametrize("more", ["int", ["int", "string"]], ids=["together", "one by one"])
def test_values_without_bytes_are_not_null(more: Any) -> None:
    none = [("e", record(("n", "null"), name="e")), ("z", {"type": "fixed", "name": "z", "size": 0}), ("n", "null")]
    kind = record(
        ("more", more), *none, ("s", ["null", record(("x", "int"), ("e", "e"), ("z", "z"), ("n", "null"), name="s")])
    )
    inner = "e: STRUCT<a: INT>, z: BINARY, n: INT"
    ddl = f"{inner.replace(':', '', 1).replace('z:', 'z').replace('n:', 'n')}, s STRUCT<x: INT, {inner}>"
    empty = {"e": {"n": None}, "z": b"", "n": None}
    values = [{"more": 1, **empty, "s": {"x": 1, **empty}}, {"more": 1, **empty, "s": None}]
    rows, bad = decoded(Avro(ddl, schema=json.dumps(kind)), [encode(kind, value) for value in values])
    found = {"e": {"a": None}, "z": b"", "n": None}
    assert (own_columns(rows), bad) == ([found | {"s": {"x": 1, **found}}, found | {"s": None}], [])


@pytest.mark.parametrize("items", ["null", record(name="e"), {"type": "fixed", "name": "f", "size": 0}])
def test_arrays_of_nothing_are_refused_as_they_could_be_endless(items: Any) -> None:
    schema = record(("a", {"type": "array", "items": items}), ("b", "int"))
    _, (bad,) = decoded(Avro("b INT", schema=json.dumps(schema)), [b"\xfe\xff\xff\xff\xff\xff\x7f"])
    assert "an array whose items take no bytes" in bad.reason


def test_lengths_beyond_the_value_are_refused() -> None:
    schema = record(("a", {"type": "array", "items": "string"}), ("b", "bytes"))
    huge = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"
    _, bad = decoded(
        Avro(schema=json.dumps(schema)), [huge, b"\x00" + huge, b"\x02" + huge, b"\x01\x01", b"\x01" + huge]
    )
    assert len(bad) == 5


def test_symbols_that_an_enum_does_not_have_are_refused() -> None:
    schema = record(("a", ["null", {"type": "enum", "name": "e", "symbols": ["A", "B"]}]))
    # Null, the symbols 0 and 1, then 2, -1 and the largest number.
    values = [b"\0", b"\2\0", b"\2\2", b"\2\4", b"\2\1", b"\2\xfe\xff\xff\xff\x0f"]
    rows, bad = decoded(Avro(schema=json.dumps(schema)), values)
    assert own_columns(rows) == [{"a": None}, {"a": "A"}, {"a": "B"}]
    assert [(row, reason) for row, reason, _ in bad] == [
        (row, "column 'a': it has a symbol that its enum has not") for row in (3, 4, 5)
    ]


def test_single_object_encoding() -> None:
    record_format = Avro(schema='"int"', single_object=True)
    # From the specification of the encoding: the fingerprint of "int", with its lowest byte first.
    head = b"\xc3\x01" + bytes.fromhex("8f5c393f1ad57572")

    rows, bad = decoded(record_format, [head + b"\x02", b"\x02", head[:-1] + b"\0\x02", b""])

    assert own_columns(rows) == [{"value": 1}]
    assert {record.reason for record in bad} == {"it does not begin as the single-object encoding of the schema does"}
    assert [record.row for record in bad] == [1, 2, 3]


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\0\0\0", b"\1\0\0\0\1\2", b'{"id": 1}'])
def test_record_outside_of_the_wire_format_is_bad(value: bytes) -> None:
    _, (bad,) = decoded(known({1: record(("a", "int"))}), [value])
    assert bad.reason == "it does not begin with the byte 0 and the id of a schema, as Confluent's wire format does"


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        ("{", "is not a usable Avro schema: it is not JSON"),
        ('"number"', "the type 'number' is not defined"),
        ('{"type": "record"}', "it is malformed: KeyError 'name'"),
        ("7", "it is malformed"),
        ("[]", "a union has no branch"),
        ('{"type":"array","items":' * 70 + '"int"' + "}" * 70, "nested deeper than 60"),
        ('"null"', "'value' is of the type null, which cannot be a column"),
    ],
)
def test_invalid_schema_is_refused(schema: str, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Avro(schema=schema).columns()
