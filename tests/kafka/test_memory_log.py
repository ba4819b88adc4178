"""What the product asks of Kafka has the same answer from a real broker and from the log in memory that stands in for
it.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic

from airflow_kafka_offsets.core.offsets import Position, Slice
from airflow_kafka_offsets.core.offsets import TopicPartition as Partition
from airflow_kafka_offsets.exceptions import NoPositionError, UnknownTopicError
from airflow_kafka_offsets.kafka.cluster import Cluster, TimedOffset
from airflow_kafka_offsets.kafka.start_offsets import TimeSearch
from airflow_kafka_offsets.rewinding.previewing import import_offsets
from devstack.process import wait_until
from devstack.topics import create_topic, delete_records, delete_topic, end_offsets
from tests.support import clients
from tests.support.clients import Kafka, commit_to_kafka, more_partitions, produce
from tests.support.loads import TopicFactory
from tests.support.memory_log import MemoryLog
from tests.support.reading import numbers, read_all

pytestmark = pytest.mark.server

NOON = 1_700_000_000_000
KEPT: dict[str, Any] = {"retention_ms": "-1"}


@pytest.fixture
def kafka(memory_and_broker: Kafka) -> Kafka:
    return memory_and_broker


def ends(cluster: Cluster, topic: str) -> list[tuple[int, int]]:
    """The beginning and the end of each partition."""
    return [(log.beginning, log.end) for log in cluster.logs([topic]).values()]


class TestTopics:
    def test_logs_begin_and_end(self, kafka: Kafka, cluster: Cluster, topic: TopicFactory) -> None:
        first, second = topic(partitions=2), topic()
        produce(kafka, first, numbers(0, 5))
        produce(kafka, second, numbers(0, 2))

        logs = cluster.logs([first, second])

        assert {tp: (log.beginning, log.end) for tp, log in logs.items()} == {
            Partition(first, 0): (0, 5),
            Partition(first, 1): (0, 0),
            Partition(second, 0): (0, 2),
        }
        assert cluster.high_watermarks(list(logs)) == {tp: log.end for tp, log in logs.items()}
        assert end_offsets(kafka.bootstrap_servers, first) == {0: 5, 1: 0}
        ids = {tp.topic: log.topic_id for tp, log in logs.items()}
        assert all(re.fullmatch(r"[\w-]{22}", topic_id or "") for topic_id in ids.values())
        assert ids[first] != ids[second]

    def test_a_cluster_keeps_its_id(self, kafka: Kafka, cluster: Cluster) -> None:
        found = cluster.cluster_id()

        assert re.fullmatch(r"[\w-]{22}", found)
        assert Cluster({"bootstrap.servers": kafka.bootstrap_servers}).cluster_id() == found

    def test_an_unknown_topic_is_named(self, kafka: Kafka, cluster: Cluster, topic: TopicFactory) -> None:
        name = topic()

        with pytest.raises(UnknownTopicError, match="has no topic 'no-such-topic', or"):
            cluster.logs([name, "no-such-topic"])
        partial = cluster.partial_logs([name, "no-such-topic"])

        assert (list(partial.logs), list(partial.topic_errors), partial.partition_errors) == (
            [Partition(name, 0)],
            ["no-such-topic"],
            {},
        )
        assert end_offsets(kafka.bootstrap_servers, "no-such-topic") == {}

    def test_deleted_records_move_the_beginning(self, kafka: Kafka, cluster: Cluster, topic: TopicFactory) -> None:
        name = topic(partitions=2)
        produce(kafka, name, numbers(0, 10))

        delete_records(kafka.bootstrap_servers, name, 4)
        assert ends(cluster, name) == [(4, 10), (0, 0)]
        delete_records(kafka.bootstrap_servers, name, 2)
        assert ends(cluster, name) == [(4, 10), (0, 0)]
        with pytest.raises(KafkaException, match="OFFSET_OUT_OF_RANGE"):
            delete_records(kafka.bootstrap_servers, name, 11)
        delete_records(kafka.bootstrap_servers, name, 10)
        assert ends(cluster, name) == [(10, 10), (0, 0)]
        produce(kafka, name, numbers(10, 1))
        assert ends(cluster, name) == [(10, 11), (0, 0)]

    def test_a_recreated_topic_has_another_id(self, kafka: Kafka, cluster: Cluster, topic: TopicFactory) -> None:
        name = topic(partitions=2)
        produce(kafka, name, numbers(0, 3))
        before = cluster.logs([name])[Partition(name, 0)].topic_id

        delete_topic(kafka.bootstrap_servers, name)
        with pytest.raises(UnknownTopicError):
            cluster.logs([name])
        assert create_topic(kafka.bootstrap_servers, name)
        assert not create_topic(kafka.bootstrap_servers, name)

        assert ends(cluster, name) == [(0, 0)]
        assert cluster.logs([name])[Partition(name, 0)].topic_id != before

    def test_partitions_are_added(self, kafka: Kafka, cluster: Cluster, topic: TopicFactory) -> None:
        name = topic()
        produce(kafka, name, numbers(0, 2))

        more_partitions(kafka, name, 3)

        produce(kafka, name, numbers(0, 1), 2)
        assert ends(cluster, name) == [(0, 2), (0, 0), (0, 1)]

    def test_requests_that_cannot_be_met_fail(self, kafka: Kafka, topic: TopicFactory) -> None:
        name, admin = topic(), clients.admin(kafka)
        with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
            admin.create_topics([NewTopic(name, 1)])[name].result(30)
        with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
            admin.delete_topics(["no-such-topic"])["no-such-topic"].result(30)
        outside = TopicPartition("no-such-topic", 0, 1)
        with pytest.raises(KafkaException, match="_NOENT"):
            admin.delete_records([outside])[outside].result(30)

    @pytest.mark.parametrize(
        ("settings", "expected"),
        [
            ({}, timedelta(days=7)),
            ({"retention_ms": 60_000}, timedelta(minutes=1)),
            ({"retention_ms": -1}, None),
            ({"retention_bytes": 10**9}, None),
        ],
        ids=["default", "minute", "for-ever", "by-size"],
    )
    def test_retention_is_that_of_the_topic(
        self, cluster: Cluster, topic: TopicFactory, settings: dict[str, int], expected: timedelta | None
    ) -> None:
        name = topic(**settings)

        assert cluster.retention([name]) == ({} if expected is None else {name: expected})


class TestTimes:
    @pytest.mark.parametrize(
        ("instant", "expected"),
        [(0, (2, 30)), (30, (2, 30)), (31, (4, 50)), (41, (4, 50)), (50, (4, 50)), (51, None)],
    )
    def test_the_first_record_at_or_after_an_instant(
        self, kafka: Kafka, cluster: Cluster, topic: TopicFactory, instant: int, expected: tuple[int, int] | None
    ) -> None:
        name = topic(partitions=2, **KEPT)
        for offset, time in enumerate((10, 20, 30, 25, 50, 45)):
            produce(kafka, name, numbers(offset, 1), timestamp=NOON + time)
        delete_records(kafka.bootstrap_servers, name, 2)
        tp = Partition(name, 0)
        found = {} if expected is None else {tp: TimedOffset(expected[0], NOON + expected[1])}

        # A partition without records has none since any instant.
        instants = dict.fromkeys([tp, Partition(name, 1)], NOON + instant)
        assert cluster.offsets_for_times(instants) == found
        assert cluster.offsets_for_times({tp: NOON + instant}, partial=True) == found
        # Without transactions and compaction, what the broker finds is a record.
        assert TimeSearch(cluster, name).first_records(instants) == found

    def test_a_record_without_a_time_has_that_of_its_arrival(
        self, kafka: Kafka, cluster: Cluster, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(kafka, name, numbers(0, 1))
        (row,) = read_all(kafka, Slice(0, name, 0, 0, 1))

        milliseconds = int(row["timestamp"].timestamp() * 1000)

        assert cluster.offsets_for_times({Partition(name, 0): milliseconds}) == {
            Partition(name, 0): TimedOffset(0, milliseconds)
        }
        assert cluster.offsets_for_times({Partition(name, 0): milliseconds + 1}) == {}

    def test_a_record_of_the_future_is_refused(self, kafka: Kafka, cluster: Cluster, topic: TopicFactory) -> None:
        name, far = topic(), 4_000_000_000_000
        with pytest.raises(AssertionError, match="INVALID_TIMESTAMP"):
            produce(kafka, name, numbers(0, 1), timestamp=far)
        assert ends(cluster, name) == [(0, 0)]

        allowing = topic(message_timestamp_after_max_ms=2**63 - 1)
        produce(kafka, allowing, numbers(0, 1), timestamp=far)
        assert cluster.offsets_for_times({Partition(allowing, 0): NOON}) == {
            Partition(allowing, 0): TimedOffset(0, far)
        }


class TestGroups:
    def test_the_commits_of_a_consumer_group_are_those_of_a_broker(
        self, kafka: Kafka, cluster: Cluster, topic: TopicFactory
    ) -> None:
        name, other = topic(partitions=3), topic()
        commit_to_kafka(kafka, name, name, {0: 4, 2: 0})
        commit_to_kafka(kafka, name, other, {0: 7})
        first, second = Partition(name, 0), Partition(name, 1)

        assert cluster.committed(name, [first, second]) == {first: 4}
        assert cluster.committed(name, None) == {first: 4, Partition(name, 2): 0, Partition(other, 0): 7}
        group = cluster.consumer_group(name)
        assert group is not None
        assert (group.state, group.members) == ("EMPTY", 0)

    def test_a_group_that_does_not_exist(self, kafka: Kafka, cluster: Cluster, topic: TopicFactory) -> None:
        nobody = f"nobody-{topic()}"

        assert cluster.committed(nobody, None) == {}
        assert cluster.consumer_group(nobody) is None
        with pytest.raises(NoPositionError, match="Kafka has no consumer group"):
            import_offsets(cluster, nobody)

    def test_commits_on_behalf_of_a_group(self, kafka: Kafka, cluster: Cluster, topic: TopicFactory) -> None:
        name = topic()
        known, outside = Partition(name, 0), Partition(name, 5)

        refused = cluster.commit(name, {known: Position(9, leader_epoch=0), outside: Position(1)})

        assert refused == {outside: "the cluster has no such partition"}
        assert cluster.committed(name, None) == {known: 9}
        assert cluster.commit(name, {known: Position(3)}) == {}
        assert cluster.committed(name, [known]) == {known: 3}

    def test_commits_go_with_their_topic(self, kafka: Kafka, cluster: Cluster, topic: TopicFactory) -> None:
        name, other = topic(), topic()
        commit_to_kafka(kafka, name, name, {0: 4})
        commit_to_kafka(kafka, name, other, {0: 2})

        delete_topic(kafka.bootstrap_servers, name)

        # The coordinator learns of it a moment later.
        wait_until(lambda: cluster.committed(name, None) == {Partition(other, 0): 2}, 30, "commits of the topic to go")


def test_other_clusters_are_other_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = MemoryLog().install(monkeypatch), MemoryLog().install(monkeypatch)
    create_topic(first.bootstrap_servers, "orders")
    produce(first, "orders", numbers(0, 3))
    create_topic(second.bootstrap_servers, "orders")

    clusters = [Cluster({"bootstrap.servers": kafka.bootstrap_servers}) for kafka in (first, second)]

    assert [ends(cluster, "orders") for cluster in clusters] == [[(0, 3)], [(0, 0)]]
    assert len({cluster.cluster_id() for cluster in clusters}) == 2


@pytest.mark.parametrize("settings", [{"cleanup.policy": "compact"}, {"max.message.bytes": 10}], ids=str)
def test_a_log_in_memory_refuses_requests_that_it_does_not_know(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = MemoryLog().install(monkeypatch)

    with pytest.raises(AssertionError, match="needs a broker"):
        create_topic(kafka.bootstrap_servers, "orders", config=settings)
    with pytest.raises(AssertionError, match="needs a broker"):
        clients.producer(kafka, **{"transactional.id": "writer"})
