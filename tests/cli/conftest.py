"""The command line of a test, and which of its databases prove the commands every day."""

from __future__ import annotations

import json

import pytest
from sqlalchemy.engine import Engine

from tests.support.clients import Kafka, produce
from tests.support.command_line import CommandLine, database_connection, kafka_connection
from tests.support.loads import Loader, TopicFactory, half_loaded_topic, names
from tests.support.rewind_commands import Rewinds


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], engine: Engine, kafka: Kafka
) -> CommandLine:
    """Commands with connections to the database and the log of the test."""
    connections = {
        "warehouse": database_connection(engine),
        "kafka_default": kafka_connection(kafka),
        "spark_default": json.dumps({"conn_type": "spark", "host": "local[2]"}),
    }
    return CommandLine(monkeypatch, capsys, connections)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands wait a second for a cluster that does not answer."""
    for module in ("command", "doctor_checks"):
        monkeypatch.setattr(f"airflow_kafka_offsets.cli.{module}.KAFKA_TIMEOUT_SECONDS", 1.0)


@pytest.fixture
def loaded_topic(inline_loader: Loader, kafka: Kafka, topic: TopicFactory) -> str:
    """A topic with 5 records, all of which group `loader` has loaded."""
    name = topic()
    produce(kafka, name, names(0, 5))
    inline_loader(name)
    return name


@pytest.fixture
def rewinds(inline_loader: Loader, topic: TopicFactory, cli: CommandLine) -> Rewinds:
    return Rewinds(inline_loader, cli, half_loaded_topic(inline_loader, topic))
