"""Loads of Protobuf messages, and of JSON with ids, into a table: new fields, dead letters, and ids that a registry
does not know any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import DeadLetters, ExtraColumns
from airflow_kafka_offsets.exceptions import NewFieldError, RecordError
from airflow_kafka_offsets.formats.json_schema_format import JsonSchema
from airflow_kafka_offsets.formats.protobuf_format import Protobuf
from tests.support.avro import wire as with_id
from tests.support.clients import Kafka, producer
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, positions, rows
from tests.support.memory_log import MemoryLog
from tests.support.protobuf import wire
from tests.support.registry import FakeRegistry, fake_registry


class Case(NamedTuple):
    """A format, two versions of a schema, and records of them with the ids 1 and 2."""

    kind: str
    format: Any
    key_format: Any
    schemas: tuple[Any, Any]
    first: bytes
    second: bytes
    bad: bytes


def properties(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "integer"} for name in names}}


CASES = [
    Case(
        "PROTOBUF",
        Protobuf(registry_conn_id="registry"),
        Protobuf("k BIGINT", registry_conn_id="registry"),
        tuple(f'syntax = "proto3"; message Order {{ int64 id = 1; {more} }}' for more in ("", "int64 level = 2;")),  # type: ignore[arg-type]
        wire(1, b"\x08\x01", 0),
        wire(2, b"\x08\x02\x10\x05", 0),
        wire(1, b"\x08", 0),
    ),
    Case(
        "JSON",
        JsonSchema(registry_conn_id="registry"),
        JsonSchema("k BIGINT", registry_conn_id="registry"),
        (properties("id"), properties("id", "level")),
        with_id(1, b'{"id": 1}'),
        with_id(2, b'{"id": 2, "level": 5}'),
        with_id(1, b'{"id": "s3cret"}'),
    ),
]


@pytest.fixture(params=CASES, ids=lambda case: case.kind)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    return MemoryLog().install(monkeypatch)


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry


@pytest.fixture
def loader(kafka: Kafka, registry: FakeRegistry, engine: Engine) -> Loader:
    return Loader(kafka, engine, InlineLauncher(), connections={"registry": registry.config})


@pytest.fixture
def orders(registry: FakeRegistry, topic: TopicFactory, case: Case) -> str:
    name = topic()
    registry.register(f"{name}-value", case.schemas[0], kind=case.kind)
    return name


def put(loader: Loader, topic: str, *values: bytes | None, key: bytes | None = None) -> None:
    writer = producer(loader.kafka)
    for value in values:
        writer.produce(topic, partition=0, key=key, value=value)
    assert writer.flush(30) == 0


def test_new_fields_become_columns_and_schemas_are_stored(
    case: Case, loader: Loader, registry: FakeRegistry, orders: str
) -> None:
    put(loader, orders, case.first)
    loader(orders, value_format=case.format)
    registry.register(f"{orders}-value", case.schemas[1], kind=case.kind)
    put(loader, orders, case.second, None)
    with pytest.raises(NewFieldError, match="level"):
        loader(
            orders, value_format=replace(case.format, ddl="id BIGINT"), extra_columns=ExtraColumns(on_new_field="fail")
        )

    loader(orders, value_format=case.format, extra_columns=ExtraColumns(on_new_field="add"))

    assert rows(loader.engine, "SELECT id, level FROM target ORDER BY _kafka_offset") == [
        (1, None),
        (2, 5),
        (None, None),
    ]
    stored = rows(
        loader.engine,
        "SELECT s.batch_id, s.schema_id, t.type FROM batch_schemas s JOIN schema_texts t ON t.digest = s.digest ORDER "
        "BY 1, 2",
    )
    assert stored == [(1, 1, case.format.stored_kind), (2, 2, case.format.stored_kind)]
    assert_exactly_once(loader.engine)


def test_bad_records_are_dead_lettered_with_reasons_that_hold_no_values(
    case: Case, loader: Loader, orders: str
) -> None:
    put(loader, orders, case.first, case.bad, case.first[:4], with_id(9, b""), key=case.first[:5])
    with pytest.raises(RecordError, match=f"topic '{orders}' partition 0 offset 1 cannot be loaded: schema 1: "):
        loader(orders, value_format=case.format)
    assert positions(loader.engine) == {}

    result = loader(orders, value_format=case.format, on_bad_record=DeadLetters())

    assert (result.rows, result.dead_letters) == (1, 3)
    errors = [error for (error,) in rows(loader.engine, "SELECT error FROM dead_letters ORDER BY offset_value")]
    assert [error.partition(":")[0] for error in errors][::2] == ["schema 1", "schema 9"]
    assert "s3cret" not in json.dumps(errors)


def test_keys_have_schemas_of_their_own(case: Case, loader: Loader, registry: FakeRegistry, orders: str) -> None:
    schema = properties("k") if case.kind == "JSON" else 'syntax = "proto3"; message Key { int64 k = 1; }'
    registry.register(f"{orders}-key", schema, kind=case.kind)
    key = with_id(2, b'{"k": 7}') if case.kind == "JSON" else wire(2, b"\x08\x07", 0)
    put(loader, orders, case.first, None, key=key)
    put(loader, orders, case.first)
    loader(orders, value_format=case.format, extra_columns=ExtraColumns(key_format=case.key_format))
    assert rows(loader.engine, "SELECT k, id FROM target ORDER BY _kafka_offset") == [(7, 1), (7, None), (None, 1)]
