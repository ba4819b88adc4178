"""Databases and a broker that triggers find by their connections, and every poll that they see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.lag.shared_poll import PollResult
from airflow_kafka_offsets.lag.thresholds import LagWatch
from devstack.kafka import KafkaBroker
from tests.support.command_line import database_connection, kafka_connection
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader
from tests.support.running_triggers import Looked


@pytest.fixture
def on_both(inline_loader: Loader, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> Loader:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", database_connection(inline_loader.engine))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", kafka_connection(kafka))
    return inline_loader


@pytest.fixture
def connected(kafka: KafkaBroker, postgres_engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> Loader:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", database_connection(postgres_engine))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", kafka_connection(kafka))
    return Loader(kafka, postgres_engine, InlineLauncher())


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Looked:
    """Every look of every trigger: a test that nothing fires waits for looks, not for time."""
    # It imports Airflow, which this file may not: pytest may read it before the session has its AIRFLOW_HOME.
    from airflow_kafka_offsets.triggers import lag as module

    found: Looked = []
    looking = module.watch

    async def noting(watched: LagWatch) -> AsyncIterator[PollResult | Exception]:
        async with aclosing(looking(watched)) as looks:
            async for look in looks:
                found.append(look)
                yield look

    monkeypatch.setattr(module, "watch", noting)
    return found
