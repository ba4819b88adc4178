"""Ledgers for tests: an empty database, one with state tables, and a topic to load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.database import transactions
from airflow_kafka_offsets.ledger.install import initialize
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.ledgers import Database
from tests.support.loads import TopicFactory, names
from tests.support.old_tables import create_version_9


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "warehouse.db")
    yield database
    database.engine.dispose()


@pytest.fixture
def db(empty: Database) -> Database:
    initialize(empty.ledger)
    empty.change("CREATE TABLE output (id INTEGER)")
    return empty


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a minute is right for users, and too long for a test."""
    monkeypatch.setattr(transactions, "_SQLITE_PATIENCE_MS", 20)


@pytest.fixture
def orders(kafka: KafkaBroker, topic: TopicFactory) -> str:
    """A topic with ten records."""
    name = topic()
    produce(kafka, name, names(0, 10))
    return name


@pytest.fixture
def old(engine: Engine) -> Engine:
    """A database with state tables of schema version 9."""
    create_version_9(engine)
    return engine
