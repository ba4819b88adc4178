"""Consumer groups of Kafka's: what they committed, whether they are in use, and commits on their behalf.

Kafka keeps a group's commits until `offsets.retention.minutes` (7 days by default) after the last one, or after its last
member left. Here are the requests and what their answers mean; `Cluster` asks them, again where the answer is a passing
error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from airflow_kafka_offsets.core.offsets import Position, TopicPartition


class ConsumerGroup(NamedTuple):
    """A consumer group as Kafka shows it.

    :param state: Kafka's name of it; `EMPTY` where nobody consumes
    :param members: how many consumers are in it; only a group without any takes commits from outside
    """

    state: str
    members: int


def ask_committed(
    client: AdminClient, group_id: str, partitions: Collection[TopicPartition] | None, timeout: float
) -> Mapping[str, Future[Any]]:
    """Ask for a group's commits.

    :param partitions: None is all that it committed
    :return: the committed offsets by partition, or the error of the request or of a partition
    """
    scope = None if partitions is None else [ClientPartition(*tp) for tp in partitions]
    asked = ConsumerGroupTopicPartitions(group_id, scope)
    outcome: Future[dict[TopicPartition, int]] = Future()

    def settle(request: Future[Any]) -> None:
        try:
            outcome.set_result(_committed(request.result()))
        except Exception as failure:
            outcome.set_exception(failure)

    client.list_consumer_group_offsets([asked], request_timeout=timeout)[group_id].add_done_callback(settle)
    return {group_id: outcome}


def _committed(answer: Any) -> dict[TopicPartition, int]:
    """Return the commits that an answer holds.

    :raises KafkaException: Kafka refused to say what is committed of a partition; names it
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
    """The group that an answer describes; None where there is none."""
    # A group that does not exist is described as a dead one.
    return None if answer.state == ConsumerGroupState.DEAD else ConsumerGroup(answer.state.name, len(answer.members))


def commit(
    client: AdminClient,
    group_id: str,
    positions: Mapping[TopicPartition, Position],
    timeout: float,
    *,
    passing: Collection[int],
) -> dict[TopicPartition, Future[str | None]]:
    """Commit positions on behalf of a group, with their leader epochs, in one request.

    :param passing: codes of the errors that are worth another request
    :return: for each partition None where it is committed, why it is refused, or a passing error
    """
    given = [
        ClientPartition(tp.topic, tp.partition, one.offset)
        if one.leader_epoch is None
        else ClientPartition(tp.topic, tp.partition, one.offset, leader_epoch=one.leader_epoch)
        for tp, one in positions.items()
    ]
    outcomes: dict[TopicPartition, Future[str | None]] = {tp: Future() for tp in positions}

    def settle(request: Future[Any]) -> None:
        try:
            errors = _errors(request, positions)
            for tp, outcome in outcomes.items():
                error = errors[tp]
                if error is None:
                    outcome.set_result(None)
                elif error.code() in passing:
                    outcome.set_exception(KafkaException(error))
                else:
                    outcome.set_result(_refusal(error))
        except Exception as failure:
            # What stays open would be waited for without end.
            for outcome in outcomes.values():
                if not outcome.done():
                    outcome.set_exception(failure)

    request = client.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group_id, given)], request_timeout=timeout
    )[group_id]
    request.add_done_callback(settle)
    return outcomes


def _errors(request: Future[Any], positions: Collection[TopicPartition]) -> dict[TopicPartition, KafkaError | None]:
    """The error of each partition; one that the request failed with is that of all."""
    failure = request.exception()
    if isinstance(failure, KafkaException):
        return dict.fromkeys(positions, failure.args[0])
    return {TopicPartition(one.topic, one.partition): one.error for one in request.result().topic_partitions}


def _refusal(error: KafkaError) -> str:
    """Why a commit on behalf of a group is refused, and what to do."""
    code = error.code()
    if code in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP):
        # The broker takes the commit for that of a member, and there is no member without a name.
        return "the group has active members, and only these may commit; stop them, or choose another name"
    if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return "the cluster has no such partition"
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return "this user may not commit offsets of the topic (ACL: Read on the topic)"
    if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return "this user may not commit for the group (ACL: Read on the group)"
    return str(error.str())
