"""Leaders of partitions that die, move, and come back with another log."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping

import pytest
from confluent_kafka import ElectionType, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from airflow_kafka_offsets.core.offsets import PartitionLog, Slice, TopicPartition
from airflow_kafka_offsets.exceptions import KafkaUnavailableError, LogTruncatedError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.consumer import consumer_config
from airflow_kafka_offsets.kafka.reader import read
from devstack.kafka_cluster import KafkaCluster
from devstack.process import wait_until
from devstack.topics import create_topic

pytestmark = pytest.mark.server


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
    """Write records to one partition, in order; returns once the leader acknowledged each: by default all replicas have
    it.
    """
    errors: list[object] = []

    def note(error: object, _: Message) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer({**client(cluster), "acks": "all", "log_level": "0", **(config or {})})
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=note)
        producer.poll(0)
    # Longer than brokers need to elect another leader.
    assert producer.flush(120) == 0
    assert errors == []


def values(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}-{i}".encode() for i in range(count)]


def produce_transaction(cluster: KafkaCluster, topic: str, values: list[bytes]) -> None:
    """Write records to partition 0 in one transaction; its marker takes the offset behind them."""
    producer = Producer({**client(cluster), "transactional.id": topic, "log_level": "0"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.commit_transaction(30)


def planned_epoch(cluster: KafkaCluster, topic: str, end: int) -> int:
    """The leader epoch that is told with the end of the log; returns once the log ends there."""
    told: list[PartitionLog] = []

    def ends_there() -> bool:
        told.append(Cluster(client(cluster)).logs([topic])[TopicPartition(topic, 0)])
        return told[-1].end == end

    wait_until(ends_there, 120, f"{topic}[0] to end at {end}")
    assert told[-1].leader_epoch is not None
    return told[-1].leader_epoch


def loaded(cluster: KafkaCluster, topic: str, start: int, end: int, leader_epoch: int | None = None) -> list[bytes]:
    """The values of a slice that starts from a position with an epoch."""
    one = Slice(0, topic, 0, start, end, leader_epoch=leader_epoch)
    batches = read(one, reader(cluster), idle_timeout=60)
    return [value for batch in batches for value in batch["value"].to_pylist()]


@pytest.mark.long  # the leader of a log that was cut dies every day below
def test_P17_log_ends_asked_while_a_leader_is_dead_are_those_that_were_acknowledged(cluster: KafkaCluster) -> None:
    create_topic(cluster.bootstrap_servers, "moved", 2, replicas=[[2, 3], [3, 2]])
    produce(cluster, "moved", values("a", 500), 0)
    produce(cluster, "moved", values("b", 300), 1)
    for _ in range(20):
        cluster.start()
        cluster.wait_for_replicas({2, 3}, "moved", 0)
        if cluster.partition("moved").leader != 2:
            prefer_first_replica(cluster, "moved")
            cluster.wait_for_leader(2, "moved")
        cluster.brokers[2].kill()
        # On a machine that stops now and then, another one may lead already.
        if cluster.partition("moved", 0).leader == 2:
            break
    logs = Cluster(client(cluster)).logs(["moved"])
    assert {tp.partition: (log.beginning, log.end) for tp, log in logs.items()} == {0: (0, 500), 1: (0, 300)}
    cluster.wait_for_leader(3, "moved", 0)


# Every day tests/loading/test_bad_kafka.py has a broker that is not there.
@pytest.mark.long
def test_P10_a_partition_without_a_living_replica_fails_the_plan_in_time(cluster: KafkaCluster) -> None:
    create_topic(cluster.bootstrap_servers, "lonely", 2, replicas=[[3], [2]])
    cluster.brokers[3].kill()
    # Kafka still names the dead broker, be it as the one that describes topics, which its client asks first.
    assert_unavailable_in_time(cluster, r"\((topic 'lonely'|partition lonely\[0\]).*\) within 3 s: .*refused")
    cluster.wait_for_leader(-1, "lonely", 0)
    assert_unavailable_in_time(cluster, r"\(partition lonely\[0\].*\) within 3 s: ")


def assert_unavailable_in_time(cluster: KafkaCluster, message: str) -> None:
    def is_told() -> bool:
        """Not where the machine stops for the seconds in which a broker would refuse."""
        begun = time.monotonic()
        with pytest.raises(KafkaUnavailableError) as raised:
            Cluster(client(cluster), timeout=3).logs(["lonely"])
        # Far from any time-out of the client's own, which is a minute; a busy machine may add to the 3 s.
        assert time.monotonic() - begun < 40
        return re.search(message, str(raised.value)) is not None

    wait_until(is_told, 120, f"an error that matches {message}")


def test_a_slice_is_read_once_and_in_order_while_its_leader_changes(cluster: KafkaCluster) -> None:
    sent = values("record", 1000)
    create_topic(cluster.bootstrap_servers, "followed", replicas=[[2, 3]])
    produce(cluster, "followed", sent[:400])
    cluster.wait_for_replicas({2, 3}, "followed")
    batches = read(Slice(0, "followed", 0, 0, 1000), reader(cluster), idle_timeout=60)
    received = [next(batches)]
    # The reader waits at the end of the log when its leader dies; only the other has the rest.
    cluster.brokers[2].kill()
    produce(cluster, "followed", sent[400:])
    received += batches
    assert [offset for batch in received for offset in batch["offset"].to_pylist()] == list(range(1000))
    assert [value for batch in received for value in batch["value"].to_pylist()] == sent
    assert cluster.partition("followed").leader == 3


# It waits for three leaders one after another; the tests beside it have one change each.
@pytest.mark.long
def test_leaders_that_change_without_a_loss_raise_no_alarm(cluster: KafkaCluster) -> None:
    """A planned epoch holds for every position up to the end that was told with it, be there a marker or no record at
    all.
    """
    create_topic(cluster.bootstrap_servers, "handed-over", replicas=[[2, 3]])
    produce(cluster, "handed-over", values("first", 10))
    produce_transaction(cluster, "handed-over", values("transaction", 4))
    cluster.wait_for_replicas({2, 3}, "handed-over")
    epochs = [planned_epoch(cluster, "handed-over", 15)]

    cluster.brokers[2].kill()
    cluster.wait_for_leader(3, "handed-over")
    # This leader writes nothing, so that no replica but its own ever learns of its epoch.
    epochs.append(planned_epoch(cluster, "handed-over", 15))
    assert loaded(cluster, "handed-over", 10, 15, epochs[0]) == values("transaction", 4)

    cluster.brokers[2].start()
    cluster.wait_for_replicas({2, 3}, "handed-over")
    prefer_first_replica(cluster, "handed-over")
    cluster.wait_for_leader(2, "handed-over")
    epochs.append(planned_epoch(cluster, "handed-over", 15))
    produce(cluster, "handed-over", values("last", 5))
    assert epochs == sorted(set(epochs)), "each leader has an epoch of its own"
    for epoch in epochs:
        assert loaded(cluster, "handed-over", 15, 20, epoch) == values("last", 5)
        assert loaded(cluster, "handed-over", 12, 20, epoch) == values("transaction", 4)[2:] + values("last", 5)

    # Retention forgets the old epochs with their records.
    admin = AdminClient(client(cluster))
    admin.delete_records([ClientPartition("handed-over", 0, 15)])[ClientPartition("handed-over", 0)].result(30)
    for epoch in epochs:
        assert loaded(cluster, "handed-over", 15, 20, epoch) == values("last", 5)


def prefer_first_replica(cluster: KafkaCluster, topic: str) -> None:
    """Have the first of a partition's replicas lead it; all of them are in sync."""
    admin = AdminClient(client(cluster))
    errors = admin.elect_leaders(ElectionType.PREFERRED, [ClientPartition(topic, 0)]).result(30)
    assert list(errors.values()) == [None]


def test_a_log_that_was_cut_and_written_anew_is_noticed_by_the_leader_epoch(cluster: KafkaCluster) -> None:
    """KIP-320. The new log covers the stored position, so that no comparison of offsets can tell."""
    unclean = {"unclean.leader.election.enable": "true"}
    for topic in ("cut", "cut-marker"):
        create_topic(cluster.bootstrap_servers, topic, 1, unclean, replicas=[[2, 3]])
        produce(cluster, topic, values("both", 10))
    cluster.brokers[3].kill()
    produce(cluster, "cut", values("lost", 10), config={"acks": "1"})
    produce_transaction(cluster, "cut-marker", values("lost", 4))
    epoch = planned_epoch(cluster, "cut", 20)
    epoch_of_marker = planned_epoch(cluster, "cut-marker", 15)
    assert loaded(cluster, "cut-marker", 10, 15, epoch_of_marker) == values("lost", 4)

    cluster.brokers[2].kill()
    cluster.brokers[3].start()
    for topic in ("cut", "cut-marker"):
        cluster.wait_for_leader(3, topic)
        produce(cluster, topic, values("new", 20), config={"acks": "1"})
        assert planned_epoch(cluster, topic, 30) > max(epoch, epoch_of_marker)

    # Without the epoch nothing is wrong: five records were lost, and five others never loaded.
    assert loaded(cluster, "cut", 15, 30) == values("new", 20)[5:]
    # Of a range that was planned, the end and any offset where a cap ended it; and of one that ends in a marker.
    for topic, position, planned in (("cut", 20, epoch), ("cut", 15, epoch), ("cut-marker", 15, epoch_of_marker)):
        with pytest.raises(
            LogTruncatedError, match=rf"{topic}\[0\]: the log reached offset {position} in leader epoch"
        ):
            loaded(cluster, topic, position, 30, planned)
    # What was not cut is still the same.
    assert loaded(cluster, "cut", 10, 30, epoch) == values("new", 20)
