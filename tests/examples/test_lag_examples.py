"""The example DAGs that wait for lag, in real Airflow: scheduler, DAG processor, and a triggerer process of its own."""

from __future__ import annotations

import json
import re
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from devstack.process import wait_until
from devstack.topics import create_topic

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "example_dags"


@pytest.fixture
def warehouse(database: str) -> Iterator[Engine]:
    engine = sa.create_engine(database)
    yield engine
    engine.dispose()


def home_of(kafka: KafkaBroker, warehouse: Engine, **config: str) -> AirflowHome:
    connections = {
        "kafka_default": json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers}}),
        "spark_default": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "warehouse": warehouse.url.set(drivername="postgres").render_as_string(hide_password=False),
    }
    return AirflowHome(dags=EXAMPLES, connections=connections, config=config)


def loaded(warehouse: Engine, table: str) -> tuple[int, int]:
    """How many rows there are, and how many different records they are from; none without the table."""
    with warehouse.connect() as conn:
        if not sa.inspect(conn).has_table(table):
            return 0, 0
        ((rows, records),) = conn.execute(
            sa.text(f"SELECT count(*), count(DISTINCT (_kafka_partition, _kafka_offset)) FROM {table}")
        ).all()
    return rows, records


def runs(home: AirflowHome, dag_id: str) -> list[str]:
    """The states of the runs of a DAG, the oldest first."""
    with closing(sqlite3.connect(f"file:{home.directory}/airflow.db?mode=ro", uri=True, timeout=30)) as conn:
        return [state for (state,) in conn.execute("SELECT state FROM dag_run WHERE dag_id = ? ORDER BY id", [dag_id])]


def test_a_triggerer_starts_the_run_that_the_lag_asks_for(warehouse: Engine) -> None:
    with KafkaBroker() as kafka:
        create_topic(kafka.bootstrap_servers, "orders", 4)
        few = produce_orders(kafka.bootstrap_servers, "orders", 500)
        with home_of(kafka, warehouse, **{"core.dags_are_paused_at_creation": "True"}) as home:
            home.start()
            home.run("dags", "unpause", "load_orders_on_lag", "--yes")

            def watching() -> bool:
                log = (home.directory / "triggerer.log").read_text(encoding="utf-8", errors="replace")
                return "1 watchers currently running" in log

            wait_until(watching, 120, "the triggerer to watch the lag", interval=0.5)
            assert runs(home, "load_orders_on_lag") == []
            more = produce_orders(kafka.bootstrap_servers, "orders", 1500)
            wait_until(
                lambda: loaded(warehouse, "lag_orders") == (few + more, few + more), 180, "the load", interval=0.5
            )
            wait_until(lambda: runs(home, "load_orders_on_lag") == ["success"], 60, "the end of the run", interval=0.5)


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
        with home_of(kafka, warehouse, **config) as home:
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
        re.findall(r"`(kafka_offsets\.[\w.]+)`", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"))
    )
    assert {name.partition(",")[0] for name in told} <= documented


@contextmanager
def metrics() -> Iterator[tuple[int, Callable[[], dict[str, str]]]]:
    """A StatsD server, as far as it receives: its port, and the last value of each metric of this package."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        # What comes while nobody reads has room here.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)
        server.setblocking(False)

        def received() -> dict[str, str]:
            found: dict[str, str] = {}
            with suppress(BlockingIOError):
                while True:
                    line = server.recv(65536).decode()
                    name, _, value = line.removeprefix("airflow.").rpartition(":")
                    if name.startswith("kafka_offsets."):
                        found[name] = value
            return found

        yield server.getsockname()[1], received


def test_each_hour_has_its_orders(kafka: KafkaBroker, warehouse: Engine) -> None:
    create_topic(kafka.bootstrap_servers, "orders", 4)
    with home_of(kafka, warehouse) as home:
        run = home.run("dags", "test", "load_orders_hourly", "2026-01-01T10:00:00")

    assert run.returncode == 0, (run.stdout + run.stderr)[-8000:]
    with warehouse.connect() as conn:
        assert conn.scalar(sa.text("SELECT count(*) FROM consumer_groups WHERE group_id = 'hourly_orders_loader'")) == 1
