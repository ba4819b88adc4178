"""Consumer groups in Kafka: what they committed, whether they are in use, and commits on their behalf.

This module has the requests and the meaning of their answers; `Cluster` sends them, and retries. Kafka keeps the commits of a group
until `offsets.retention.minutes` (7 days by default) after the last one, or after its last member left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.kafka.admin import RETRIABLE


class ConsumerGroup(NamedTuple):
    """A consumer group as Kafka shows it.

    :param state: Kafka's name of it; `EMPTY` if no consumer is in the group
    :param members: how many consumers are in it; only a group without members takes commits from outside
    """

    state: str
    members: int


def ask_committed(
    client: AdminClient, group_id: str, partitions: Collection[TopicPartition] | None, timeout: float
) -> Mapping[str, Future[Any]]:
    """Request a group's commits.

    :param partitions: None means all that the group committed
    :return: the committed offsets by partition, or the error of the request or of a partition
    """
    scope = None if partitions is None else [ClientPartition(*tp) for tp in partitions]
    outcome: Future[dict[TopicPartition, int]] = Future()

    def settle(request: Future[Any]) -> None:
        try:
            outcome.set_result(_committed(request.result()))
        except Exception as failure:
            outcome.set_exception(failure)

    requests = client.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group_id, scope)], request_timeout=timeout
    )
    requests[group_id].add_done_callback(settle)
    return {group_id: outcome}


def _committed(answer: Any) -> dict[TopicPartition, int]:
    """Return the commits in an answer.

    :raises KafkaException: Kafka refused to answer for a partition; names it
    """
    committed: dict[TopicPartition, int] = {}
    for partition in answer.topic_partitions:
        error = partition.error
        # Nothing is committed of a partition that does not exist.
        if error is not None and error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise KafkaException(
                KafkaError(error.code(), f"partition {partition.topic}[{partition.partition}]: {error.str()}")
            )
        if error is None and partition.offset >= 0:
            committed[TopicPartition(partition.topic, partition.partition)] = int(partition.offset)
    return committed


def read_group(answer: Any) -> ConsumerGroup | None:
    """Return the group that an answer describes, or None."""
    # Kafka describes a group that does not exist as dead.
    return None if answer.state == ConsumerGroupState.DEAD else ConsumerGroup(answer.state.name, len(answer.members))


def commit(
    client: AdminClient,
    group_id: str,
    positions: Mapping[TopicPartition, Position],
    timeout: float,
) -> dict[TopicPartition, Future[str | None]]:
    """Commit positions on behalf of a group, with their leader epochs, in one request.

    :return: for each partition None if it is committed, the reason if it is refused, or an exception, which may be worth a retry
    """
    commits = [
        ClientPartition(
            *tp, position.offset, leader_epoch=-1 if position.leader_epoch is None else position.leader_epoch
        )
        for tp, position in positions.items()
    ]
    outcomes: dict[TopicPartition, Future[str | None]] = {tp: Future() for tp in positions}

    def settle(request: Future[Any]) -> None:
        try:
            errors = _errors(request, positions)
            for tp, outcome in outcomes.items():
                error = errors[tp]
                if error is not None and error.code() in RETRIABLE:
                    outcome.set_exception(KafkaException(error))
                else:
                    outcome.set_result(None if error is None else _refusal(error))
        except Exception as failure:
            # A future without an outcome would be waited for without end.
            for outcome in outcomes.values():
                if not outcome.done():
                    outcome.set_exception(failure)

    requests = client.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group_id, commits)], request_timeout=timeout
    )
    requests[group_id].add_done_callback(settle)
    return outcomes


def _errors(request: Future[Any], positions: Collection[TopicPartition]) -> dict[TopicPartition, KafkaError | None]:
    """Return the error of each partition; if the whole request failed, all partitions have its error."""
    failure = request.exception()
    if isinstance(failure, KafkaException):
        return dict.fromkeys(positions, failure.args[0])
    answered = request.result().topic_partitions
    return {TopicPartition(partition.topic, partition.partition): partition.error for partition in answered}


def _refusal(error: KafkaError) -> str:
    """Return why a commit on behalf of a group is refused, and what to do."""
    code = error.code()
    if code in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP):
        # The broker takes the commit for that of a member without a name, which does not exist.
        return "the group has active members, and only these may commit; stop them, or choose another name"
    if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return "the cluster has no such partition"
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return "this user may not commit offsets of the topic (ACL: Read on the topic)"
    if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return "this user may not commit for the group (ACL: Read on the group)"
    return str(error.str())
