"""What is made of the answers of a Kafka cluster."""

from __future__ import annotations

import socketserver
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.threads import in_background
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.errors import reasons

API_VERSIONS, METADATA, INVALID_TOPIC, NOT_ASKED = 18, 3, 17, -(2**31)

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


def test_a_cause_that_is_reported_again_and_again_is_named_once() -> None:
    refused = "127.0.0.1:9092/bootstrap: Connect to ipv4#127.0.0.1:9092 failed: Connection refused"
    times = [f" (after {n}ms in state CONNECT)" for n in range(20)]
    times += [f" (after {n}ms in state CONNECT, {n} identical error(s) suppressed)" for n in range(20)]
    others = [f"broker {n} is down (why not)" for n in range(5)]
    errors = [KafkaError(KafkaError._TRANSPORT, text) for text in [*(refused + time for time in times), *others]]
    assert reasons(errors) == f"{refused}; broker 0 is down (why not); broker 1 is down (why not); and 3 more"
    assert reasons([]) == ""


class _WithoutBrokers(socketserver.StreamRequestHandler):
    """A broker that shows no broker, as one does right after it starts."""

    def handle(self) -> None:
        while len(size := self.rfile.read(4)) == 4:
            api, _, correlation = struct.unpack_from(">hhi", self.rfile.read(int.from_bytes(size)))
            if api == API_VERSIONS:
                answer = struct.pack(">hB3hB3hBiB", 0, 3, API_VERSIONS, 0, 3, 0, METADATA, 0, 8, 0, 0, 0)
            else:
                assert api == METADATA
                topic = struct.pack(">hh1sBi i", INVALID_TOPIC, 1, b"/", 0, 0, NOT_ASKED)
                answer = struct.pack(">iih4sii", 0, 0, 4, b"here", -1, 1) + topic + struct.pack(">i", NOT_ASKED)
            self.wfile.write(struct.pack(">ii", 4 + len(answer), correlation) + answer)


def test_a_cluster_that_shows_no_broker_yet_has_an_id() -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _WithoutBrokers) as server:
        server.daemon_threads = True
        in_background(server.serve_forever)
        try:
            cluster = Cluster({"bootstrap.servers": f"127.0.0.1:{server.server_address[1]}"}, timeout=10)
            assert cluster.cluster_id() == "here"
        finally:
            server.shutdown()


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
        return cluster.retention(list(topics), self.unknown)

    @pytest.fixture(autouse=True)
    def _unknown(self) -> None:
        self.unknown: dict[str, str] = {}

    def test_retention_is_that_of_the_topic(self, cluster: Cluster, answer: Callable[..., None]) -> None:
        assert self.retention(cluster, answer, {"orders": DAY}) == {"orders": timedelta(days=1)}

    @pytest.mark.parametrize("setting", DAY)
    def test_a_topic_with_a_setting_that_the_broker_hides_is_left_out_and_hides_no_other(
        self, cluster: Cluster, answer: Callable[..., None], setting: str
    ) -> None:
        missing = {name: value for name, value in DAY.items() if name != setting}
        topics: dict[str, Mapping[str, str | None]] = {"missing": missing, "null": DAY | {setting: None}, "orders": DAY}
        assert self.retention(cluster, answer, topics) == {"orders": timedelta(days=1)}
        hidden = "Kafka does not report cleanup.policy, retention.ms, retention.bytes of topic"
        assert self.unknown == {name: f"{hidden} {name!r}" for name in ("missing", "null")}

    @pytest.mark.parametrize(
        "setting", [{"retention.ms": "-1"}, {"retention.bytes": "1000"}, {"cleanup.policy": "compact"}]
    )
    def test_a_topic_that_not_time_alone_empties_is_left_out(
        self, cluster: Cluster, answer: Callable[..., None], setting: dict[str, str]
    ) -> None:
        assert self.retention(cluster, answer, {"orders": DAY | setting}) == {}
        assert self.unknown == {}


class TestCommitted:
    ORDERS = (TopicPartition("orders", 0), TopicPartition("orders", 1))

    def committed(
        self, cluster: Cluster, answer: Callable[..., None], *answers: Sequence[tuple[int, KafkaError | None]]
    ) -> dict[TopicPartition, int]:
        """What is found with these offsets and errors of the two partitions, one answer after another."""
        remaining = iter(answers)

        def list_consumer_group_offsets(groups: Any) -> dict[str, Future[Any]]:
            partitions = [
                SimpleNamespace(topic=tp.topic, partition=tp.partition, offset=offset, error=error)
                for tp, (offset, error) in zip(self.ORDERS, next(remaining), strict=True)
            ]
            return {groups[0].group_id: answered(SimpleNamespace(topic_partitions=partitions))}

        answer("list_consumer_group_offsets", list_consumer_group_offsets)
        return cluster.committed("group", self.ORDERS)

    def test_a_partition_without_a_commit_is_left_out(self, cluster: Cluster, answer: Callable[..., None]) -> None:
        assert self.committed(cluster, answer, [(5, None), (-1001, None)]) == {self.ORDERS[0]: 5}

    def test_a_partition_that_does_not_exist_has_no_commit(self, cluster: Cluster, answer: Callable[..., None]) -> None:
        unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        assert self.committed(cluster, answer, [(5, None), (-1001, unknown)]) == {self.ORDERS[0]: 5}

    def test_a_partition_that_this_user_may_not_see_is_not_one_without_a_commit(
        self, cluster: Cluster, answer: Callable[..., None]
    ) -> None:
        refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(ConfigurationError, match=r"group 'group' committed: .* the ACL Describe on topic 'orders'"):
            self.committed(cluster, answer, [(5, None), (-1001, refused)])

    def test_a_passing_error_of_a_partition_is_asked_again(self, cluster: Cluster, answer: Callable[..., None]) -> None:
        passing = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
        found = self.committed(cluster, answer, [(5, None), (-1001, passing)], [(5, None), (7, None)])
        assert found == {self.ORDERS[0]: 5, self.ORDERS[1]: 7}
