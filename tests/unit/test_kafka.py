"""What is made of the answers of a Kafka cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from airflow_kafka_offsets.kafka import Cluster

DAY = {"cleanup.policy": "delete", "retention.ms": "86400000", "retention.bytes": "-1"}


def answered(answer: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(answer)
    return future


@pytest.fixture
def cluster() -> Cluster:
    """A cluster that no test connects to: the requests are replaced."""
    return Cluster({"bootstrap.servers": "127.0.0.1:1"})


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[..., Any]], None]:
    """Replaces a request of the client."""
    return lambda request, reply: monkeypatch.setattr(
        AdminClient, request, lambda _, *asked, **__: reply(*asked), raising=True
    )


class TestRetention:
    def retention(
        self, cluster: Cluster, answer: Callable[..., None], topics: Mapping[str, Mapping[str, str | None]]
    ) -> dict[str, timedelta]:
        def describe_configs(resources: Any) -> dict[Any, Future[Any]]:
            return {
                one: answered({name: SimpleNamespace(value=value) for name, value in topics[one.name].items()})
                for one in resources
            }

        answer("describe_configs", describe_configs)
        return cluster.retention(list(topics))

    def test_it_is_that_of_the_topic(self, cluster: Cluster, answer: Callable[..., None]) -> None:
        assert self.retention(cluster, answer, {"orders": DAY}) == {"orders": timedelta(days=1)}

    @pytest.mark.parametrize("setting", DAY)
    def test_a_topic_with_a_setting_that_the_broker_hides_is_left_out_and_hides_no_other(
        self, cluster: Cluster, answer: Callable[..., None], setting: str
    ) -> None:
        missing = {name: value for name, value in DAY.items() if name != setting}
        topics: dict[str, Mapping[str, str | None]] = {"missing": missing, "null": DAY | {setting: None}, "orders": DAY}
        assert self.retention(cluster, answer, topics) == {"orders": timedelta(days=1)}

    @pytest.mark.parametrize(
        "setting", [{"retention.ms": "-1"}, {"retention.bytes": "1000"}, {"cleanup.policy": "compact"}]
    )
    def test_a_topic_that_not_time_alone_empties_is_left_out(
        self, cluster: Cluster, answer: Callable[..., None], setting: dict[str, str]
    ) -> None:
        assert self.retention(cluster, answer, {"orders": DAY | setting}) == {}
