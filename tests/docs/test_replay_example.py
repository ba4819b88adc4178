"""The example DAG that replays: beside the one that loads, over the same table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from devstack.topics import create_topic
from tests.support.warm_airflow import WarmAirflowHome

# tests/replaying/ and tests/operators/ have the short siblings.
pytestmark = [pytest.mark.server, pytest.mark.long]

EXAMPLES = Path(__file__).resolve().parents[2] / "example_dags"


def test_replay_example_replaces_the_rows_of_the_loading_example(kafka: KafkaBroker, database: str) -> None:
    create_topic(kafka.bootstrap_servers, "orders", 4)
    produce_orders(kafka.bootstrap_servers, "orders", 2000)
    engine = sa.create_engine(database)
    connections = {
        "kafka_default": json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers}}),
        "spark_default": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "warehouse": engine.url.set(drivername="postgres").render_as_string(hide_password=False),
    }
    span = {"since": "1970-01-02T00:00:00Z", "until": "2100-01-01T00:00:00Z", "reason": "a test"}
    with WarmAirflowHome(dags=EXAMPLES, connections=connections) as home:
        load = home.run("dags", "test", "load_orders", "2026-01-01")
        assert load.returncode == 0, (load.stdout + load.stderr)[-8000:]
        replay = home.run("dags", "test", "replay_orders", "2026-01-01", "--conf", json.dumps(span), timeout=600)

    assert replay.returncode == 0, (replay.stdout + replay.stderr)[-8000:]
    with engine.connect() as conn:
        ((count, distinct),) = conn.execute(
            sa.text("SELECT count(*), count(DISTINCT (_kafka_partition, _kafka_offset)) FROM orders")
        ).all()
        ((loaded,),) = conn.execute(sa.text("SELECT sum(offset_value) FROM consumed_offsets")).all()
        batches = conn.execute(
            sa.text("SELECT kind, reason, count(*) FROM offset_batches GROUP BY 1, 2 ORDER BY 1")
        ).all()
        ((left,),) = conn.execute(sa.text("SELECT count(*) FROM orders WHERE _batch_id = 1")).all()
    engine.dispose()
    assert count == distinct == loaded
    assert left == 0
    assert [tuple(batch) for batch in batches] == [("load", None, 1), ("replay", "a test", 2)]
