"""Leaders of partitions that die, move, and come back with another log."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.exceptions import KafkaUnavailableError, LogTruncatedError
from airflow_kafka_offsets.kafka import Cluster
from airflow_kafka_offsets.offsets import Slice, TopicPartition
from airflow_kafka_offsets.spark.read import consumer_config, read
from devstack.kafka_cluster import KafkaCluster
from devstack.topics import create_topic


@pytest.fixture(scope="module")
def _cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(_cluster: KafkaCluster) -> KafkaCluster:
    """Two brokers, of which an earlier test may have killed one: it is started again."""
    return _cluster.start()


def client(cluster: KafkaCluster) -> dict[str, str]:
    return {"bootstrap.servers": cluster.bootstrap_servers}


def reader(cluster: KafkaCluster, config: Mapping[str, str] | None = None) -> dict[str, object]:
    return consumer_config({**client(cluster), **(config or {})}, "readers", "read_committed")


def produce(
    cluster: KafkaCluster, topic: str, values: list[bytes], partition: int = 0, config: Mapping[str, str] | None = None
) -> None:
    """Write records to one partition, in order; returns once the leader acknowledged each: by default all replicas have it."""
    errors: list[object] = []

    def note(error: object, _: Message) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer({**client(cluster), "acks": "all", "log_level": "0", **(config or {})})
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=note)
        producer.poll(0)
    assert producer.flush(30) == 0
    assert errors == []


def values(prefix: str, count: int, size: int = 0) -> list[bytes]:
    return [f"{prefix}-{i}".encode().ljust(size) for i in range(count)]


def leader_epoch(cluster: KafkaCluster, topic: str, offset: int) -> int:
    """The epoch of the leader that wrote a record; returns once the record can be read."""
    consumer = Consumer({**client(cluster), "group.id": "epochs", "log_level": "0"})
    try:
        consumer.assign([ClientPartition(topic, 0, offset)])
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        assert message.offset() == offset
        epoch = message.leader_epoch()
        assert isinstance(epoch, int)
        return epoch
    finally:
        consumer.close()


def test_P17_log_ends_asked_while_a_leader_is_dead_are_those_that_were_acknowledged(cluster: KafkaCluster) -> None:
    create_topic(cluster.bootstrap_servers, "moved", 2, replicas=[[2, 3], [3, 2]])
    produce(cluster, "moved", values("a", 500), 0)
    produce(cluster, "moved", values("b", 300), 1)
    cluster.wait_for_replicas({2, 3}, "moved", 0)
    cluster.brokers[2].kill()
    assert cluster.partition("moved", 0).leader == 2, "somebody else leads already: the question would come too late"
    logs = Cluster(client(cluster)).logs(["moved"])
    assert {tp.partition: (log.beginning, log.end) for tp, log in logs.items()} == {0: (0, 500), 1: (0, 300)}
    assert cluster.partition("moved", 0).leader == 3


def test_P10_a_partition_without_a_living_replica_fails_the_plan_in_time(cluster: KafkaCluster) -> None:
    create_topic(cluster.bootstrap_servers, "lonely", 2, replicas=[[3], [2]])
    cluster.brokers[3].kill()
    # Kafka still names the dead broker, be it as the one that describes topics, which its client asks first.
    assert_unavailable_in_time(cluster, r"\((topic 'lonely'|partition lonely\[0\])\) within 3 s: .*refused")
    cluster.wait_for_leader(-1, "lonely", 0)
    assert_unavailable_in_time(cluster, r"\(partition lonely\[0\]\) within 3 s: ")


def assert_unavailable_in_time(cluster: KafkaCluster, message: str) -> None:
    begun = time.monotonic()
    with pytest.raises(KafkaUnavailableError, match=message):
        Cluster(client(cluster), timeout=3).logs(["lonely"])
    # Far from a hang, and from any time-out of the client's own; a busy machine may add to the 3 s.
    assert time.monotonic() - begun < 8


def test_a_slice_is_read_once_and_in_order_while_its_leader_changes(cluster: KafkaCluster) -> None:
    sent = values("record", 200, size=10_000)
    create_topic(cluster.bootstrap_servers, "followed", replicas=[[2, 3]])
    # Each record a batch: the least that a fetch returns is one batch.
    produce(cluster, "followed", sent, config={"batch.num.messages": "1"})
    cluster.wait_for_replicas({2, 3}, "followed")
    one_by_one = {
        "queued.min.messages": "1",
        "queued.max.messages.kbytes": "1",
        "fetch.message.max.bytes": "10000",
        "fetch.queue.backoff.ms": "5",
    }
    batches = read(Slice(0, "followed", 0, 0, 200), reader(cluster, one_by_one), idle_timeout=30)
    received = [next(batches)]
    assert received[0].num_rows < 100, "too much was read before the leader changed"
    cluster.brokers[2].kill()
    received += batches
    assert [offset for batch in received for offset in batch["offset"].to_pylist()] == list(range(200))
    assert [value for batch in received for value in batch["value"].to_pylist()] == sent
    assert cluster.partition("followed").leader == 3


def test_a_log_that_was_cut_and_written_anew_is_noticed_by_the_leader_epoch(cluster: KafkaCluster) -> None:
    """KIP-320. The new log covers the stored position, so that no comparison of offsets can tell."""
    create_topic(cluster.bootstrap_servers, "cut", 1, {"unclean.leader.election.enable": "true"}, replicas=[[2, 3]])
    produce(cluster, "cut", values("both", 10))
    cluster.brokers[3].kill()
    produce(cluster, "cut", values("lost", 10), config={"acks": "1"})
    epoch = leader_epoch(cluster, "cut", 14)
    cluster.brokers[2].kill()
    cluster.brokers[3].start()
    cluster.wait_for_leader(3, "cut")
    produce(cluster, "cut", values("new", 20), config={"acks": "1"})
    assert Cluster(client(cluster)).logs(["cut"])[TopicPartition("cut", 0)].end == 30

    # Without the epoch nothing is wrong: five records were lost, and five others never loaded.
    batches = list(read(Slice(0, "cut", 0, 15, 30), reader(cluster), idle_timeout=30))
    assert [value for batch in batches for value in batch["value"].to_pylist()] == values("new", 20)[5:]

    with pytest.raises(LogTruncatedError, match=r"cut\[0\]"):
        list(read(Slice(0, "cut", 0, 15, 30, leader_epoch=epoch), reader(cluster), idle_timeout=30))
