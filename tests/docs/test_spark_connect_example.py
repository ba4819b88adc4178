"""The example of Spark Connect, with its connection: it loads through a real server."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from airflow.cli.cli_parser import get_parser
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Staging
from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from devstack.spark_connect import SparkConnectServer
from tests.docs.test_docs import snippets
from tests.support.loads import TopicFactory, rows
from tests.support.task_context import task_context

pytestmark = pytest.mark.server


def test_the_example_loads(
    monkeypatch: pytest.MonkeyPatch,
    kafka: KafkaBroker,
    postgres_engine: Engine,
    topic: TopicFactory,
    spark_connect: SparkConnectServer,
    tmp_path: Path,
) -> None:
    (command,) = (code for code in snippets("docs/clusters.md", "sh") if "spark_remote" in code)
    typed = get_parser().parse_args(shlex.split(command.replace("\\\n", " "))[1:])
    given = {
        "conn_type": typed.conn_type,
        "host": typed.conn_host,
        "port": int(typed.conn_port),
        "login": typed.conn_login,
        "password": typed.conn_password,
        "extra": json.loads(typed.conn_extra),
    }
    # The server of the test has no TLS.
    here = {**given, **spark_connect.connection, "extra": {"use_ssl": False}}
    assert here.keys() == given.keys()
    name = topic(partitions=2)
    produce_orders(kafka.bootstrap_servers, name, 50)
    url = postgres_engine.url.set(drivername="postgres").render_as_string(hide_password=False)
    kafka_default = {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers}}
    for conn_id, text in (
        (typed.conn_id, json.dumps(here)),
        ("kafka_default", json.dumps(kafka_default)),
        ("warehouse", url),
    ):
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", text)
    (code,) = (code for code in snippets("docs/clusters.md", "python") if "spark_remote" in code)
    example: dict[str, Any] = {}
    exec(code, example)
    load = example["load"]
    load.topics, load.staging, load.assets = [name], Staging(dir=str(tmp_path)), False

    done = load.execute(task_context())

    assert done["rows"] == 50
    assert rows(postgres_engine, "SELECT count(DISTINCT id) FROM orders") == [(50,)]
    assert list(tmp_path.iterdir()) == []
