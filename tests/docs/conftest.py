"""The runbook's group, its two clusters, and its commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine

from devstack.kafka import KafkaBroker
from devstack.topics import create_topic, delete_topic
from tests.support.command_line import CommandLine, database_connection, kafka_connection
from tests.support.inline import InlineLauncher
from tests.support.runbook import Orders, Shell


@pytest.fixture(scope="module")
def old_kafka() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def new_kafka() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture
def orders(engine: Engine, old_kafka: KafkaBroker) -> Iterator[Orders]:
    create_topic(old_kafka.bootstrap_servers, "orders", 2, {"retention.ms": "-1"})
    yield Orders(engine, old_kafka)
    delete_topic(old_kafka.bootstrap_servers, "orders")


@pytest.fixture
def airflow(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> CommandLine:
    # Files that commands write and read.
    monkeypatch.chdir(tmp_path)
    # What Spark does to a replay from the command line is tested in tests/cli/test_replay.py.
    monkeypatch.setattr("airflow_kafka_offsets.hooks.connections.make_launcher", lambda *_, **__: InlineLauncher())
    return CommandLine(
        monkeypatch,
        capsys,
        {"warehouse": database_connection(orders.engine), "kafka_default": kafka_connection(orders.kafka)},
    )


@pytest.fixture
def shell(request: pytest.FixtureRequest, orders: Orders, airflow: CommandLine) -> Iterator[Shell]:
    made = Shell(request.param, orders, airflow)
    yield made
    assert made.left == [], "snippets of the section that no test runs"
    assert not orders.paused, "the section leaves the DAG paused"
