"""The example DAGs of loads that wait, or have an interval. The one that runs on lag is in `test_lag_triggerer.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from devstack.topics import create_topic
from tests.support.statsd import metrics
from tests.support.warm_airflow import WarmAirflowHome

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "example_dags"


@pytest.fixture
def warehouse(database: str) -> Iterator[Engine]:
    engine = sa.create_engine(database)
    yield engine
    engine.dispose()


def connections_of(kafka: KafkaBroker, warehouse: Engine) -> dict[str, str]:
    return {
        "kafka_default": json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers}}),
        "spark_default": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "warehouse": warehouse.url.set(drivername="postgres").render_as_string(hide_password=False),
    }


def loaded(warehouse: Engine, table: str) -> tuple[int, int]:
    """How many rows there are, and how many different records they are from; none without the table."""
    with warehouse.connect() as conn:
        if not sa.inspect(conn).has_table(table):
            return 0, 0
        ((rows, records),) = conn.execute(
            sa.text(f"SELECT count(*), count(DISTINCT (_kafka_partition, _kafka_offset)) FROM {table}")
        ).all()
    return rows, records


# tests/sensors/ and tests/triggers/ have the short siblings.
@pytest.mark.long
def test_a_sensor_waits_and_the_load_follows_and_both_tell_the_metrics(kafka: KafkaBroker, warehouse: Engine) -> None:
    create_topic(kafka.bootstrap_servers, "orders", 4)
    count = produce_orders(kafka.bootstrap_servers, "orders", 100_000)
    with metrics() as (port, received):
        config = {
            "metrics.statsd_on": "True",
            "metrics.statsd_host": "127.0.0.1",
            "metrics.statsd_port": str(port),
            "metrics.statsd_influxdb_enabled": "True",
        }
        with AirflowHome(dags=EXAMPLES, connections=connections_of(kafka, warehouse), config=config) as home:
            run = home.run("dags", "test", "load_enough_orders", "2026-01-01")
        told = received()

    assert run.returncode == 0, (run.stdout + run.stderr)[-8000:]
    rows, records = loaded(warehouse, "enough_orders")
    assert rows == records >= count
    topic, group = ",group_id=enough_orders_loader,topic=orders", ",group_id=enough_orders_loader,kind=load"
    assert told[f"kafka_offsets.lag{topic}"] == f"{records}.0|g"
    assert told[f"kafka_offsets.partition_errors{topic}"] == "0.0|g"
    assert told[f"kafka_offsets.commit.records{group},topic=orders"] == f"{records}|c"
    assert told[f"kafka_offsets.commit.rows{group}"] == f"{rows}|c"
    assert told[f"kafka_offsets.commit.duration{group}"].endswith("|ms")
    documented = set(
        re.findall(r"`(kafka_offsets\.[\w.]+)`", (ROOT / "docs" / "operate.md").read_text(encoding="utf-8"))
    )
    assert {name.partition(",")[0] for name in told} <= documented


def test_each_hour_has_its_orders(kafka: KafkaBroker, warehouse: Engine) -> None:
    create_topic(kafka.bootstrap_servers, "orders", 4)
    with WarmAirflowHome(dags=EXAMPLES, connections=connections_of(kafka, warehouse)) as home:
        run = home.run("dags", "test", "load_orders_hourly", "2026-01-01T10:00:00")

    assert run.returncode == 0, (run.stdout + run.stderr)[-8000:]
    with warehouse.connect() as conn:
        assert conn.scalar(sa.text("SELECT count(*) FROM consumer_groups WHERE group_id = 'hourly_orders_loader'")) == 1
