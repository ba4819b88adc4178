"""Fixtures of tests of consumer groups, and the databases on which the cases of planning run."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets.kafka.cluster import Cluster
from devstack.kafka import KafkaBroker
from tests.support.loads import TopicFactory
from tests.support.mirrors import cluster_of

# Here SQLite is left to the cases that keep the real broker; the others of them run on it in `make soak`.
_SQLITE_WITH_THE_BROKER = (
    "test_bounds_of_loads",
    "test_changed_logs",
    "test_clean_up",
    "test_dead_letters",
    "test_older_ledger",
    "test_starts",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        is_of_planning = item.path.parent.name == "loading" and item.path.stem in _SQLITE_WITH_THE_BROKER
        if parameters.get("engine") == "sqlite" and is_of_planning and not item.get_closest_marker("broker"):
            item.add_marker(pytest.mark.long)


@pytest.fixture
def cluster(kafka: KafkaBroker) -> Cluster:
    return cluster_of(kafka)


@pytest.fixture
def group(topic: TopicFactory) -> str:
    """A name that no consumer group has."""
    return f"mirror-{topic()}"
