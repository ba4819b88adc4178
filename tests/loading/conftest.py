"""Fixtures of tests of consumer groups, and the databases on which the cases of planning run."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.loading import after_commit
from devstack.kafka import KafkaBroker
from tests.support.loads import TopicFactory
from tests.support.mirrors import cluster_of


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads wait for their mirrors, however slow the machine is."""
    monkeypatch.setattr(after_commit, "AFTER_COMMIT_SECONDS", 120.0)


@pytest.fixture
def cluster(kafka: KafkaBroker) -> Cluster:
    return cluster_of(kafka)


@pytest.fixture
def group(topic: TopicFactory) -> str:
    """A name that no consumer group has."""
    return f"mirror-{topic()}"
