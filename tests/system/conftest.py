"""Servers that a test may stop, kill and freeze."""

from collections.abc import Iterator

import pytest

from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer


@pytest.fixture
def own_kafka() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server
