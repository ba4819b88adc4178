"""JSON in Confluent's wire format: the columns of JSON Schemas, the ids of records, and values as those of the format
Json.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core import libraries
from airflow_kafka_offsets.core.templates import with_values
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats.columns import spark_ddl
from airflow_kafka_offsets.formats.json_schema import columns_of
from airflow_kafka_offsets.formats.json_schema_format import JsonSchema
from airflow_kafka_offsets.formats.record_format import Decoded, SchemaError
from airflow_kafka_offsets.formats.schema_registry import Reference, RegisteredSchema
from airflow_kafka_offsets.formats.simple_formats import Json
from tests.support.corruption import corrupted
from tests.support.decoding import decoded_as, record_batch
from tests.support.examples import examples
from tests.support.registry import FakeRegistry, fake_registry

JSON_SCHEMA = JsonSchema(registry_conn_id="registry")
DDL = (
    "id BIGINT, name STRING, ratio DOUBLE, ok BOOLEAN, tags ARRAY<STRING>, "
    "place STRUCT<x: INT, y: ARRAY<STRUCT<z: DOUBLE>>>"
)
PLAIN = {"text": '{"type": "object", "properties": {}}', "references": []}
KNOWN = with_values(JsonSchema(DDL, registry_conn_id="registry"), schemas={str(number): PLAIN for number in (1, 2, 3)})


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry


def prepared(server: FakeRegistry, record_format: JsonSchema = JSON_SCHEMA, *topics: str) -> JsonSchema:
    return record_format.prepared(topics or ("orders",), "value", {"registry": server.config})


def decode(server: FakeRegistry, record_format: JsonSchema, *records: bytes | None) -> Decoded:
    """What a task makes of records, to which the format is sent."""
    travelled = pickle.loads(pickle.dumps(record_format))
    assert travelled == record_format
    assert isinstance(travelled, JsonSchema)
    return travelled.connected_decoder(travelled.columns(), {"registry": server.config})(record_batch(list(records)))


def wire(number: int, value: Any) -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return b"\0" + number.to_bytes(4, "big") + text


def order(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def type_of(schema: Any, **more: Any) -> str:
    columns = columns_of(RegisteredSchema("JSON", json.dumps(order(a=schema) | more)))
    return spark_ddl(columns).removeprefix("`a` ")


@pytest.mark.parametrize(
    ("schema", "ddl_type"),
    [
        ({"type": "integer"}, "BIGINT"),
        ({"type": "number"}, "DOUBLE"),
        ({"type": "boolean"}, "BOOLEAN"),
        ({"type": "string"}, "STRING"),
        ({"type": "string", "format": "date"}, "DATE"),
        ({"type": "string", "format": "date-time"}, "TIMESTAMP"),
        ({"type": "string", "format": "uuid"}, "STRING"),
        ({"type": ["null", "integer"]}, "BIGINT"),
        ({"oneOf": [{"type": "null"}, {"type": "number"}]}, "DOUBLE"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "STRING"),
        ({"enum": ["NEW", "PAID"]}, "STRING"),
        (order(x={"type": "integer"}), "STRUCT<`x`: BIGINT>"),
        ({"type": "array", "items": {"type": ["string", "null"]}}, "ARRAY<STRING>"),
        ({"type": "array", "items": order(x={"type": "array", "items": {"type": "number"}})},
         "ARRAY<STRUCT<`x`: ARRAY<DOUBLE>>>"),
        ({"$ref": "#/$defs/money~1net"}, "STRUCT<`cents`: BIGINT>"),
        ({"oneOf": [{"$ref": "#/$defs/day"}, {"type": "null"}]}, "DATE"),
    ],
)  # fmt: skip
def test_the_column_of_a_property(schema: Any, ddl_type: str) -> None:
    defs = {"money/net": order(cents={"type": "integer"}), "day": {"type": "string", "format": "date"}}
    assert type_of(schema, **{"$defs": defs}) == ddl_type


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (True, "property 'a' may be anything; declare the columns"),
        ({}, "property 'a' has no type"),
        ({"type": "null"}, "property 'a' has the type null"),
        ({"type": ["string", "integer"]}, "property 'a' has the types string, integer"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "property 'a' has 'oneOf' with 2 types"),
        ({"allOf": [{"type": "string"}]}, "property 'a' has 'allOf'"),
        ({"type": "object", "additionalProperties": {"type": "integer"}},
         "property 'a' is an object without properties"),
        (order(), "property 'a' is an object without properties"),
        ({"type": "array"}, "property 'a' is an array without items"),
        (order(b={"type": "array", "items": order(c={})}), "property 'a.b.c' has no type"),
        ({"$ref": "#/nowhere"}, "property 'a' refers to '#/nowhere', which is not in the schema"),
        ({"$ref": "other.json"}, "property 'a' refers to 'other.json', which the registry does not list"),
        ({"$ref": "#/properties/a"}, "property 'a' is recursive"),
        (order(b={"$ref": "#"}), "property 'a.b.a' is recursive|property 'a.b.a.b' is recursive"),
        ({"enum": [1, "a"]}, "property 'a' has no type"),
        ({"$ref": "#anchor"}, "property 'a' refers to the anchor '#anchor', and only '#/…' is followed"),
        ({"$ref": "#/$defs/x", **order(b={"type": "integer"})}, r"property 'a' has '\$ref' beside 'properties'"),
        ({"$ref": "#/$defs/x", "anyOf": [{"required": ["b"]}]}, r"property 'a' has '\$ref' beside 'anyOf'"),
        ({"$ref": "#/$defs/x", "items": {"type": "integer"}}, r"property 'a' has '\$ref' beside 'items'"),
        ({"anyOf": [{"type": "null"}, order(b={"type": "integer"})], **order(c={"type": "integer"})},
         "property 'a' has 'anyOf' beside 'properties'"),
        ({"oneOf": [{"type": "integer"}], "anyOf": [{"type": "null"}]}, "property 'a' has 'oneOf' beside 'anyOf'"),
        ({**order(b={"type": "integer"}), "dependencies": {"b": order(c={"type": "integer"})}},
         "property 'a' has 'dependencies'"),
        ({**order(b={"type": "integer"}), "$dynamicRef": "#node"}, r"property 'a' has '\$dynamicRef'"),
    ],
)  # fmt: skip
def test_a_property_without_a_column_is_named(schema: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        type_of(schema)


@pytest.mark.parametrize("text", ["{", "[]", "true", '{"type": "string"}', '{"type": "object"}'])
def test_schema_without_an_object_is_refused(text: str) -> None:
    with pytest.raises(SchemaError, match=r"it is not JSON|it is not an object with properties"):
        columns_of(RegisteredSchema("JSON", text))


@pytest.mark.parametrize(
    "beside",
    [
        {"allOf": [{"$ref": "#/$defs/T"}]},
        {"anyOf": [{"required": ["id"]}, order(b={"type": "integer"})]},
        {"oneOf": [{"properties": [{}]}]},
        {"then": {"allOf": []}},
        {"else": True},
        {"dependentSchemas": {"id": order(b={"type": "integer"})}},
        {"patternProperties": {"^x": {"type": "string"}}},
        {"allOf": 5},
        {"dependencies": {"name": ["id"], "id": order(b={"type": "integer"})}},
        {"extends": order(b={"type": "integer"})},
        {"$dynamicRef": "#T"},
        {"$recursiveRef": "#"},
    ],
)
def test_what_may_add_properties_to_a_record_is_named(beside: dict[str, Any]) -> None:
    (word,) = beside
    text = json.dumps({**order(id={"type": "integer"}), **beside, "$defs": {"T": order(a={"type": "integer"})}})
    with pytest.raises(
        SchemaError, match=f"^the schema has '{re.escape(word)}' beside 'properties'; declare the columns"
    ):
        columns_of(RegisteredSchema("JSON", text))


def test_what_only_restricts_the_properties_of_a_record_adds_none() -> None:
    schema = order(id={"type": "integer"}, name={"type": "string"})
    schema["anyOf"] = [{"required": ["id"]}, {"required": ["name"]}]
    schema |= {"if": order(a={}), "then": {"required": ["name"]}, "not": order(b={}), "patternProperties": {}}
    schema["allOf"] = [{"type": "object", "properties": {"id": {"minimum": 0}}}]
    schema["dependencies"] = {"id": ["name"], "name": {"required": ["id"]}}
    assert columns_of(RegisteredSchema("JSON", json.dumps(schema))).names == ["id", "name"]


def test_references_to_other_schemas_are_followed_from_where_they_are() -> None:
    money = {"$defs": {"cents": {"type": "integer"}}, **order(cents={"$ref": "#/$defs/cents"})}
    text = json.dumps(
        {
            "$ref": "#/$defs/order",
            "$defs": {"order": order(net={"$ref": "money.json"}, x={"$ref": "money.json#/$defs/cents"})},
        }
    )
    registered = RegisteredSchema("JSON", text, (Reference("money.json", json.dumps(money)),))
    assert spark_ddl(columns_of(registered)) == "`net` STRUCT<`cents`: BIGINT>, `x` BIGINT"


def test_columns_come_from_the_latest_schema_and_ids_are_checked(server: FakeRegistry) -> None:
    server.register("orders-value", order(id={"type": "integer"}), kind="JSON")
    latest = order(id={"type": "integer"}, day={"type": "string", "format": "date"})
    server.register("orders-value", latest, kind="JSON")
    server.register("other", '"int"', number=5)
    found = prepared(server)
    server.register("elsewhere", latest, kind="JSON", number=70_000)
    server.requests.clear()
    host = server.url.removeprefix("http://")

    rows, bad = decode(
        server, found, wire(1, {"id": 1}), wire(70_000, {"id": 2, "day": "2026-01-02"}), wire(9, {}), None, wire(5, {}),
        wire(2, {"id": "x"}), b'{"id": 1}', b"", wire(1, b""), wire(2, {"id": 3}), wire(70_000, {}),
    )  # fmt: skip

    assert rows.column("id").to_pylist() == [1, 2, None, 3, None]
    assert [record.row for record in bad] == [2, 4, 5, 6, 7, 8]
    reasons = [record.reason for record in bad]
    assert reasons[:2] == [
        f"schema 9: the schema registry at {host} has none with this id",
        "schema 5: it is of the type 'AVRO'",
    ]
    assert reasons[2].startswith("schema 2: ")
    assert reasons[3] == reasons[4] != reasons[5]
    assert reasons[5].startswith("schema 1: it is not exactly one JSON object")
    assert sorted(server.requests) == ["/schemas/ids/5", "/schemas/ids/70000", "/schemas/ids/9"]


@pytest.mark.parametrize(
    ("record_format", "match"),
    [
        (
            lambda: JsonSchema("id INT"),
            "JsonSchema needs registry_conn_id; JSON without the id of a schema is the format Json",
        ),
        (lambda: JSON_SCHEMA, "JsonSchema without columns needs a schema"),
        (lambda: replace(JSON_SCHEMA, ddl="id BINARY"), "unknown type 'BINARY'"),
    ],
)
def test_parameters_that_cannot_work_are_refused(record_format: Callable[[], JsonSchema], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        record_format().columns()


def test_a_schema_without_columns_is_named_by_its_id(server: FakeRegistry) -> None:
    server.register("orders-value", order(a={}), kind="JSON")
    with pytest.raises(ConfigurationError, match="taken from the JSON Schema 1: property 'a' has no type; declare the"):
        prepared(server)
    assert prepared(server, replace(JSON_SCHEMA, ddl="a STRING")).schemas.keys() == {"1"}


def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(libraries, "find_spec", lambda name: None if name == "httpx" else find(name))
    with pytest.raises(
        ConfigurationError, match=r"needs httpx: install the extra 'airflow-kafka-offsets\[json-schema\]'"
    ):
        JSON_SCHEMA.prepared(["orders"], "value", {})


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_numbers = st.floats(allow_nan=False, allow_infinity=False)
_items = st.lists(st.fixed_dictionaries({"z": st.none() | _numbers}), max_size=2)
_place = st.fixed_dictionaries({"x": st.none() | st.integers(-(2**31), 2**31 - 1), "y": st.none() | _items})
_values = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | _text,
        "ratio": st.none() | _numbers,
        "ok": st.none() | st.booleans(),
        "tags": st.none() | st.lists(st.none() | _text, max_size=3),
        "place": st.none() | _place,
    }
)


@examples(100)
@given(batch=st.lists(st.none() | st.tuples(st.integers(1, 3), _values), min_size=1, max_size=10))
def test_values_of_three_schemas_and_tombstones_in_any_order(batch: list[tuple[int, dict[str, Any]] | None]) -> None:
    rows, bad = decoded_as(KNOWN, record_batch([None if record is None else wire(*record) for record in batch]))
    assert not bad
    nulls = dict.fromkeys(KNOWN.columns().names)
    assert own_columns(rows) == [nulls if record is None else record[1] for record in batch]


def own_columns(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if not name.startswith("_kafka_")} for row in rows.to_pylist()]


@pytest.mark.parametrize("records", [1_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_corrupted_records_harm_no_other_and_are_judged_as_those_of_json(records: int) -> None:
    chance = random.Random(records)
    for first in range(0, records, 500):
        sound = [
            json.dumps({"id": first + place, "name": "größer", "tags": ["a", None], "place": {"x": 1}}).encode()
            for place in range(500)
        ]
        texts = [corrupted(text, chance) if chance.random() < 0.2 else text for text in sound]
        rows, bad = decoded_as(KNOWN, record_batch([wire(1 + place % 3, text) for place, text in enumerate(texts)]))
        assert rows.num_rows + len(bad) == len(texts)
        plain_rows, plain_bad = decoded_as(Json(DDL), record_batch(texts))
        assert own_columns(rows) == own_columns(plain_rows)
        assert [(record.row, record.reason.partition(": ")[2]) for record in bad] == [
            (record.row, record.reason) for record in plain_bad
        ]
