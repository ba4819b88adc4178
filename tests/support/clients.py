"""Clients of Kafka for tests, which write and commit what the product then reads. Their own log is quiet."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from airflow_kafka_offsets.kafka.cluster import Cluster
from devstack.process import wait_until

# Brokers go away on purpose. What a client has to say of it would drown the tests' own output; errors reach the
# callers.
_log = logging.getLogger(f"{__name__}.librdkafka")
_log.addHandler(logging.NullHandler())
_log.propagate = False


class Kafka(Protocol):
    """A broker, a cluster, or a log in memory."""

    @property
    def bootstrap_servers(self) -> str: ...


def admin(kafka: Kafka, **config: Any) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers, **config}, logger=_log)


def producer(kafka: Kafka, **config: Any) -> Producer:
    return Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5, **config}, logger=_log)


def produce(
    kafka: Kafka,
    topic: str,
    values: Sequence[bytes | None],
    partition: int = 0,
    *,
    timestamp: int = 0,
    **config: Any,
) -> None:
    """Write records to one partition, in order, and wait until the broker has them.

    :param timestamp: in milliseconds since 1970; 0 is now
    """
    errors: list[object] = []

    def note(error: object, _: object) -> None:
        if error is not None:
            errors.append(error)

    writer = producer(kafka, **config)
    for value in values:
        writer.produce(topic, value, partition=partition, timestamp=timestamp, on_delivery=note)
        writer.poll(0)
    assert writer.flush(30) == 0
    assert errors == []


def commit_to_kafka(kafka: Kafka, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Commit offsets by partition, as a consumer of the group would."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group}, logger=_log)
    consumer.commit(offsets=[TopicPartition(topic, *one) for one in offsets.items()], asynchronous=False)
    consumer.close()


def more_partitions(kafka: Kafka, topic: str, count: int) -> None:
    """Raise the number of a topic's partitions, and wait until the product sees them."""
    # A client that is not referred to any more takes its open requests with it.
    client = admin(kafka)
    client.create_partitions([NewPartitions(topic, count)])[topic].result(30)
    cluster = Cluster({"bootstrap.servers": kafka.bootstrap_servers})
    wait_until(lambda: len(cluster.logs([topic])) == count, 30, "the new partitions")


class Transactions:
    """A transactional producer that writes to partition 0 of one topic."""

    def __init__(self, kafka: Kafka, topic: str, **config: Any) -> None:
        self._topic = topic
        self._producer = producer(kafka, **{"transactional.id": topic}, **config)
        self._producer.init_transactions(30)

    def begin(self, values: list[bytes], timestamp: int = 0) -> None:
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(self._topic, value, partition=0, timestamp=timestamp)
        assert self._producer.flush(30) == 0

    def commit(self, values: list[bytes], timestamp: int = 0) -> None:
        self.begin(values, timestamp)
        self._producer.commit_transaction(30)

    def abort(self, values: list[bytes], timestamp: int = 0) -> None:
        self.begin(values, timestamp)
        self._producer.abort_transaction(30)

    def end(self) -> None:
        self._producer.commit_transaction(30)
