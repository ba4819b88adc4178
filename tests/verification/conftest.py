"""Openings of the tests of `verify`."""

from __future__ import annotations

import pytest

from devstack.kafka import KafkaBroker
from tests.support.clients import Kafka, produce
from tests.support.loads import Loader, TopicFactory, names
from tests.support.verifying import LEFT_OUT


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


@pytest.fixture
def two_batches(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> str:
    """Batch 1: offsets 0..10 of partition 0, of which 7 is a dead letter, and 0..5 of partition 1; batch 2: 10..15."""
    name = topic(partitions=2)
    produce(kafka, name, [*names(0, 7), b"{not json", *names(8, 2)])
    produce(kafka, name, names(100, 5), 1)
    inline_loader(name, **LEFT_OUT)
    produce(kafka, name, names(10, 5))
    inline_loader(name, **LEFT_OUT)
    return name
