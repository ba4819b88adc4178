"""Fixtures of the tests of sinks."""

from __future__ import annotations

from collections.abc import Callable as Function
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import Callable
from tests.support import callables
from tests.support.clients import Kafka, produce
from tests.support.loads import Loader, TopicFactory, names


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


@pytest.fixture
def inline_loader(inline_loader: Loader) -> Iterator[Loader]:
    """Leaves no temporary table behind, in no connection."""
    yield inline_loader
    with inline_loader.engine.connect() as conn:
        assert sa.inspect(conn).get_temp_table_names() == []


@pytest.fixture
def callable_loader(inline_loader: Loader) -> Loader:
    """Loads into a database with the tables of `callables.insert`."""
    callables.create(inline_loader.engine)
    return inline_loader


@pytest.fixture
def four(callable_loader: Loader, topic: TopicFactory) -> str:
    """A topic of four records."""
    name = topic()
    produce(callable_loader.kafka, name, names(0, 4))
    return name


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> Function[[Function[..., Any]], Callable]:
    """Let a function of a test be imported, and return the sink that calls it."""

    def as_sink(function: Function[..., Any]) -> Callable:
        monkeypatch.setattr(callables, "of_test", function, raising=False)
        return callables.sink("of_test")

    return as_sink
