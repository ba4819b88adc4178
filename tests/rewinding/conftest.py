"""Openings that the tests of rewinds share: a database without Kafka, and a group that is half loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import Kafka
from tests.support.loads import Loader, TopicFactory, half_loaded_topic
from tests.support.rewinds import Rewinder
from tests.support.warehouse import T0, T1, Warehouse


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Warehouse]:
    warehouse = Warehouse(tmp_path / "warehouse.db")
    yield warehouse
    warehouse.engine.dispose()


@pytest.fixture
def loaded(db: Warehouse) -> Warehouse:
    """Two batches: orders[0] up to 10 and 20, orders[1] up to 5."""
    db.load({T0: 10, T1: 5})
    db.load({T0: 20})
    return db


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


@pytest.fixture
def rewinder(inline_loader: Loader) -> Rewinder:
    return Rewinder(inline_loader)


@pytest.fixture
def half(rewinder: Rewinder, topic: TopicFactory) -> str:
    """A topic of 200 records, of which the group has loaded 100."""
    return half_loaded_topic(rewinder.loader, topic)
