"""What is made of the answers of a Kafka cluster."""

from __future__ import annotations

import gc
import socketserver
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.threads import in_background
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    KafkaOffsetsError,
    KafkaUnavailableError,
    UnknownTopicError,
)
from airflow_kafka_offsets.kafka import admin
from airflow_kafka_offsets.kafka import cluster as cluster_module
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.errors import reasons

API_VERSIONS, METADATA, INVALID_TOPIC, NOT_ASKED = 18, 3, 17, -(2**31)

DAY = {"cleanup.policy": "delete", "retention.ms": "86400000", "retention.bytes": "-1"}


def answered(answer: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(answer)
    return future


def failed_with(error: Exception) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
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


class Broker(socketserver.StreamRequestHandler):
    """A broker as far as a client needs it that asks for its cluster. From the second answer on, the cluster has no
    brokers, as while all are fenced.
    """

    answers = 0

    def handle(self) -> None:
        while len(size := self.rfile.read(4)) == 4:
            request = self.rfile.read(int.from_bytes(size))
            api, _, correlation, length = struct.unpack_from(">hhih", request)
            if api == API_VERSIONS:
                answer = struct.pack(">hB3hB3hBiB", 0, 3, API_VERSIONS, 0, 3, 0, METADATA, 0, 8, 0, 0, 0)
            else:
                assert api == METADATA
                (topics,) = struct.unpack_from(">i", request, 10 + length)
                answer = self._metadata(topics)
            self.wfile.write(struct.pack(">ii", 4 + len(answer), correlation) + answer)

    def _metadata(self, topics: int) -> bytes:
        Broker.answers += 1
        (host, port), alone = self.connection.getsockname(), 1 if Broker.answers == 1 else 0
        broker = struct.pack(">ih9sih", 1, len(host), host.encode(), port, -1) * alone
        cluster = struct.pack(">h4sii", 4, b"here", 1 if alone else -1, topics)
        topic = struct.pack(">hh1sBii", INVALID_TOPIC, 1, b"/", 0, 0, NOT_ASKED) * topics
        return struct.pack(">ii", 0, alone) + broker + cluster + topic + struct.pack(">i", NOT_ASKED)


ASKS = """
import sys
from airflow_kafka_offsets.kafka.cluster import Cluster

cluster = Cluster({"bootstrap.servers": sys.argv[1]})
print(cluster.cluster_id(), cluster.cluster_id(), Cluster(cluster.config).cluster_id())
"""


def test_a_cluster_without_brokers_does_not_end_the_process_that_asks_for_its_id() -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Broker) as server:
        server.daemon_threads = True
        in_background(server.serve_forever)
        try:
            command = (sys.executable, "-c", ASKS, "{}:{}".format(*server.server_address))
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        finally:
            server.shutdown()
    assert (done.returncode, done.stdout) == (0, "here here here\n"), done.stderr


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError.UNKNOWN])
def test_a_client_whose_request_failed_ends_at_once_in_a_thread_of_its_own(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: SimpleQueue[int] = SimpleQueue()

    class Client:
        def __init__(self, *_: object, **__: object) -> None: ...

        def poll(self, _: float) -> None: ...

        def __del__(self) -> None:
            ended.put(threading.get_ident())

    def request(client: AdminClient, _: float) -> Future[Any]:
        def work() -> None:
            assert client is not None
            raise KafkaException(KafkaError(code))

        return in_background(work)

    monkeypatch.setattr(admin, "AdminClient", Client)
    monkeypatch.setattr(admin, "_FIRST_PAUSE_SECONDS", 0.0)
    asking = admin.RetryingAdmin({"bootstrap.servers": "127.0.0.1:1"}, 0.05)
    gc.disable()
    try:
        with pytest.raises(KafkaUnavailableError):
            asking.ask_once("anything", request, Future.result)
        assert ended.get(timeout=30) != threading.get_ident()
    finally:
        gc.enable()


class TestManyUnknownTopics:
    @pytest.fixture(autouse=True)
    def cluster_of_one_topic(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compared: list[str] = []
        self.listed = 0

        def compare(name: str, _: object) -> list[str]:
            self.compared.append(name)
            return ["orders"]

        def list_topics(*_: object, **__: object) -> SimpleNamespace:
            self.listed += 1
            return SimpleNamespace(topics=["orders"])

        monkeypatch.setattr(admin, "get_close_matches", compare)
        monkeypatch.setattr(admin, "_UNKNOWN_GRACE_SECONDS", 0.0)
        monkeypatch.setattr(AdminClient, "list_topics", list_topics)

    def ask(self, code: int, failed: dict[str, KafkaOffsetsError] | None) -> None:
        def request(_: object, keys: Collection[str], __: float) -> dict[str, Future[Any]]:
            return {key: failed_with(KafkaException(KafkaError(code))) for key in keys}

        names = [f"order{number}" for number in range(10_000)]
        admin.RetryingAdmin({"bootstrap.servers": "127.0.0.1:1"}, 60.0).ask("its topics", names, request, failed=failed)

    def test_a_few_are_named_and_compared_with_all(self) -> None:
        with pytest.raises(UnknownTopicError) as raised:
            self.ask(KafkaError.UNKNOWN_TOPIC_OR_PART, None)

        assert (len(self.compared), self.listed) == (10, 1)
        assert "topic 'order1005', and 9990 more, or this user may not describe it" in str(raised.value)
        assert "(this user sees 'orders')" in str(raised.value)

    @pytest.mark.parametrize("code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED])
    def test_so_are_those_that_each_have_an_error(self, code: int) -> None:
        failed: dict[str, KafkaOffsetsError] = {}

        self.ask(code, failed)

        assert (len(failed), len(self.compared), self.listed) == (10_000, 10, 1)
        assert "(this user sees 'orders')" in str(failed["order0"])
        assert "(this user sees" not in str(failed["order9999"])


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
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, *answers: Sequence[tuple[int, KafkaError | None]]
    ) -> dict[TopicPartition, int]:
        """What is found with these offsets and errors of the two partitions, one answer after another."""
        remaining = iter(answers)

        def committed_of_group(*_: object) -> list[SimpleNamespace]:
            return [
                SimpleNamespace(topic=tp.topic, partition=tp.partition, offset=offset, error=error)
                for tp, (offset, error) in zip(self.ORDERS, next(remaining), strict=True)
            ]

        monkeypatch.setattr(cluster_module, "committed_of_group", committed_of_group)
        return cluster.committed("group", self.ORDERS)

    def test_a_partition_without_a_commit_is_left_out(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.committed(cluster, monkeypatch, [(5, None), (-1001, None)]) == {self.ORDERS[0]: 5}

    def test_a_partition_that_does_not_exist_has_no_commit(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        assert self.committed(cluster, monkeypatch, [(5, None), (-1001, unknown)]) == {self.ORDERS[0]: 5}

    def test_a_partition_that_this_user_may_not_see_is_not_one_without_a_commit(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(ConfigurationError, match=r"group 'group' committed: .* the ACL Describe on topic 'orders'"):
            self.committed(cluster, monkeypatch, [(5, None), (-1001, refused)])

    def test_a_passing_error_of_a_partition_is_asked_again(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        passing = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
        found = self.committed(cluster, monkeypatch, [(5, None), (-1001, passing)], [(5, None), (7, None)])
        assert found == {self.ORDERS[0]: 5, self.ORDERS[1]: 7}
