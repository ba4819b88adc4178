"""What a Kafka cluster answers: its id, topics with their ids and retention, the ends of their logs, and its consumer
groups.

Each method is one request, or a few, whatever the number of partitions. Nothing here reads records (`kafka.reader`),
and nothing decides what is loaded (`core.planning`). Kafka keeps the commits of a group until
`offsets.retention.minutes` (7 days by default) after the last one, or after its last member left.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, OffsetSpec

from airflow_kafka_offsets.core.offsets import OffsetRange, PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.core.text import can_be_stored, first_few
from airflow_kafka_offsets.core.threads import in_background
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    KafkaOffsetsError,
    KafkaUnavailableError,
    UnknownTopicError,
)
from airflow_kafka_offsets.kafka.admin import RETRIABLE, RetryingAdmin, of_a_coordinator
from airflow_kafka_offsets.kafka.consumer import committed_of_group, consumer_config, new_consumer
from airflow_kafka_offsets.kafka.errors import denied

log = logging.getLogger(__name__)

_ACTIVE = "the group has active members, and only they may commit; stop them, or choose another name"

# Kinds of requests that a broker is too old for.
_NOT_KNOWN_TO_BROKER = (KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE)

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


def _read_group(answer: Future[Any]) -> ConsumerGroup | None:
    """Return the group that an answer describes, or None."""
    group = answer.result()
    # Kafka describes a group that does not exist as dead.
    return None if group.state == ConsumerGroupState.DEAD else ConsumerGroup(group.state.name, len(group.members))


def _read_committed(answer: Future[Any]) -> dict[TopicPartition, int]:
    """Return the commits in an answer.

    :raises KafkaException: Kafka refused to answer, or to answer for a partition; the text names the topic or partition
    """
    committed: dict[TopicPartition, int] = {}
    for partition in answer.result():
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


def _read_refused(asked: Collection[TopicPartition], answer: Future[Any]) -> dict[TopicPartition, str]:
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


_RETENTION_SETTINGS = ("cleanup.policy", "retention.ms", "retention.bytes")
"""The settings that decide how long a topic keeps a record."""

# A century. Some users configure unlimited retention with a number that no date reaches.
_FOREVER_MS = 36_500 * 24 * 3_600_000


def _reports_retention(settings: Mapping[str, Any]) -> bool:
    """Return whether the broker reports what decides it."""
    # Proxies and managed clusters hide settings, or their values.
    return all(name in settings and settings[name].value is not None for name in _RETENTION_SETTINGS)


def _read_retention(settings: Mapping[str, Any]) -> timedelta | None:
    """Return how long a topic keeps a record, if time alone decides it."""
    policy, by_time, by_size = (settings[name].value for name in _RETENTION_SETTINGS)
    if "delete" not in policy or not 0 <= int(by_time) < _FOREVER_MS or int(by_size) >= 0:
        return None
    return timedelta(milliseconds=int(by_time))


ISOLATION_LEVELS = {
    "read_committed": IsolationLevel.READ_COMMITTED,
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
}


class TimedOffset(NamedTuple):
    """A record's offset, and its timestamp in milliseconds since 1970 in UTC."""

    offset: int
    timestamp_ms: int


class PartialLogs(NamedTuple):
    """The ends of the logs that the cluster reported, and, by topic or partition, the errors of the others."""

    logs: dict[TopicPartition, PartitionLog]
    topic_errors: dict[str, KafkaOffsetsError]
    partition_errors: dict[TopicPartition, KafkaOffsetsError]


# No topic can have this name: Kafka neither creates it, nor returns the names of all others.
_NO_TOPIC = "/"


class Cluster:
    """A Kafka cluster.

    :param config: librdkafka configuration
    :param isolation_level: `read_committed` or `read_uncommitted`; decides what the end offset is
    :param timeout: seconds that a request may take, with all its retries
    """

    def __init__(
        self, config: Mapping[str, Any], *, isolation_level: str = "read_committed", timeout: float = 30.0
    ) -> None:
        if isolation_level not in ISOLATION_LEVELS:
            raise ConfigurationError(
                f"isolation_level must be one of {', '.join(ISOLATION_LEVELS)}; got isolation_level={isolation_level!r}"
            )
        self.config = config
        self.isolation_level = isolation_level
        self._isolation = ISOLATION_LEVELS[isolation_level]
        self._admin = RetryingAdmin(config, timeout)

    def cluster_id(self) -> str:
        """Return the id that the cluster was formatted with."""
        # Not by DescribeCluster: librdkafka ends the process if the answer has no brokers, as while all are fenced.
        return self._admin.ask_once(
            "its cluster id",
            lambda client, seconds: in_background(lambda: client.list_topics(_NO_TOPIC, timeout=seconds)),
            lambda answer: str(answer.result().cluster_id),
        )

    def logs(self, topics: Sequence[str]) -> dict[TopicPartition, PartitionLog]:
        """Return the ends of every partition of the topics, with the topics' ids: three requests for any number of
        partitions.

        :raises UnknownTopicError: naming every topic that the cluster does not show
        :raises KafkaUnavailableError: the cluster, or the leader of a partition, did not answer in time; says why
        """
        return self.logs_of(self.topic_ids(topics))

    def logs_of_partitions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionLog]:
        """Return the ends of some partitions, those left out that do not exist. Leaders of others are not asked; raises
        what `logs` raises.
        """
        wanted = set(partitions)
        topic_ids = self.topic_ids(sorted({tp.topic for tp in wanted}))
        return self.logs_of({tp: topic_id for tp, topic_id in topic_ids.items() if tp in wanted})

    def logs_of_ranges(self, ranges: Collection[OffsetRange]) -> dict[TopicPartition, PartitionLog]:
        """Return the ends of the partitions of ranges that were planned, see `extended`."""
        ends = {range_.topic_partition: range_.end for range_ in ranges}
        return self.extended(self.logs_of_partitions(ends), ends)

    def extended(
        self, logs: Mapping[TopicPartition, PartitionLog], offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, PartitionLog]:
        """Return the ends of logs, at or after known offsets, unless a log was truncated before these.

        The cluster reported the ends first: an offset that it reported later may lie after records that arrived since.
        An offset that a `read_uncommitted` load stored may be beyond the last stable offset, which `read_committed`
        takes for the end.

        :param offsets: of partitions of the logs, or of others
        """

        def beyond(known: Mapping[TopicPartition, PartitionLog]) -> list[TopicPartition]:
            return sorted(tp for tp, offset in offsets.items() if tp in known and offset > known[tp].end)

        extended = dict(logs)
        if late := beyond(extended):
            extended |= self.logs_of_partitions(late)
        if late := beyond(extended):
            ends = self.high_watermarks(late)
            # Records of open transactions cannot be read yet: there is nothing to load.
            extended |= {tp: replace(extended[tp], end=offsets[tp]) for tp in late if offsets[tp] <= ends[tp]}
        return extended

    def topic_ids(
        self, topics: Sequence[str], failed: dict[str, KafkaOffsetsError] | None = None
    ) -> dict[TopicPartition, str | None]:
        """Return every partition of the topics, with or without a leader, and the id of its topic: one request.

        :param failed: takes the errors of single topics; None raises them
        :raises UnknownTopicError: naming every topic that the cluster does not show
        :raises KafkaUnavailableError: the cluster did not answer in time; says why
        """
        # Describing comes first also because a long-lived client does not see new partitions otherwise.
        described = self._describe(topics, failed)
        topic_ids = {topic: _topic_id(info) for topic, info in described.items()}
        for topic in sorted(topic for topic, topic_id in topic_ids.items() if topic_id is None):
            log.warning("Kafka reports no id for topic %r: a recreated topic cannot be detected", topic)
        return {
            TopicPartition(topic, partition.id): topic_ids[topic]
            for topic, info in described.items()
            for partition in info.partitions
        }

    def logs_of(
        self,
        topic_ids: Mapping[TopicPartition, str | None],
        failed: dict[TopicPartition, KafkaOffsetsError] | None = None,
    ) -> dict[TopicPartition, PartitionLog]:
        """Return the ends of some partitions: two requests. The leaders of other partitions are not asked.

        :param topic_ids: of the partitions, as `topic_ids` returned them
        :param failed: takes the errors of single partitions; None raises them
        :raises KafkaUnavailableError: the leader of a partition did not answer in time; says why
        """
        beginnings = self._list_offsets(dict.fromkeys(topic_ids, OffsetSpec.earliest()), failed)
        ends = self._list_offsets(dict.fromkeys(beginnings, OffsetSpec.latest()), failed)
        return {
            tp: PartitionLog(
                beginnings[tp].offset,
                # The end of committed transactions may lie before a beginning that moved between the two requests.
                max(beginnings[tp].offset, end.offset),
                topic_ids[tp],
                end.leader_epoch,
            )
            for tp, end in ends.items()
        }

    def partial_logs(self, topics: Sequence[str]) -> PartialLogs:
        """Return the ends of the logs, also if a topic does not exist or a partition has no leader.

        :raises KafkaUnavailableError: the cluster did not answer in time; says why
        """
        topic_errors: dict[str, KafkaOffsetsError] = {}
        partition_errors: dict[TopicPartition, KafkaOffsetsError] = {}
        logs = self.logs_of(self.topic_ids(topics, topic_errors), partition_errors)
        unavailable = [error for error in topic_errors.values() if isinstance(error, KafkaUnavailableError)]
        if unavailable and len(topic_errors) == len(set(topics)):
            raise unavailable[0]
        return PartialLogs(logs, topic_errors, partition_errors)

    def check_readable(self, topics: Sequence[str]) -> None:
        """Check that this user may read topics, by asking, not by reading.

        :raises ConfigurationError: an ACL is missing; names every topic
        """
        described = self._describe(topics, None, include_authorized_operations=True)
        # An old broker reports none.
        allowed = {topic: info.authorized_operations for topic, info in described.items()}
        unreadable = [
            topic for topic, operations in allowed.items() if operations and AclOperation.READ not in operations
        ]
        if unreadable:
            names = [f"topic {topic!r}" for topic in sorted(unreadable)]
            raise denied(self.config, "Records cannot be read", "Read", names)

    def retention(self, topics: Sequence[str], unknown: dict[str, str] | None = None) -> dict[str, timedelta]:
        """Return how long topics keep a record; topics with a size limit, or with unlimited retention, are left out.

        :param unknown: takes why it will not be known of other topics: this user may not read their settings, or the
            broker does not report them. A topic that is in neither result may be asked about again
        """

        def request(client: AdminClient, names: Collection[str], timeout: float) -> Mapping[str, Future[Any]]:
            resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
            futures = client.describe_configs(resources, request_timeout=timeout)
            return {resource.name: future for resource, future in futures.items()}

        failed: dict[str, KafkaOffsetsError] = {}
        answers: dict[str, Any] = self._admin.ask(
            "the settings of its topics", list(topics), request, operation="DescribeConfigs", failed=failed
        )
        reported = {topic: settings for topic, settings in answers.items() if _reports_retention(settings)}
        if unknown is not None:
            unknown |= {topic: str(error) for topic, error in failed.items() if isinstance(error, ConfigurationError)}
            unknown |= {
                topic: f"Kafka does not report {', '.join(_RETENTION_SETTINGS)} of topic {topic!r}"
                for topic in answers.keys() - reported.keys()
            }
        retentions = {topic: _read_retention(settings) for topic, settings in reported.items()}
        return {topic: retention for topic, retention in retentions.items() if retention is not None}

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], *, partial: bool = False, uncommitted: bool = False
    ) -> dict[TopicPartition, TimedOffset]:
        """Return what brokers report as first at or after an instant; partitions without anything as new are left out,
        and others of which a broker finds nothing.

        No record of these partitions that a reader gets is as new and lies before it. It may itself be none, and of the
        other partitions a record may be as new: see `TimeSearch`.

        :param timestamps_ms: milliseconds since 1970 in UTC
        :param partial: leave out partitions whose leader does not answer, too, instead of raising
        :param uncommitted: whether to find what `read_uncommitted` reads, whatever the isolation level is
        :raises KafkaUnavailableError: the leader of a partition did not answer in time; says why
        """
        specs = {tp: OffsetSpec.for_timestamp(timestamp_ms) for tp, timestamp_ms in timestamps_ms.items()}
        isolation = IsolationLevel.READ_UNCOMMITTED if uncommitted else None
        answers = self._list_offsets(specs, {} if partial else None, isolation)
        # Kafka answers -1 if no record is as new.
        return {tp: TimedOffset(info.offset, info.timestamp) for tp, info in answers.items() if info.offset >= 0}

    def newest_timestamps(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the largest timestamp in milliseconds that brokers know of each log, perhaps of a record that was
        deleted; partitions whose broker does not tell (before Kafka 3.0) are left out.

        :raises KafkaUnavailableError: the leader of a partition did not answer in time; says why
        """
        specs = dict.fromkeys(partitions, OffsetSpec.max_timestamp())
        failed: dict[TopicPartition, KafkaOffsetsError] = {}
        answers = self._list_offsets(specs, failed, IsolationLevel.READ_UNCOMMITTED)
        for error in failed.values():
            cause = error.__cause__
            if not isinstance(cause, KafkaException) or cause.args[0].code() not in _NOT_KNOWN_TO_BROKER:
                raise error
        return {tp: int(info.timestamp) for tp, info in answers.items()}

    def high_watermarks(
        self, partitions: Collection[TopicPartition], *, partial: bool = False
    ) -> dict[TopicPartition, int]:
        """Return where logs end for `read_uncommitted`, whatever the isolation level is.

        :param partial: leave out partitions whose leader does not answer, instead of raising
        :raises KafkaUnavailableError: the leader of a partition did not answer in time; says why
        """
        answers = self._list_offsets(
            dict.fromkeys(partitions, OffsetSpec.latest()),
            {} if partial else None,
            isolation=IsolationLevel.READ_UNCOMMITTED,
        )
        return {tp: info.offset for tp, info in answers.items()}

    def held_back(self, logs: Mapping[TopicPartition, PartitionLog]) -> dict[TopicPartition, int]:
        """Return how many offsets are behind the end of each log, because they wait for an open transaction; none for
        `read_uncommitted`. Partitions whose leader does not answer are left out.

        :param logs: as they were reported
        """
        if self._isolation != IsolationLevel.READ_COMMITTED or not logs:
            return {}
        ends = self.high_watermarks(logs.keys(), partial=True)
        return {tp: end - logs[tp].end for tp, end in ends.items() if end > logs[tp].end}

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """Return a consumer group in Kafka; None if Kafka knows none of that name (it forgets groups whose commits
        expired).

        :raises ConfigurationError: this user may not describe the group
        :raises KafkaUnavailableError: the group's coordinator did not answer in time
        """
        return self._admin.ask_once(
            f"the state of consumer group {group_id!r}",
            lambda client, seconds: client.describe_consumer_groups(
                [group_id], request_timeout=of_a_coordinator(seconds)
            )[group_id],
            _read_group,
            resource=f"group {group_id!r}",
        )

    def committed(
        self, group_id: str, partitions: Collection[TopicPartition] | None, *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return what a consumer group in Kafka committed; partitions without a commit are left out.

        :param partitions: None means all that the group committed
        :param timeout: seconds, instead of the cluster's own
        :raises ConfigurationError: this user may not describe the group, or a topic
        :raises KafkaUnavailableError: the group's coordinator did not answer in time; says why
        """
        asked = list(self._all_partitions() if partitions is None else partitions)
        config = consumer_config(self.config, group_id, "read_uncommitted")
        return self._admin.ask_once(
            f"what consumer group {group_id!r} committed",
            lambda _, seconds: in_background(partial(committed_of_group, new_consumer(config), asked, seconds)),
            _read_committed,
            resource=f"group {group_id!r}",
            timeout=timeout,
        )

    def _all_partitions(self) -> list[TopicPartition]:
        """Return the partitions of all topics that this user may see."""
        topics = self._admin.ask_once(
            "its topics",
            lambda client, seconds: in_background(lambda: client.list_topics(timeout=seconds)),
            lambda answer: answer.result().topics,
        )
        return [TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions]

    def commit(
        self, group_id: str, positions: Mapping[TopicPartition, Position], *, timeout: float | None = None
    ) -> dict[TopicPartition, str]:
        """Commit positions on behalf of a consumer group in Kafka that has no active members; a new name is a new
        group.

        Offsets may move back as well as forward.

        :param timeout: seconds, instead of the cluster's own
        :return: the partitions that were refused, with the reason; the others are committed
        :raises KafkaUnavailableError: the group's coordinator did not answer in time; some may be committed
        """
        if not positions:
            return {}
        commits = [
            ClientPartition(*tp, at.offset, leader_epoch=-1 if at.leader_epoch is None else at.leader_epoch)
            for tp, at in positions.items()
        ]
        asked = [ConsumerGroupTopicPartitions(group_id, commits)]
        return self._admin.ask_once(
            f"whether it took the positions for consumer group {group_id!r}",
            lambda client, seconds: client.alter_consumer_group_offsets(
                asked, request_timeout=of_a_coordinator(seconds)
            )[group_id],
            partial(_read_refused, positions),
            timeout=timeout,
        )

    def _describe(
        self, topics: Sequence[str], failed: dict[str, KafkaOffsetsError] | None, **options: bool
    ) -> dict[str, Any]:
        # The client refuses a request with one of these names, for all topics; state tables may have them.
        if odd := {topic for topic in topics if not topic or not can_be_stored(topic)}:
            error = UnknownTopicError(f"{first_few(map(repr, sorted(odd)))} cannot be the name of a topic")
            if failed is None:
                raise error
            failed.update(dict.fromkeys(odd, error))
        return self._admin.ask(
            "its topics",
            [topic for topic in topics if topic not in odd],
            lambda client, names, timeout: client.describe_topics(
                TopicCollection(list(names)), request_timeout=timeout, **options
            ),
            failed=failed,
        )

    def _list_offsets(
        self,
        specs: Mapping[TopicPartition, OffsetSpec],
        failed: dict[TopicPartition, KafkaOffsetsError] | None = None,
        isolation: IsolationLevel | None = None,
    ) -> dict[TopicPartition, Any]:
        def request(
            client: AdminClient, keys: Collection[TopicPartition], timeout: float
        ) -> Mapping[TopicPartition, Future[Any]]:
            # The isolation level must be an argument: in the client's configuration it is ignored.
            futures = client.list_offsets(
                {ClientPartition(*tp): specs[tp] for tp in keys},
                isolation_level=self._isolation if isolation is None else isolation,
                request_timeout=timeout,
            )
            return {TopicPartition(key.topic, key.partition): future for key, future in futures.items()}

        return self._admin.ask("the offsets of its logs", list(specs), request, _read_offset, failed=failed)


def _read_offset(answer: Future[Any]) -> Any:
    info = answer.result()
    # The client returns no error for the partitions of a leader that did not answer, but this offset.
    if info.offset == OFFSET_INVALID:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "the partition's leader did not answer"))
    return info


def _topic_id(info: Any) -> str | None:
    # An old broker reports no ids; the client fills in the zero UUID.
    topic_id = info.topic_id
    if topic_id is None or not (topic_id.get_most_significant_bits() or topic_id.get_least_significant_bits()):
        return None
    # The client writes the id in plain base64, Kafka's own tools in the alphabet for URLs.
    return str(topic_id).translate(str.maketrans("+/", "-_"))
