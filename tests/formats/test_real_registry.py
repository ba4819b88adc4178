"""Apicurio's registry answers as the small one of the daily tests does, and schemas with references can be decoded."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_kafka_offsets.formats.avro_format import Avro
from airflow_kafka_offsets.formats.schema_registry import NotFoundError, SchemaRegistry
from devstack.registry import SchemaRegistryServer
from tests.support.avro import VERSIONS, encode, wire
from tests.support.decoding import record_batch

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
    body = json.dumps({"schema": schema if isinstance(schema, str) else json.dumps(schema), **more}).encode()
    request = urllib.request.Request(
        f"{server.url}/subjects/{subject}/versions", body, {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        number: int = json.load(response)["id"]
    return number


def test_versions_ids_and_types(server: SchemaRegistryServer, registry: SchemaRegistry) -> None:
    first = register(server, "versions-value", '"int"')
    second = register(server, "versions-value", '"long"')
    proto = register(server, "proto-value", 'syntax = "proto3"; message A { int32 a = 1; }', schemaType="PROTOBUF")

    assert registry.versions("versions-value") == [1, 2]
    assert [registry.version("versions-value", version)[0] for version in (1, 2)] == [first, second]
    assert json.loads(registry.by_id(second).text) in ("long", {"type": "long"})
    assert (registry.by_id(second).type, registry.by_id(proto).type) == ("AVRO", "PROTOBUF")


def test_what_is_not_there_is_not_found(registry: SchemaRegistry) -> None:
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


def decode(server: SchemaRegistryServer, topic: str, *records: bytes) -> list[dict[str, Any]]:
    connections = {"r": {"url": server.url}}
    found = Avro(registry_conn_id="r").prepared([topic], "value", connections)
    rows, bad = found.connected_decoder(found.columns(), connections)(record_batch(records))
    assert not bad
    plain: list[dict[str, Any]] = rows.to_pylist()
    return plain
