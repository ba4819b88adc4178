"""Fixtures of the tests of sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import FunctionSink
from devstack.mariadb import MariaDbServer
from tests.support import functions
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
    if inline_loader.engine.dialect.name == "mysql":  # which does not list them
        return
    with inline_loader.engine.connect() as conn:
        assert sa.inspect(conn).get_temp_table_names() == []


@pytest.fixture
def callable_loader(inline_loader: Loader) -> Loader:
    """Loads into a database with the tables of `functions.insert`."""
    functions.create(inline_loader.engine)
    return inline_loader


@pytest.fixture
def four(callable_loader: Loader, topic: TopicFactory) -> str:
    """A topic of four records."""
    name = topic()
    produce(callable_loader.kafka, name, names(0, 4))
    return name


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], FunctionSink]:
    """Let a function of a test be imported, and return the sink that calls it."""

    def as_sink(function: Callable[..., Any]) -> FunctionSink:
        monkeypatch.setattr(functions, "of_test", function, raising=False)
        return functions.sink("of_test")

    return as_sink


@pytest.fixture(params=["load", "insert"])
def way(request: pytest.FixtureRequest, mariadb: MariaDbServer) -> Iterator[str]:
    """LOAD DATA LOCAL, and what is done where the server does not allow it."""
    mariadb.execute(f"SET GLOBAL local_infile = {int(request.param == 'load')}")
    yield request.param
    mariadb.execute("SET GLOBAL local_infile = 1")
