"""Apicurio's registry answers as the small one of the daily tests does, and schemas with references can be decoded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any

import pytest

from airflow_kafka_offsets.formats.avro_format import Avro
from airflow_kafka_offsets.formats.json_schema_format import JsonSchema
from airflow_kafka_offsets.formats.protobuf_format import Protobuf
from airflow_kafka_offsets.formats.registry_format import RegistryFormat
from airflow_kafka_offsets.formats.schema_registry import NotFoundError, SchemaRegistry
from devstack.registry import SchemaRegistryServer
from tests.support.avro import VERSIONS, encode, wire
from tests.support.decoding import record_batch
from tests.support.protobuf import as_base64
from tests.support.protobuf import wire as protobuf_wire
from tests.support.registry import post_schema

pytestmark = [pytest.mark.server, pytest.mark.long]

MONEY = {"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]}
ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [{"name": "net", "type": "Money"}, {"name": "gross", "type": "shop.Money"}],
}


@pytest.fixture(scope="module")
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as server:
        yield server


@pytest.fixture
def registry(server: SchemaRegistryServer) -> Iterator[SchemaRegistry]:
    registry = SchemaRegistry({"url": server.url})
    yield registry
    registry.close()


def register(server: SchemaRegistryServer, subject: str, schema: Any, **more: Any) -> int:
    return post_schema(server.url, subject, schema, **more)


def test_versions_ids_and_types(server: SchemaRegistryServer, registry: SchemaRegistry) -> None:
    first = register(server, "versions-value", '"int"')
    second = register(server, "versions-value", '"long"')
    proto = register(server, "proto-value", 'syntax = "proto3"; message A { int32 a = 1; }', schemaType="PROTOBUF")

    assert registry.versions("versions-value") == [1, 2]
    assert [registry.version("versions-value", version)[0] for version in (1, 2)] == [first, second]
    assert json.loads(registry.by_id(second).text) in ("long", {"type": "long"})
    assert (registry.by_id(second).type, registry.by_id(proto).type) == ("AVRO", "PROTOBUF")


def test_unknown_schema_is_not_found(registry: SchemaRegistry) -> None:
    with pytest.raises(NotFoundError):
        registry.by_id(987_654)
    with pytest.raises(NotFoundError):
        registry.versions("nothing")


def test_references(server: SchemaRegistryServer) -> None:
    register(server, "money", MONEY)
    reference = {"name": "shop.Money", "subject": "money", "version": 1}
    number = register(server, "orders-value", ORDER, references=[reference])

    rows = decode(server, "orders", wire(number, b"\x02\x04"))

    assert rows == [{"net": {"cents": 1}, "gross": {"cents": 2}}]


def test_three_versions(server: SchemaRegistryServer) -> None:
    fields = [{"name": "id", "type": "int"}]
    schemas = [
        {"type": "record", "name": "order", "fields": [*fields, *more]}
        for more in (
            [],
            [{"name": "note", "type": "string", "default": "-"}],
            [{"name": "note", "type": "string", "default": "none"}, {"name": "level", "type": "int", "default": 7}],
        )
    ]
    numbers = [register(server, "evolving-value", schema) for schema in schemas]
    value = {"id": 1, "note": "n", "level": 2}

    rows = decode(
        server, "evolving", *(wire(n, encode(schema, value)) for n, schema in zip(numbers, schemas, strict=True))
    )

    assert [(row["note"], row["level"]) for row in rows] == [("none", 7), ("n", 7), ("n", 2)]


def test_a_schema_with_all_types(server: SchemaRegistryServer) -> None:
    register(server, "types-value", VERSIONS[3])
    found = Avro(registry_conn_id="r").prepared(["types"], "value", {"r": {"url": server.url}})
    assert found.columns().names[:4] == ["id", "name", "level", "note"]


def test_protobuf_with_references_and_well_known_types(server: SchemaRegistryServer) -> None:
    money = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'
    register(server, "proto-money", money, schemaType="PROTOBUF")
    order = """
        syntax = "proto3";
        package shop;
        import "shop/money.proto";
        import "google/protobuf/timestamp.proto";
        message Unused {}
        message Order { Money net = 1; google.protobuf.Timestamp at = 2; message Line { int32 n = 1; } }
    """
    reference = {"name": "shop/money.proto", "subject": "proto-money", "version": 1}
    number = register(server, "proto-orders-value", order, schemaType="PROTOBUF", references=[reference])
    record = protobuf_wire(number, b"\x0a\x02\x08\x07\x12\x02\x08\x01", 1)

    rows = decode(server, "proto-orders", record, record_format=Protobuf(registry_conn_id="r", message="Order"))
    inner = decode(
        server, "proto-orders", protobuf_wire(number, b"\x08\x05", 1, 0), record_format=Protobuf("n INT", "r")
    )

    assert rows == [{"net": {"cents": 7}, "at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}]
    assert inner == [{"n": 5}]


def test_protobuf_as_confluents_serializer_for_python_registers_it(server: SchemaRegistryServer) -> None:
    money = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'
    order = 'syntax = "proto3"; package shop; import "money.proto"; message Order { Money net = 1; }'
    texts = as_base64(money=money, order=order)
    register(server, "base64-money", texts["money"], schemaType="PROTOBUF")
    reference = {"name": "money.proto", "subject": "base64-money", "version": 1}
    number = register(server, "base64-value", texts["order"], schemaType="PROTOBUF", references=[reference])
    record = protobuf_wire(number, b"\x0a\x02\x08\x07", 0)
    rows = decode(server, "base64", record, record_format=Protobuf(registry_conn_id="r"))
    assert rows == [{"net": {"cents": 7}}]


def test_three_versions_of_protobuf(server: SchemaRegistryServer) -> None:
    fields = ["int32 id = 1;", "int32 id = 1; string note = 2;", "int64 id = 1; string note = 2; int32 level = 3;"]
    numbers = [
        register(server, "proto3-value", f'syntax = "proto3"; message Order {{ {text} }}', schemaType="PROTOBUF")
        for text in fields
    ]
    values = [b"\x08\x01", b"\x08\x01\x12\x01n", b"\x08\x01\x12\x01n\x18\x02"]
    records = [protobuf_wire(number, value, 0) for number, value in zip(numbers, values, strict=True)]
    rows = decode(server, "proto3", *records, record_format=Protobuf(registry_conn_id="r"))
    assert [(row["note"], row["level"]) for row in rows] == [("", 0), ("n", 0), ("n", 2)]


def test_json_schema_with_references(server: SchemaRegistryServer) -> None:
    money = {"type": "object", "properties": {"cents": {"type": "integer"}}}
    register(server, "json-money", money, schemaType="JSON")
    order = {
        "type": "object",
        "properties": {"net": {"$ref": "money.json"}, "day": {"type": "string", "format": "date"}},
    }
    reference = {"name": "money.json", "subject": "json-money", "version": 1}
    number = register(server, "json-orders-value", order, schemaType="JSON", references=[reference])

    record = wire(number, b'{"net": {"cents": 7}, "day": "2026-01-02"}')
    rows = decode(server, "json-orders", record, record_format=JsonSchema(registry_conn_id="r"))

    assert rows == [{"net": {"cents": 7}, "day": date(2026, 1, 2)}]


def decode(
    server: SchemaRegistryServer, topic: str, *records: bytes, record_format: RegistryFormat | None = None
) -> list[dict[str, Any]]:
    connections = {"r": {"url": server.url}}
    found: Any = (record_format or Avro(registry_conn_id="r")).prepared([topic], "value", connections)
    rows, bad = found.connected_decoder(found.columns(), connections)(record_batch(records))
    assert not bad
    plain: list[dict[str, Any]] = rows.to_pylist()
    return plain
