"""Consumer groups in Kafka, as clients and tools that know nothing of the package see them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions

from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.kafka.cluster import Cluster
from devstack.kafka import KafkaBroker
from devstack.process import wait_until
from tests.support import clients


def cluster_of(kafka: KafkaBroker, kind: type[Cluster] = Cluster) -> Cluster:
    return kind({"bootstrap.servers": kafka.bootstrap_servers})


def committed(kafka: KafkaBroker, group: str) -> dict[tuple[str, int], int]:
    """All that a group committed, as a client sees it that knows nothing of the package."""
    admin = clients.admin(kafka)
    answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
    return {(one.topic, one.partition): one.offset for one in answer.topic_partitions}


def described(kafka: KafkaBroker, group: str) -> dict[tuple[str, int], tuple[int, int, int]]:
    """Committed offset, end offset and lag of each partition, as Kafka's own command tells them."""
    printed = kafka.run_class(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", kafka.bootstrap_servers, "--describe", "--group", group),
    )
    found = [line.split() for line in printed.splitlines() if line.startswith(f"{group} ")]
    return {(topic, int(partition)): tuple(map(int, told)) for _, topic, partition, *told in (one[:6] for one in found)}  # type: ignore[misc]


def at(topic: str, *offsets: int) -> dict[TopicPartition, Position]:
    """Positions by partition."""
    return {TopicPartition(topic, number): Position(offset) for number, offset in enumerate(offsets)}


@contextmanager
def consumer(kafka: KafkaBroker, group: str, topic: str, protocol: str) -> Iterator[None]:
    """An active member of a group, which left it when the context ends."""
    member = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
        }
    )
    member.subscribe([topic])

    def joined() -> bool:
        member.poll(0.1)
        return bool(member.assignment())

    try:
        wait_until(joined, 120, "the consumer to join its group")
        yield
    finally:
        member.close()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        one.getMessage()
        for one in caplog.records
        if one.levelno >= logging.WARNING
        and one.name.startswith("airflow_kafka_offsets.")
        and not one.name.endswith(".librdkafka")  # reaches nobody but this log
    ]
