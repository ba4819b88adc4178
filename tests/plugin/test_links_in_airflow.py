"""The links of tasks as Airflow's API has them, after a run, and the pages that they lead to. Positions are in
SQLite.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from devstack.airflow import USER, AirflowHome
from devstack.kafka import KafkaBroker
from devstack.topics import create_topic
from tests.support.clients import produce
from tests.support.loads import names
from tests.support.web_airflow import api_server

pytestmark = [pytest.mark.server, pytest.mark.long]

_DAG = """
from airflow.sdk import DAG
from airflow_kafka_offsets import (
    Json, KafkaBatchOperator, KafkaLagSensor, KafkaReplayOperator, KafkaRewindOperator, KafkaVerifyOperator, Limits,
    SqlTable, StateTables
)

GROUP = {"group_id": "orders loader", "state_tables": StateTables(prefix="x_")}
LOAD = {"topics": ["orders"], "value_format": Json("id BIGINT, name STRING")}

with DAG("links", schedule=None) as dag:
    (
        KafkaLagSensor(task_id="wait", topics=["orders"], conn_id="warehouse", min_lag=1, **GROUP)
        >> KafkaBatchOperator(
            task_id="load", sink=SqlTable("orders", conn_id="warehouse"), limits=Limits(max_records=3), **LOAD, **GROUP
        )
        >> KafkaVerifyOperator(task_id="verify", sink=SqlTable("orders", conn_id="warehouse"), **GROUP)
        >> KafkaReplayOperator(
            task_id="replay", sink=SqlTable("copy", conn_id="warehouse"), bounds={"orders": {0: [0, 2]}},
            **LOAD, **GROUP,
        )
        >> KafkaRewindOperator(task_id="rewind", scenario="shift-by", value=-2, conn_id="warehouse", **GROUP)
    )
"""
_RUN = "2026-01-01T00:00:00+00:00"


def _ask(home: AirflowHome, path: str, token: str | None = None, body: Any = None) -> bytes:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = json.dumps(body).encode() if body is not None else None
    with urllib.request.urlopen(urllib.request.Request(f"{home.url}{path}", data, headers), timeout=60) as answer:
        return bytes(answer.read())


def test_every_task_has_its_links_and_they_lead_to_pages(tmp_path: Path) -> None:
    (tmp_path / "links.py").write_text(_DAG)
    with KafkaBroker() as broker:
        create_topic(broker.bootstrap_servers, "orders", 1, {})
        produce(broker, "orders", names(0, 5))
        extra = json.dumps({"bootstrap.servers": broker.bootstrap_servers})
        connections = {
            "kafka_default": json.dumps({"conn_type": "kafka", "extra": extra}),
            "spark_default": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            "warehouse": json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "warehouse.db")}),
        }
        with AirflowHome(dags=tmp_path, connections=connections) as home, api_server(home):
            done = home.run("dags", "test", "links", _RUN, timeout=600)
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
            login = _ask(home, "/auth/token", body={"username": USER, "password": home.password})
            token = json.loads(login)["access_token"]
            (run,) = json.loads(_ask(home, "/api/v2/dags/links/dagRuns", token))["dag_runs"]
            tasks = f"/api/v2/dags/links/dagRuns/{run['dag_run_id']}/taskInstances"
            found = {
                task: json.loads(_ask(home, f"{tasks}/{task}/links", token))["extra_links"]
                for task in ("wait", "load", "verify", "replay", "rewind")
            }
            answers = {
                link: _ask(home, link.removeprefix(home.url), token)
                for links in found.values()
                for link in links.values()
                if link
            }
    group = {"conn_id": "warehouse", "group": "orders loader", "prefix": "x_"}
    pages = {
        task: {
            name: (urlsplit(link).path, {k: v for k, v in parse_qsl(urlsplit(link).query) if group.get(k) != v})
            for name, link in links.items()
        }
        for task, links in found.items()
    }
    first, last = pages["load"]["Rewind"][1].pop("value"), pages["load"]["Batch"][1].pop("batch")
    assert int(first) < int(last), "a batch of three records, and one of two"
    assert all("prefix=x_" in link for link in answers)
    of_group, form, batch = (f"/kafka-offsets/{page}" for page in ("group", "rewind", "batch"))
    assert pages["wait"] == pages["verify"] == {"Group": (of_group, {}), "Rewind": (form, {})}
    assert pages["load"] == {
        "Group": (of_group, {}),
        "Batch": (batch, {}),
        "Rewind": (form, {"scenario": "to-batch"}),
    }
    assert pages["replay"]["Rewind"] == (form, {})
    assert pages["rewind"]["Rewind"] == (form, {"scenario": "undo"})
    for link, page in answers.items():
        assert b"orders loader" in page, link
