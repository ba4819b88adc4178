"""`verify` in Airflow."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import asdict

import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.exceptions import ConfigurationError, VerificationError, Violation
from airflow_kafka_offsets.operators.positions import KafkaVerifyOperator
from airflow_kafka_offsets.operators.retry_policy import retry_cannot_help
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.facts import Coverage
from devstack.kafka import KafkaBroker
from tests.support.airflow_runs import DAGS, airflow_uri
from tests.support.clients import produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names
from tests.support.warm_airflow import WarmAirflowHome

pytestmark = pytest.mark.server


@pytest.mark.broker  # the task runs in a process of its own
def test_the_operator_hands_on_what_was_proved(
    postgres_engine: Engine, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))
    Loader(kafka, postgres_engine, InlineLauncher())(name)
    connections = {
        "kafka_default": json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers}}),
        "warehouse": airflow_uri(postgres_engine),
    }
    with WarmAirflowHome(dags=DAGS, connections=connections) as home:
        run = home.run("dags", "test", "verify_under_test")
        with contextlib.closing(sqlite3.connect(home.directory / "airflow.db")) as metadata:
            pushed = metadata.execute("SELECT value FROM xcom WHERE key = 'return_value'").fetchall()

    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-5000:]
    coverage = Coverage("loader", 1, 1, 10, 10, 0, 0, None, True, reread=10)
    assert [json.loads(value) for (value,) in pushed] == [asdict(coverage)]


def test_the_operator_says_what_it_needs_and_is_not_retried_in_vain() -> None:
    sink = SqlTable("target", conn_id="warehouse")
    KafkaVerifyOperator(task_id="verify", group_id="loader", sink=sink)

    assert retry_cannot_help(VerificationError("loader", (Violation("something is wrong"),)))
    with pytest.raises(ConfigurationError, match="The sink 'target' has no conn_id"):
        KafkaVerifyOperator(task_id="verify", group_id="loader", sink=SqlTable("target"))
    keyed = SqlTable("target", conn_id="warehouse", upsert_key=("id",))
    with pytest.raises(ConfigurationError, match="Leave out kafka_conn_id"):
        KafkaVerifyOperator(task_id="verify", group_id="loader", sink=keyed, kafka_conn_id="kafka_default")
