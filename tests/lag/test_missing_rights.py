"""A user who may not see everything of a topic: what commands, sensors and triggers make of it, against a real broker
with ACLs.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.sensors.lag import KafkaLagSensor
from airflow_kafka_offsets.triggers.lag import KafkaLagTrigger
from devstack.secured_kafka import SecuredKafka
from devstack.topics import create_topic
from tests.support.clients import produce
from tests.support.command_line import DB, CommandLine, database_connection, findings
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, names
from tests.support.running_triggers import arguments, running

pytestmark = pytest.mark.server

DAY = timedelta(days=1)


@pytest.fixture
def kafka(secured_kafka: SecuredKafka) -> SecuredKafka:
    return secured_kafka


@pytest.fixture
def topic(kafka: SecuredKafka, postgres_engine: Engine) -> str:
    """A topic that another user has loaded a half of, into the database of the test."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    create_topic(kafka.bootstrap_servers, name, 1)
    produce(kafka, name, names(0, 2))
    Loader(kafka, postgres_engine, InlineLauncher())(name)
    produce(kafka, name, names(2, 2))
    return name


@pytest.fixture
def allow(kafka: SecuredKafka, topic: str) -> Callable[[str], None]:
    return lambda operation: kafka.allow("User:loader", operation, "topic", topic)


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kafka: SecuredKafka, postgres_engine: Engine
) -> CommandLine:
    login = json.dumps({"conn_type": "kafka", "extra": kafka.sasl("loader", "loader-secret")})
    connections = {"warehouse": database_connection(postgres_engine), "kafka_default": login}
    return CommandLine(monkeypatch, capsys, connections)


def sensor(topic: str, **thresholds: Any) -> KafkaLagSensor:
    options = {"group_id": "loader", "topics": topic, "conn_id": "warehouse"}
    return KafkaLagSensor(task_id="wait", **options, **thresholds)  # type: ignore[arg-type]


class TestWithoutDescribeConfigs:
    @pytest.fixture(autouse=True)
    def _describe(self, allow: Callable[[str], None]) -> None:
        allow("Describe")

    @pytest.mark.parametrize("command", ["show", "lag"])
    def test_commands_go_on_and_say_once_why_the_headroom_is_unknown(
        self, cli: CommandLine, topic: str, allow: Callable[[str], None], command: str
    ) -> None:
        done = cli(command, "loader", *DB, "--output", "json")
        assert (done.status, done.json[0]["lag"], done.json[0]["headroom_time_seconds"]) == (0, 2, None)
        assert done.stderr.count("DescribeConfigs") == 1
        (line,) = (line for line in done.stderr.splitlines() if line.startswith("The headroom in time is unknown: "))
        assert f"user 'loader' needs the ACL DescribeConfigs on topic '{topic}'" in line
        allow("DescribeConfigs")
        done = cli(command, "loader", *DB, "--output", "json")
        assert done.json[0]["headroom_time_seconds"] is not None
        assert "headroom" not in done.stderr

    @pytest.mark.usefixtures("cli")
    def test_a_sensor_that_would_wait_for_ever_fails_at_once(self, topic: str) -> None:
        with pytest.raises(AirflowFailException, match=rf"can never be met.*DescribeConfigs on topic '{topic}'"):
            sensor(topic, min_headroom=DAY).poke({})

    @pytest.mark.usefixtures("cli")
    def test_so_does_one_that_is_deferred(self, topic: str) -> None:
        async def wait() -> Any:
            async with running(KafkaLagTrigger(**arguments(topic, min_headroom=DAY))) as (one,):
                return await one.event()

        error = asyncio.run(wait())["error"]
        assert error.startswith("ConfigurationError: min_headroom=")
        assert f"DescribeConfigs on topic '{topic}'" in error

    @pytest.mark.usefixtures("cli")
    def test_other_thresholds_are_compared_and_nothing_is_said(
        self, topic: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert sensor(topic, min_lag=2, max_delay=DAY).poke({}).is_done
        assert "DescribeConfigs" not in caplog.text


class TestDoctor:
    def test_each_acl_is_looked_at_and_none_that_loads_do_not_need_is_demanded(
        self, cli: CommandLine, topic: str, allow: Callable[[str], None]
    ) -> None:
        def look() -> dict[str, tuple[str, str]]:
            rows = findings(cli("doctor", *DB, "--topic", topic, "--output", "json"))
            return {name: (rows[name]["result"], rows[name]["found"]) for name in ("Kafka topics", "headroom in time")}

        found = look()
        assert found["Kafka topics"][0] == "failed"
        assert f"needs the ACL Describe on topic '{topic}'" in found["Kafka topics"][1]
        assert found["headroom in time"] == ("skipped", "the topics are not read")
        allow("Describe")
        result, message = look()["Kafka topics"]
        assert result == "failed"
        assert f"Records cannot be read: user 'loader' needs the ACL Read on topic '{topic}'" in message
        allow("Read")
        found = look()
        assert found["Kafka topics"] == ("ok", "1 topic, 1 partition")
        assert found["headroom in time"][0] == "warning"
        assert f"needs the ACL DescribeConfigs on topic '{topic}'" in found["headroom in time"][1]
        allow("DescribeConfigs")
        assert look()["headroom in time"] == ("ok", "known; 1 topic has a retention in time")


class TestWithoutDescribe:
    def test_a_command_names_the_right_in_its_report(self, cli: CommandLine, topic: str) -> None:
        done = cli("show", "loader", *DB, "--output", "json")
        assert done.status == 1
        assert f"user 'loader' needs the ACL Describe on topic '{topic}'" in done.json[0]["error"]
        assert "Or the name is misspelt" in done.json[0]["error"]

    @pytest.mark.usefixtures("cli")
    def test_a_sensor_does_not_wait_for_it(self, topic: str) -> None:
        with pytest.raises(AirflowFailException, match=f"needs the ACL Describe on topic '{topic}'"):
            sensor(topic, min_lag=1).poke({})
