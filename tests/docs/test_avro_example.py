"""The example DAG of Avro loads, through Airflow's connections and spark-submit; no secret of the registry is logged."""

from __future__ import annotations

import base64
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from devstack.kafka import KafkaBroker
from devstack.topics import create_topic
from tests.support.avro import encode, wire
from tests.support.clients import producer
from tests.support.registry import fake_registry
from tests.support.warm_airflow import WarmAirflowHome

ROOT = Path(__file__).resolve().parents[2]

CANARY = "canary-5b8d"

ORDER_COLUMNS = ["id", "customer", "amount"]
ORDER = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
    ],
}


def test_the_formats_of_the_documents_have_their_columns() -> None:
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(
        r"^```python\n(from airflow_kafka_offsets import Avro\n.*?)^```$", text, re.MULTILINE | re.DOTALL
    )
    formats: dict[str, Any] = {}
    exec(snippet, formats)
    with fake_registry() as registry:
        registry.register("orders-value", ORDER)
        connections = {"registry": registry.config}
        columns = {
            name: formats[name].prepared(["orders"], "value", connections).columns().names
            for name in ("declared", "latest", "plain")
        }
    assert columns == {"declared": ORDER_COLUMNS, "latest": ORDER_COLUMNS, "plain": ["id"]}


@pytest.mark.long
@pytest.mark.server
def test_the_example_loads_keys_and_values(kafka: KafkaBroker, database: str) -> None:
    engine = sa.create_engine(database)
    create_topic(kafka.bootstrap_servers, "avro_orders", 2)
    writer = producer(kafka)
    for number in range(100):
        value = encode(ORDER, {"id": number, "customer": None, "amount": Decimal(number) / 100})
        writer.produce("avro_orders", key=wire(1, encode("string", "ada")), value=wire(2, value), partition=number % 2)
    writer.produce("avro_orders", value=wire(3, b""), partition=0)
    assert writer.flush(30) == 0
    with fake_registry() as registry:
        registry.register("avro_orders-key", '"string"')
        registry.register("avro_orders-value", ORDER)
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
            run = home.run("dags", "test", "load_avro_orders", "2026-01-01")
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-8000:]
    assert CANARY not in run.stdout + run.stderr
    with engine.connect() as conn:
        loaded = conn.execute(
            sa.text("SELECT count(*), min(customer_key), max(amount), max(id) FROM avro_orders")
        ).one()
        errors = conn.execute(sa.text("SELECT error FROM dead_letters")).scalars().all()
    engine.dispose()
    assert tuple(loaded) == (100, "ada", Decimal("0.99"), 99)
    assert [error.split(":")[0] for error in errors] == ["schema 3"]
