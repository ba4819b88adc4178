"""Consumer groups in Kafka: what they committed, whether they are in use, and why they refuse commits on their behalf.

This module has the meaning of Kafka's answers; `Cluster` sends the requests. Kafka keeps the commits of a group until
`offsets.retention.minutes` (7 days by default) after the last one, or after its last member left.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.kafka.admin import RETRIABLE

_ACTIVE = "the group has active members, and only these may commit; stop them, or choose another name"

_REFUSALS = {
    KafkaError.NON_EMPTY_GROUP: _ACTIVE,
    # The broker takes the commit for that of a member without a name, which does not exist.
    KafkaError.UNKNOWN_MEMBER_ID: _ACTIVE,
    KafkaError.UNKNOWN_TOPIC_OR_PART: "the cluster has no such partition",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "this user may not commit offsets of the topic (ACL: Read on the topic)",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "this user may not commit for the group (ACL: Read on the group)",
}
"""Why a commit on behalf of a group is refused, and what to do."""


class ConsumerGroup(NamedTuple):
    """A consumer group as Kafka shows it.

    :param state: Kafka's name of it; `EMPTY` if no consumer is in the group
    :param members: how many consumers are in it; only a group without members takes commits from outside
    """

    state: str
    members: int


def read_group(answer: Future[Any]) -> ConsumerGroup | None:
    """Return the group that an answer describes, or None."""
    group = answer.result()
    # Kafka describes a group that does not exist as dead.
    return None if group.state == ConsumerGroupState.DEAD else ConsumerGroup(group.state.name, len(group.members))


def read_committed(answer: Future[Any]) -> dict[TopicPartition, int]:
    """Return the commits in an answer.

    :raises KafkaException: Kafka refused to answer, or to answer for a partition; the text names the topic or partition
    """
    committed: dict[TopicPartition, int] = {}
    for partition in answer.result().topic_partitions:
        tp, error = TopicPartition(partition.topic, partition.partition), partition.error
        # Nothing is committed of a partition that does not exist.
        if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            # The text is what an ACL is missing for.
            raise KafkaException(KafkaError(error.code(), f"topic {tp.topic!r}"))
        if error is not None and error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise KafkaException(KafkaError(error.code(), f"partition {tp}: {error.str()}"))
        if error is None and partition.offset >= 0:
            committed[tp] = int(partition.offset)
    return committed


def read_refused(asked: Collection[TopicPartition], answer: Future[Any]) -> dict[TopicPartition, str]:
    """Return the partitions whose commits were refused, with the reason.

    :raises KafkaException: a retry may help
    """
    failure = answer.exception()
    errors: dict[TopicPartition, KafkaError]
    if isinstance(failure, KafkaException):  # of the whole request
        errors = dict.fromkeys(asked, failure.args[0])
    else:
        partitions = answer.result().topic_partitions
        errors = {
            TopicPartition(info.topic, info.partition): info.error for info in partitions if info.error is not None
        }
    for error in errors.values():
        if error.code() in RETRIABLE:
            raise KafkaException(error)
    return {tp: _REFUSALS.get(error.code(), error.str()) for tp, error in errors.items()}
