"""A real Airflow with the pages: the API server alone, which is all that they need, beside DAGs that were parsed
once.
"""

from __future__ import annotations

import signal
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devstack.airflow import AirflowHome
from devstack.process import ServerProcess, wait_until

_DAGS = """
from airflow.sdk import DAG
from airflow_kafka_offsets import Json, KafkaBatchOperator, SqlTable

for dag_id, task_id, group in (
    ("shop", "load_orders", "orders"),
    ("payments_hourly", "load_payments", "payments"),
    ("clicks", "load_clicks", "clicks"),
):
    with DAG(dag_id, schedule=None) as dag:
        KafkaBatchOperator(
            task_id=task_id, group_id=group, topics=[group], value_format=Json("id BIGINT, name STRING"),
            sink=SqlTable(group, conn_id="warehouse"),
        )
    globals()[dag_id] = dag

with DAG("mapped", schedule="@hourly"):
    KafkaBatchOperator.partial(
        task_id="load", group_id="events_{{ task.topics[0] }}", value_format=Json("id BIGINT, name STRING"),
        sink=SqlTable("events_eu", conn_id="warehouse"),
    ).expand(topics=[["events_eu"], ["events_us"]])

with DAG("elsewhere", schedule="@hourly"):
    KafkaBatchOperator(
        task_id="load", group_id="elsewhere", topics=["more"], value_format=Json("id BIGINT"),
        sink=SqlTable("more", conn_id="warehouse"), kafka_conn_id="kafka_down",
    )
"""


def write_dags(folder: Path) -> Path:
    """Write a file with the DAGs of the groups of `web_groups.shop`."""
    (folder / "shop.py").write_text(_DAGS)
    return folder


def register(home: AirflowHome, dags: Path, conn_id: str) -> None:
    """Add a DAG that names a database, and parse it."""
    text = (
        _DAGS.partition("for dag_id")[0]
        + f"""
with DAG("registers_{conn_id}", schedule=None):
    KafkaBatchOperator(
        task_id="load", group_id="more", topics=["more"], value_format=Json("id BIGINT"),
        sink=SqlTable("more", conn_id={conn_id!r}),
    )
"""
    )
    (dags / f"{conn_id}.py").write_text(text)
    parse(home)


def parse(home: AirflowHome) -> None:
    """Parse the DAGs of a home."""
    done = home.run("dags", "reserialize")
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def api_server(home: AirflowHome) -> Iterator[None]:
    """Parse the DAGs of a home, and run its API server."""
    parse(home)
    program = str(Path(sys.executable).with_name("airflow"))
    log = home.directory / "api-server.log"
    server = ServerProcess(
        "airflow api-server", [program, "api-server"], log=log, env=home.env, scratch=home.directory
    ).start()
    try:
        wait_until(lambda: _answers(home), 300, "the API server to answer", details=server.log_tail)
        yield
    finally:
        server.signal(signal.SIGTERM)
        server.stop(timeout=20)


def _answers(home: AirflowHome) -> bool:
    try:
        with urllib.request.urlopen(f"{home.url}/api/v2/monitor/health", timeout=5):
            return True
    except OSError:
        return False
