"""The tutorial, typed as it stands there. Only the addresses and passwords are those of the test."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.kafka.config import check_config
from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from devstack.secured_kafka import SecuredKafka
from devstack.topics import create_topic
from tests.docs.test_docs import snippets
from tests.support.loads import rows
from tests.support.warm_airflow import WarmAirflowHome

pytestmark = pytest.mark.server

TUTORIAL = "docs/tutorial.md"


def test_the_connections_of_the_tutorial_are_accepted() -> None:
    connections = json.loads(snippets(TUTORIAL, "json")[0])

    assert check_config(connections["kafka_default"]["extra"]) == connections["kafka_default"]["extra"]
    assert {name: connection["conn_type"] for name, connection in connections.items()} == {
        "kafka_default": "kafka",
        "spark_default": "spark",
        "warehouse": "postgres",
    }


@pytest.mark.long  # test_guides.py and the test above are its short siblings
def test_tutorial_works_as_written(secured_kafka: SecuredKafka, database: str, tmp_path: Path) -> None:
    # The broker's first listener is for those who set up.
    broker: KafkaBroker = secured_kafka
    create_topic(broker.bootstrap_servers, "orders", 4)
    produce_orders(broker.bootstrap_servers, "orders", 1000)
    secured_kafka.allow("User:loader", "Read", "topic", "orders")
    (tmp_path / "ca.pem").write_text(secured_kafka.authority.certificate, encoding="utf-8")
    login = secured_kafka.sasl("loader", "loader-secret")
    url = sa.make_url(database)

    connections = json.loads(snippets(TUTORIAL, "json")[0])
    connections["kafka_default"]["extra"] |= {
        "bootstrap.servers": login["bootstrap.servers"],
        "sasl.password": login["sasl.password"],
        "ssl.ca.location": str(tmp_path / "ca.pem"),
    }
    connections["warehouse"] |= {
        "host": url.host,
        "port": url.port,
        "login": url.username,
        "password": url.password,
        "schema": url.database,
    }
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "load_orders.py").write_text(snippets(TUTORIAL, "python")[0], encoding="utf-8")
    install, *typed = snippets(TUTORIAL, "sh")
    commands = [shlex.split(line) for line in "".join([install.split("\n", 1)[1], *typed]).splitlines()]

    with WarmAirflowHome(dags=tmp_path / "dags") as home:
        (home.directory / "connections.json").write_text(json.dumps(connections), encoding="utf-8")
        printed = []
        for command in commands:
            if command[0] == "rm":
                (home.directory / command[1]).unlink()
                continue
            assert command[0] in ("airflow", "kafka-offsets")
            run = home.run(*command[command[0] == "airflow" :])
            printed.append(run.stdout + run.stderr)
            assert run.returncode == 0, (command, printed[-1][-8000:])

    engine = sa.create_engine(database)
    assert rows(engine, "SELECT count(*), count(DISTINCT (_kafka_partition, _kafka_offset)) FROM orders") == [
        (1000, 1000)
    ]
    assert rows(engine, "SELECT count(*) FROM offset_batches") == [(1,)]
    engine.dispose()
