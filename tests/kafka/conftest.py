"""Fixtures of the tests of Kafka."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets.kafka.cluster import Cluster
from tests.support.clients import Kafka
from tests.support.memory_log import MemoryLog


@pytest.fixture(params=["memory", "broker"])
def memory_and_broker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """A log in memory, and then a real broker: both have the same answers."""
    if request.param == "memory":
        return MemoryLog().install(monkeypatch)
    kafka: Kafka = request.getfixturevalue("broker")
    return kafka


@pytest.fixture
def cluster(kafka: Kafka) -> Cluster:
    return Cluster({"bootstrap.servers": kafka.bootstrap_servers})
