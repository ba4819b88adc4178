"""Fixtures of the tests of Iceberg tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.iceberg import IcebergGroup, iceberg_sink
from tests.support.loads import Loader, TopicFactory, names

engine = fixtures.sqlite_engine


# A real REST catalog, whose jars are fetched.
REST = pytest.param("rest", marks=[pytest.mark.server, pytest.mark.long])


@pytest.fixture(params=["positions", "sql", REST])
def where(request: pytest.FixtureRequest) -> str:
    """Where the catalog of the table is."""
    return str(request.param)


@pytest.fixture
def sink(where: str, tmp_path: Path) -> IcebergTable:
    return iceberg_sink(where, tmp_path)


@pytest.fixture
def orders(kafka: Kafka, topic: TopicFactory) -> str:
    """A topic of ten records, the fourth a dead letter."""
    name = topic()
    produce(kafka, name, [*names(0, 3), b"{not json", *names(4, 6)])
    return name


@pytest.fixture
def group(inline_loader: Loader, orders: str, sink: IcebergTable) -> IcebergGroup:
    return IcebergGroup(inline_loader, orders, sink)
