"""A login that the database refuses is a configuration error, and no outage: nobody retries it until the time is
out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.providers.common.compat.sdk import AirflowFailException
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import BatchBounds, KafkaLagSensor
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.operators.batch import KafkaReplayPlanOperator
from tests.support.clients import Kafka
from tests.support.command_line import DB, CommandLine, database_connection, failed, kafka_connection
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory
from tests.support.task_context import task_context

pytestmark = pytest.mark.server


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory."""
    return log


@pytest.fixture
def refused(postgres_engine: Engine) -> Iterator[Engine]:
    """A database, with a wrong password."""
    engine = sa.create_engine(postgres_engine.url.set(password="wrong"))
    yield engine
    engine.dispose()


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refused: Engine, kafka: Kafka
) -> CommandLine:
    """Commands, and the connections of operators, with that database."""
    connections = {"warehouse": database_connection(refused), "kafka_default": kafka_connection(kafka)}
    return CommandLine(monkeypatch, capsys, connections | {"spark_default": json.dumps({"conn_type": "spark"})})


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"password": "wrong"}, 'password authentication failed for user "postgres"'),
        ({"username": "nobody"}, 'password authentication failed for user "nobody"'),
        ({"password": None}, "no password supplied"),
        ({"database": "nowhere"}, 'database "nowhere" does not exist'),
    ],
    ids=["password", "user", "no password", "database"],
)
def test_a_load_fails_at_once(
    postgres_engine: Engine, kafka: Kafka, topic: TopicFactory, wrong: dict[str, Any], reason: str
) -> None:
    # Not `set`, which takes None for unchanged.
    engine = sa.create_engine(postgres_engine.url._replace(**wrong))
    with pytest.raises(
        ConfigurationError, match=f"the database refuses the login: .*{reason}.* Correct the user"
    ) as raised:
        Loader(kafka, engine, InlineLauncher())(topic())
    engine.dispose()
    assert not raised.value.retriable


@pytest.mark.usefixtures("cli")
def test_a_sensor_fails_at_once() -> None:
    sensor = KafkaLagSensor(task_id="wait", group_id="g", topics="t", conn_id="warehouse", min_lag=1)
    with pytest.raises(AirflowFailException, match=r"the database refuses the login: .*password authentication failed"):
        sensor.poke(task_context("wait"))


@pytest.mark.usefixtures("cli")
def test_a_plan_of_a_replay_fails_at_once() -> None:
    plan = KafkaReplayPlanOperator(
        task_id="plan", group_id="g", topics=["t"], parts=1, bounds=BatchBounds(1), conn_id="warehouse"
    )
    with pytest.raises(ConfigurationError, match=r"the database refuses the login: .*password authentication failed"):
        plan.execute(task_context("plan"))


def test_a_command_says_so(cli: CommandLine) -> None:
    done = cli("show", "g", *DB)
    assert "the database refuses the login: " in failed(done, "show")
    assert "Correct connection 'warehouse'" in done.stderr
