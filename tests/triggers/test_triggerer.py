"""Real Airflow, with a triggerer process of its own: an asset that is watched, and sensors in every mode."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from devstack.postgres import PostgresServer
from devstack.process import wait_until
from devstack.topics import create_topic
from tests.support.airflow_runs import DAGS, airflow_uri
from tests.support.clients import produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, names
from tests.support.statsd import metrics

# The other files of this folder run the triggers themselves every day.
pytestmark = [pytest.mark.server, pytest.mark.long]

EXAMPLES = Path(__file__).resolve().parents[2] / "example_dags"
WAITED = "waited_for"
TIMEOUT = 300.0


@pytest.fixture(scope="module")
def warehouse(postgres: PostgresServer) -> Iterator[Engine]:
    engine = sa.create_engine(postgres.create_database("lag_triggerer"))
    yield engine
    engine.dispose()
    postgres.drop_database("lag_triggerer")


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    """One of its own: nobody else's records in the topic of the example."""
    with KafkaBroker() as kafka:
        yield kafka


@pytest.fixture(scope="module")
def told() -> Iterator[tuple[int, Callable[[], dict[str, str]]]]:
    with metrics() as listening:
        yield listening


@pytest.fixture(scope="module")
def home(
    broker: KafkaBroker,
    warehouse: Engine,
    told: tuple[int, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[AirflowHome]:
    create_topic(broker.bootstrap_servers, "orders", 4)
    create_topic(broker.bootstrap_servers, WAITED, 1, {"message.timestamp.type": "LogAppendTime"})
    dags = tmp_path_factory.mktemp("dags")
    for path in (EXAMPLES / "load_orders_on_lag.py", DAGS / "wait_for_lag.py"):
        shutil.copy(path, dags)
    connections = {
        "kafka_default": json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": broker.bootstrap_servers}}),
        "spark_default": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "warehouse": airflow_uri(warehouse),
    }
    config = {
        "core.dags_are_paused_at_creation": "False",
        "metrics.statsd_on": "True",
        "metrics.statsd_host": "127.0.0.1",
        "metrics.statsd_port": str(told[0]),
        "metrics.statsd_influxdb_enabled": "True",
    }
    with AirflowHome(dags=dags, connections=connections, config=config, env={"LAG_UNDER_TEST": WAITED}) as home:
        home.start()
        yield home


@pytest.fixture(scope="module", autouse=True)
def _waiting(home: AirflowHome, broker: KafkaBroker, warehouse: Engine) -> None:
    """Start all sensors of `wait_for_lag`. They wait while the asset is watched, which saves half a minute."""
    Loader(broker, warehouse, InlineLauncher())(WAITED, group_id="loader")
    produce(broker, WAITED, names(0, 5))
    triggered = home.run("dags", "trigger", "wait_for_lag")
    assert triggered.returncode == 0, triggered.stderr


def query(home: AirflowHome, statement: str) -> list[Any]:
    """What Airflow's database says."""
    with closing(sqlite3.connect(f"file:{home.directory}/airflow.db?mode=ro", uri=True, timeout=30)) as conn:
        return conn.execute(statement).fetchall()


def triggerer_log(home: AirflowHome) -> str:
    return (home.directory / "triggerer.log").read_text(encoding="utf-8", errors="replace")


def test_a_triggerer_starts_the_run_that_the_lag_asks_for(
    home: AirflowHome, broker: KafkaBroker, warehouse: Engine, told: tuple[int, Callable[[], dict[str, str]]]
) -> None:
    def runs() -> list[Any]:
        return query(home, "SELECT state FROM dag_run WHERE dag_id = 'load_orders_on_lag'")

    def loaded() -> int:
        with warehouse.connect() as conn:
            if not sa.inspect(conn).has_table("lag_orders"):
                return 0
            found = conn.scalar(sa.text("SELECT count(DISTINCT (_kafka_partition, _kafka_offset)) FROM lag_orders"))
        return int(found or 0)

    few = produce_orders(broker.bootstrap_servers, "orders", 500)
    wait_until(lambda: "watchers currently running" in triggerer_log(home), TIMEOUT, "a watcher", interval=0.5)
    seen: dict[str, str] = {}

    def looked() -> bool:
        seen.update(told[1]())
        return seen.get("kafka_offsets.lag,group_id=lag_orders_loader,topic=orders") == f"{few}.0|g"

    wait_until(looked, TIMEOUT, "a look of the triggerer, which tells the metrics", interval=0.5)
    assert runs() == []
    more = produce_orders(broker.bootstrap_servers, "orders", 1500)
    wait_until(lambda: loaded() == few + more, TIMEOUT, "the load", interval=0.5)
    wait_until(lambda: runs() == [("success",)], TIMEOUT, "the end of the run", interval=0.5)
    # The load has an event of its own.
    (extra,) = query(home, "SELECT extra FROM asset_event WHERE source_dag_id IS NULL")
    assert json.loads(extra[0])["payload"]["met"] == ["min_lag"]


def test_sensors_wait_in_every_mode(home: AirflowHome) -> None:
    def states() -> dict[str, str]:
        return dict(query(home, "SELECT task_id, state FROM task_instance WHERE dag_id = 'wait_for_lag'"))

    def ended() -> bool:
        found = states()
        return len(found) == 8 and set(found.values()) <= {"success", "failed", "skipped"}

    wait_until(ended, TIMEOUT, "all sensors to end", interval=0.5, details=lambda: str(states()))
    assert states() == {
        "poke": "success",
        "reschedule": "success",
        "deferred": "success",
        "soft_poke": "skipped",
        # Airflow 3.1 does not skip a sensor whose time is over while it is deferred.
        "soft_deferred": "failed" if version("apache-airflow").startswith("3.1.") else "skipped",
        "late_poke": "failed",
        "late_deferred": "failed",
        "unknown": "failed",
    }
    ((tries,),) = query(home, "SELECT try_number FROM task_instance WHERE task_id = 'unknown'")
    assert tries == 1
    reports = query(home, "SELECT task_id, value FROM xcom WHERE dag_id = 'wait_for_lag' AND key = 'return_value'")
    found = {task: json.loads(value) for task, value in reports}
    assert {task: (one["met"], one["report"]["lag"]) for task, one in found.items()} == dict.fromkeys(
        ("poke", "reschedule", "deferred"), (["max_delay"], 5)
    )
