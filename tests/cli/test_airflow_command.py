"""`airflow kafka-offsets …` as it is typed: what reaches standard output, standard error and the status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import StateTables
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.topics import delete_topic
from tests.support.clients import produce
from tests.support.command_line import database_connection, kafka_connection
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names
from tests.support.warm_airflow import WarmAirflowHome

pytestmark = [pytest.mark.server, pytest.mark.broker]


def test_data_notes_and_failures_go_where_a_shell_expects_them(
    kafka: KafkaBroker, postgres_engine: Engine, topic: TopicFactory
) -> None:
    loader = Loader(kafka, postgres_engine, InlineLauncher())
    name, gone = topic(), topic()
    produce(kafka, name, names(0, 3))
    loader(name, gone, state_tables=StateTables(prefix="my_"), sink=SqlTable("target"))
    produce(kafka, name, names(3, 2))
    connections = {
        "warehouse": database_connection(postgres_engine),
        # Is warned about.
        "kafka_default": kafka_connection(kafka, **{"enable.ssl.certificate.verification": "false"}),
    }
    db = ("--conn-id", "warehouse", "--prefix", "my_")
    with WarmAirflowHome(connections=connections) as home:
        shown = home.run("kafka-offsets", "show", "loader", *db, "--output", "json")
        delete_topic(kafka.bootstrap_servers, gone)
        with AirflowHome(connections=connections) as cold:
            incomplete = cold.run("kafka-offsets", "lag", "loader", *db, "--output", "plain")
        unknown = home.run("kafka-offsets", "history", "loder", *db)

    assert shown.returncode == 0, shown.stderr
    assert {row["topic"]: row["lag"] for row in json.loads(shown.stdout)} == {name: 2, gone: 0}
    assert "TLS certificates of the Kafka brokers are not verified" in shown.stderr

    assert incomplete.returncode == 1
    assert incomplete.stdout.splitlines()[-1].split()[:4] == ["loader", "TOTAL", "2", "2"]
    assert incomplete.stderr.splitlines()[-1].startswith("kafka-offsets lag: the lag of group 'loader' is incomplete")

    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr.splitlines()[-1].startswith("kafka-offsets history: ")
    assert "'loader'" in unknown.stderr.splitlines()[-1]


def test_connections_that_users_have_added_are_found(tmp_path: Path) -> None:
    """They are in Airflow's metadata database, where Airflow lets only some processes look."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/warehouse.db")
    with WarmAirflowHome() as home:
        home.migrate()
        added = home.run("connections", "add", "added", "--conn-uri", database_connection(engine))
        created = home.run("kafka-offsets", "init", "--conn-id", "added")
        other = home.run("kafka-offsets", "groups", "--conn-id", "another")

    assert added.returncode == 0, added.stderr
    assert created.returncode == 0, created.stderr
    assert sa.inspect(engine).has_table("consumed_offsets")
    assert (other.returncode, other.stderr.splitlines()[-1]) == (
        1,
        "kafka-offsets groups: The conn_id `another` isn't defined. Name another connection, or add this one: 'airflow "
        "connections add'",
    )
    engine.dispose()
