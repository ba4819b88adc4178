"""Protobuf, and JSON with ids, through Spark's Python workers into the database: three schemas mixed in a partition."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from airflow_kafka_offsets import DeadLetters, Staging
from airflow_kafka_offsets.formats.json_schema_format import JsonSchema
from airflow_kafka_offsets.formats.protobuf_format import Protobuf
from tests.support.avro import wire as with_id
from tests.support.clients import Kafka, produce
from tests.support.loads import Loader, TopicFactory, rows
from tests.support.protobuf import VERSIONS, encode, wire
from tests.support.registry import fake_registry

pytestmark = pytest.mark.server

DDL = (
    "id BIGINT, name STRING, ratio DOUBLE, large DECIMAL(20,0), data BINARY, seen TIMESTAMP, took DECIMAL(21,9), "
    "kind STRING, boxed BIGINT"
)


def test_three_schemas_of_protobuf(postgres_loader: Loader, kafka: Kafka, topic: TopicFactory) -> None:
    name = topic()
    value: dict[str, Any] = {
        "id": -(2**31),
        "ratio": float("nan"),
        "large": 2**64 - 1,
        "data": b"\0\xff",
        "seen": {"seconds": -1, "nanos": 999_999_999},
        "took": {"seconds": -315_576_000_000, "nanos": -1},
        "kind": 1,
    }
    texts: dict[int, dict[str, Any]] = {
        1: {"first_name": "größer 😀"},
        2: {"name": "größer 😀"},
        3: {"name": "größer 😀", "boxed": {"value": -(2**63)}},
    }
    good = [wire(version, encode(version, value | more)) for version, more in texts.items()] * 100
    produce(kafka, name, [*good, good[0][:-1], None, wire(3, b"")])

    with fake_registry() as registry:
        for version, schema in VERSIONS.items():
            registry.register(f"{name}-value", schema, kind="PROTOBUF", number=version)
        postgres_loader.connections = {"registry": registry.config}
        record_format = Protobuf(DDL, registry_conn_id="registry", message="Order")
        result = postgres_loader(
            name, value_format=record_format, on_bad_record=DeadLetters(), staging=Staging(slice_offsets=50)
        )

    assert (result.rows, result.dead_letters) == (302, 1)
    found = rows(
        postgres_loader.engine,
        "SELECT coalesce(name, '-'), boxed, count(*), id, ratio::text, large, data, seen AT TIME ZONE 'UTC', took, "
        "kind FROM target"
        " WHERE id <> 0 GROUP BY 1, 2, 4, 5, 6, 7, 8, 9, 10 ORDER BY 1, 2",
    )
    instant, took = datetime(1969, 12, 31, 23, 59, 59, 999_999), Decimal("-315576000000.000000001")
    rest = (100, -(2**31), "NaN", Decimal(2**64 - 1), b"\0\xff", instant, took, "PAID")
    assert [(*row[:6], bytes(row[6]), *row[7:]) for row in found] == [
        ("-", None, *rest),
        ("größer 😀", -(2**63), *rest),
        ("größer 😀", None, *rest),
    ]
    assert rows(postgres_loader.engine, "SELECT id, name, kind FROM target WHERE _kafka_offset >= 300 ORDER BY 1") == [
        (0, "", "UNKNOWN"),
        (None, None, None),
    ]


def test_json_with_ids(postgres_loader: Loader, kafka: Kafka, topic: TopicFactory) -> None:
    name = topic()
    fields = {"id": {"type": "integer"}, "day": {"type": "string", "format": "date"}}
    produce(kafka, name, [with_id(1 + number % 3, b'{"id": %d, "day": "0001-01-01"}' % number) for number in range(90)])
    with fake_registry() as registry:
        for _ in range(3):
            registry.register(f"{name}-value", {"type": "object", "properties": fields}, kind="JSON")
        postgres_loader.connections = {"registry": registry.config}
        result = postgres_loader(
            name, value_format=JsonSchema(registry_conn_id="registry"), staging=Staging(slice_offsets=20)
        )
    assert result.rows == 90
    found = rows(postgres_loader.engine, "SELECT min(id), max(id), count(*), min(day)::text FROM target")
    assert found == [(0, 89, 90, "0001-01-01")]
