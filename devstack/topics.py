"""Create topics and wait until they can be used; delete topics and records; read end offsets."""

from collections.abc import Mapping, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from devstack.process import wait_until

_READY_TIMEOUT = 120.0


def create_topic(
    bootstrap_servers: str,
    topic: str,
    partitions: int = 1,
    config: Mapping[str, str] | None = None,
    *,
    replicas: Sequence[Sequence[int]] | None = None,
) -> bool:
    """Create a topic, and wait until its partitions have leaders that answer.

    The broker confirms the creation when the controller knows the topic. A request right after that may still fail with
    UNKNOWN_TOPIC_OR_PARTITION or LEADER_NOT_AVAILABLE.

    :param replicas: the brokers of each partition, its first leader first; None is one broker of Kafka's choice
    :return: False if the topic existed already; it is not changed
    """
    admin = _admin(bootstrap_servers)
    placed = {"replication_factor": 1} if replicas is None else {"replica_assignment": replicas}
    created = True
    try:
        admin.create_topics([NewTopic(topic, partitions, config=dict(config or {}), **placed)])[topic].result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        created = False

    wanted = partitions if created else 1
    what = f"the leaders of the {partitions} partitions of topic {topic}"
    wait_until(partial(_answers, admin, topic, wanted), _READY_TIMEOUT, what, interval=0.01)
    return created


def create_topics(bootstrap_servers: str, topics: Sequence[str], partitions: int = 1) -> None:
    """Create topics in one request, and wait until their leaders answer."""
    admin = _admin(bootstrap_servers)
    for created in admin.create_topics(
        [NewTopic(topic, partitions, replication_factor=1) for topic in topics]
    ).values():
        created.result(60)
    for topic in topics:
        wait_until(
            partial(_answers, admin, topic, partitions), _READY_TIMEOUT, f"the leader of topic {topic}", interval=0.01
        )


def delete_topic(bootstrap_servers: str, topic: str) -> None:
    """Delete a topic, and wait until it is gone."""
    admin = _admin(bootstrap_servers)
    admin.delete_topics([topic])[topic].result(30)
    wait_until(partial(_is_gone, admin, topic), _READY_TIMEOUT, f"topic {topic} to be gone")


def delete_records(bootstrap_servers: str, topic: str, before: int, partition: int = 0) -> None:
    """Move the beginning offset of a partition, as retention would."""
    admin = _admin(bootstrap_servers)
    for future in admin.delete_records([TopicPartition(topic, partition, before)]).values():
        future.result(30)


def end_offsets(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """Return the end offset of each partition; an empty dict if the topic does not exist."""
    return _end_offsets(_admin(bootstrap_servers), topic)


def _admin(bootstrap_servers: str) -> AdminClient:
    # Brokers that are starting or stopping refuse connections, which the client would log on stderr.
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})


def _answers(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Return whether at least this many partitions of a topic have leaders that answer."""
    try:
        return len(_end_offsets(admin, topic)) >= partitions
    except KafkaException:
        return False


def _is_gone(admin: AdminClient, topic: str) -> bool:
    """Return whether a topic of this name could be created: ZooKeeper forgets one later than the broker does."""
    if topic in admin.list_topics(timeout=5).topics:
        return False
    try:
        admin.create_topics([NewTopic(topic, 1, replication_factor=1)], validate_only=True)[topic].result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


def _end_offsets(admin: AdminClient, topic: str) -> dict[int, int]:
    known = admin.list_topics(topic, timeout=10).topics[topic]
    if known.error is not None:
        if known.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return {}
        raise KafkaException(known.error)
    latest = OffsetSpec.latest()
    asked = admin.list_offsets({TopicPartition(topic, number): latest for number in known.partitions})
    return {partition.partition: future.result(10).offset for partition, future in asked.items()}
