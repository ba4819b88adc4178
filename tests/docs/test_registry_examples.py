"""The example DAGs of formats with a registry, through Airflow's connections and spark-submit; no secret of the
registry is logged.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from devstack.kafka import KafkaBroker
from devstack.topics import create_topic
from tests.support import avro, protobuf
from tests.support.clients import producer
from tests.support.registry import fake_registry
from tests.support.warm_airflow import WarmAirflowHome

ROOT = Path(__file__).resolve().parents[2]

CANARY = "canary-5b8d"

AVRO_ORDER = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
    ],
}
PROTO_KEY = 'syntax = "proto3"; message Key { string customer_key = 1; }'
PROTO_ORDER = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1;
  optional string customer = 2;
  google.protobuf.Timestamp created = 3;
  double amount = 4;
}
"""
JSON_ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "customer": {"type": ["string", "null"]},
        "amount": {"type": "number"},
        "placed": {"type": "string", "format": "date"},
    },
}


@dataclass(frozen=True)
class Example:
    """A format of an example.

    :param schemas: of keys, if they have one, and of values
    :param key: of each record
    :param value: returns that of an order
    :param columns: those that the documents' formats `declared`, `latest` and `plain` have
    """

    format: str
    kind: str
    schemas: tuple[Any, ...]
    key: bytes | None
    value: Callable[[int], bytes]
    columns: dict[str, list[str]]


def proto(text: str, name: str, **value: Any) -> bytes:
    found: bytes = protobuf.message_class(text, name)(**value).SerializeToString()
    return found


def avro_value(number: int) -> bytes:
    return avro.encode(AVRO_ORDER, {"id": number, "customer": None, "amount": Decimal(number) / 100})


def json_value(number: int) -> bytes:
    return json.dumps({"id": number, "amount": number / 100, "placed": "2026-01-02"}).encode()


EXAMPLES = [
    Example(
        "avro",
        "AVRO",
        ('"string"', AVRO_ORDER),
        avro.wire(1, avro.encode("string", "ada")),
        lambda number: avro.wire(2, avro_value(number)),
        {"declared": ["id", "customer", "amount"], "latest": ["id", "customer", "amount"], "plain": ["id"]},
    ),
    Example(
        "protobuf",
        "PROTOBUF",
        (PROTO_KEY, PROTO_ORDER),
        protobuf.wire(1, proto(PROTO_KEY, "Key", customer_key="ada"), 0),
        lambda number: protobuf.wire(2, proto(PROTO_ORDER, "Order", id=number, amount=number / 100), 0),
        {
            "declared": ["id", "customer", "created"],
            "latest": ["id", "customer", "created", "amount"],
            "plain": ["id", "customer"],
        },
    ),
    Example(
        "json_schema",
        "JSON",
        (JSON_ORDER,),
        None,
        lambda number: avro.wire(1, json_value(number)),
        {"declared": ["id", "amount"], "latest": ["id", "customer", "amount", "placed"]},
    ),
]


@pytest.fixture(params=EXAMPLES, ids=lambda example: example.format)
def example(request: pytest.FixtureRequest) -> Example:
    found: Example = request.param
    return found


def test_the_formats_of_the_documents_have_their_columns(example: Example) -> None:
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    name = {"avro": "Avro", "protobuf": "Protobuf", "json_schema": "JsonSchema"}[example.format]
    (snippet,) = re.findall(
        rf"^```python\n(from airflow_kafka_offsets import {name}\n.*?)^```$", text, re.MULTILINE | re.DOTALL
    )
    formats: dict[str, Any] = {}
    exec(snippet, formats)
    with fake_registry() as registry:
        registry.register("orders-value", example.schemas[-1], kind=example.kind)
        connections = {"registry": registry.config}
        columns = {
            name: formats[name].prepared(["orders"], "value", connections).columns().names for name in example.columns
        }
    assert columns == example.columns


@pytest.mark.long
@pytest.mark.server
def test_the_example_loads(example: Example, kafka: KafkaBroker, database: str) -> None:
    engine = sa.create_engine(database)
    topic = f"{example.format}_orders"
    create_topic(kafka.bootstrap_servers, topic, 2)
    writer = producer(kafka)
    for number in range(100):
        writer.produce(topic, key=example.key, value=example.value(number), partition=number % 2)
    writer.produce(topic, value=avro.wire(9, b""), partition=0)
    assert writer.flush(30) == 0
    with fake_registry() as registry:
        for part, schema in zip(("key", "value")[-len(example.schemas) :], example.schemas, strict=True):
            registry.register(f"{topic}-{part}", schema, kind=example.kind)
        registry.authorization = f"Basic {base64.b64encode(f'ada:{CANARY}'.encode()).decode()}"
        connections = {
            "kafka_default": json.dumps(
                {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers}}
            ),
            "spark_default": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            "registry": json.dumps({"conn_type": "http", "host": registry.url, "login": "ada", "password": CANARY}),
            "warehouse": engine.url.set(drivername="postgres").render_as_string(hide_password=False),
        }
        with WarmAirflowHome(dags=ROOT / "example_dags", connections=connections) as home:
            run = home.run("dags", "test", f"load_{topic}", "2026-01-01")
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-8000:]
    assert CANARY not in run.stdout + run.stderr
    key = "min(customer_key)" if example.key is not None else "'ada'"
    with engine.connect() as conn:
        loaded = conn.execute(sa.text(f"SELECT count(*), {key}, max(amount), max(id) FROM {topic}")).one()
        errors = conn.execute(sa.text("SELECT error FROM dead_letters")).scalars().all()
    engine.dispose()
    assert (*loaded[:2], float(loaded[2]), loaded[3]) == (100, "ada", 0.99, 99)
    # An index path is missing, too: a reason names the id wherever the record has one.
    assert [error.split(":")[0] for error in errors] == ["schema 9"]
