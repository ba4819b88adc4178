"""Openings that the tests of replays share: a loader with a log in memory, and a topic that it has loaded."""

from __future__ import annotations

import pytest

from tests.support.clients import Kafka, produce
from tests.support.loads import Loader, TopicFactory, names
from tests.support.replays import Replayer


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


@pytest.fixture
def replayer(inline_loader: Loader) -> Replayer:
    return Replayer(inline_loader)


@pytest.fixture
def orders(inline_loader: Loader, topic: TopicFactory) -> str:
    """Two partitions of twenty records, of which the loader has loaded all."""
    name = topic(partitions=2)
    for partition in range(2):
        produce(inline_loader.kafka, name, names(100 * partition, 20), partition)
    inline_loader(name)
    return name
