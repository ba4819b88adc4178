"""What a Kafka cluster says: its id, topics with their ids, the ends of their logs, and its consumer groups.

A question is one request for all topics or partitions, repeated for those that are in a passing state, with a limit on
the whole. Clients are made where they are used: a forked child that uses its parent's client hangs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from airflow_kafka_offsets import kafka_groups
from airflow_kafka_offsets.client_config import check_config
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    KafkaOffsetsError,
    KafkaUnavailableError,
    UnknownTopicError,
)
from airflow_kafka_offsets.kafka_groups import ConsumerGroup
from airflow_kafka_offsets.offsets import PartitionLog, Position, TopicPartition

log = logging.getLogger(__name__)

# librdkafka reports a failing connection again and again on stderr; what it says reaches the user once, in the error.
_client_log = logging.getLogger(f"{__name__}.librdkafka")
_client_log.addHandler(logging.NullHandler())
_client_log.propagate = False

Key = TypeVar("Key")
Question = Callable[[Collection[Key], float], Mapping[Key, "Future[Any]"]]

ISOLATION_LEVELS = {
    "read_committed": IsolationLevel.READ_COMMITTED,
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
}

# What is answered while a leader moves, or right after a topic was made. librdkafka hands these on instead of asking
# again.
_PASSING = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_CACHE,
        # None of the partitions asked for has a leader.
        KafkaError._NOENT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
_UNKNOWN = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
# A new topic is unknown to some brokers for a moment; a topic that stays unknown this long does not exist.
_UNKNOWN_GRACE_SECONDS = 3.0
# The client goes on asking a dead leader, or a dead "controller" (in KRaft any broker), for as long as it lives: each
# repetition has a client of its own, and the first ones are short.
_FIRST_TRY_SECONDS = 3.0
# What the client gives for the partitions of a leader that did not answer: no error, and this offset.
_OFFSET_INVALID = -1001
_LOOK_SECONDS = 0.05
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 1.0


class TimedOffset(NamedTuple):
    """A record's offset, and its timestamp in milliseconds since 1970 in UTC."""

    offset: int
    timestamp_ms: int


class PartialLogs(NamedTuple):
    """The ends of the logs that could be asked about, and by topic or partition why others could not."""

    logs: dict[TopicPartition, PartitionLog]
    topic_errors: dict[str, KafkaOffsetsError]
    partition_errors: dict[TopicPartition, KafkaOffsetsError]


class Cluster:
    """A Kafka cluster, asked through one AdminClient.

    :param config: librdkafka configuration
    :param isolation_level: `read_committed` or `read_uncommitted`; decides what the end offset is
    :param timeout: seconds that one question may take, with all its repetitions
    """

    def __init__(
        self, config: Mapping[str, Any], *, isolation_level: str = "read_committed", timeout: float = 30.0
    ) -> None:
        if isolation_level not in ISOLATION_LEVELS:
            raise ConfigurationError(
                f"isolation_level must be one of {', '.join(ISOLATION_LEVELS)}; got isolation_level={isolation_level!r}"
            )
        checked = check_config(config)
        self._isolation = ISOLATION_LEVELS[isolation_level]
        self._timeout = timeout
        self._servers = checked["bootstrap.servers"]
        # Only this callback learns why a connection fails. It runs inside poll().
        self._reasons: list[KafkaError] = []
        self._config = {**checked, "error_cb": self._reasons.append}
        try:
            self._client = AdminClient(self._config, logger=_client_log)
        except KafkaException as error:
            raise ConfigurationError(f"The Kafka configuration cannot be used: {error.args[0].str()}") from error

    def cluster_id(self) -> str:
        """The id that the cluster was formatted with."""
        answer = self._ask(
            "its cluster id", [None], lambda _, timeout: {None: self._client.describe_cluster(request_timeout=timeout)}
        )
        return str(answer[None].cluster_id)

    def logs(self, topics: Sequence[str]) -> dict[TopicPartition, PartitionLog]:
        """The ends of every partition of the topics, with the topics' ids: three requests for any number of partitions.

        :raises UnknownTopicError: naming every topic that the cluster does not show
        :raises KafkaUnavailableError: the cluster, or the leader of a partition, did not answer in time; says why
        """
        return self._logs(topics, None, None)

    def partial_logs(self, topics: Sequence[str]) -> PartialLogs:
        """The same, for where a topic that is gone, or a partition without a leader, must not hide the others.

        :raises KafkaUnavailableError: the cluster did not answer in time; says why
        """
        topic_errors: dict[str, KafkaOffsetsError] = {}
        partition_errors: dict[TopicPartition, KafkaOffsetsError] = {}
        logs = self._logs(topics, topic_errors, partition_errors)
        unavailable = [error for error in topic_errors.values() if isinstance(error, KafkaUnavailableError)]
        if unavailable and len(topic_errors) == len(set(topics)):
            raise unavailable[0]
        return PartialLogs(logs, topic_errors, partition_errors)

    def retention(self, topics: Sequence[str]) -> dict[str, timedelta]:
        """How long topics keep a record. Those that limit size too, keep all, or must not be asked, are left out."""

        def question(names: Collection[str], timeout: float) -> Mapping[str, Future[Any]]:
            resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
            futures = self._client.describe_configs(resources, request_timeout=timeout)
            return {resource.name: future for resource, future in futures.items()}

        answers = self._ask("the settings of its topics", list(topics), question, failed={})
        settings = {topic: {name: entry.value for name, entry in one.items()} for topic, one in answers.items()}
        return {
            topic: timedelta(milliseconds=int(one["retention.ms"]))
            for topic, one in settings.items()
            if "delete" in one["cleanup.policy"] and int(one["retention.ms"]) >= 0 and int(one["retention.bytes"]) < 0
        }

    def first_since(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, TimedOffset]:
        """The first record of each partition at or after an instant of its own; partitions without one are left out.

        :param timestamps_ms: milliseconds since 1970 in UTC
        """
        specs = {tp: OffsetSpec.for_timestamp(timestamp_ms) for tp, timestamp_ms in timestamps_ms.items()}
        found = self._list_offsets(list(specs), specs, {})
        return {tp: TimedOffset(one.offset, one.timestamp) for tp, one in found.items() if one.offset >= 0}

    def offsets_at(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, TimedOffset]:
        """The first record of each partition whose timestamp is at or after an instant; partitions without one are left out.

        :param timestamp_ms: milliseconds since 1970 in UTC
        """
        found = self._list_offsets(partitions, OffsetSpec.for_timestamp(timestamp_ms))
        # Kafka answers -1 where no record is as new.
        return {tp: TimedOffset(one.offset, one.timestamp) for tp, one in found.items() if one.offset >= 0}

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """A consumer group of Kafka's; None where there is none, as far as Kafka can tell: it forgets commits.

        :raises KafkaUnavailableError: the group's coordinator did not answer in time, or refuses this user
        """
        answer = self._ask(
            f"of consumer group {group_id!r}",
            [group_id],
            lambda groups, timeout: self._client.describe_consumer_groups(list(groups), request_timeout=timeout),
        )
        return kafka_groups.read_group(answer[group_id])

    def committed(
        self, group_id: str, partitions: Collection[TopicPartition] | None, *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """What a consumer group of Kafka's committed; partitions without a commit are left out.

        :param partitions: None is all that it committed
        :param timeout: seconds, where it is not that of the cluster
        :raises KafkaUnavailableError: the group's coordinator did not answer in time, or refuses this user; says why
        """
        answer = self._ask(
            f"what consumer group {group_id!r} committed",
            [group_id],
            lambda _, timeout: kafka_groups.ask_committed(self._client, group_id, partitions, timeout),
            timeout=timeout,
        )
        return kafka_groups.read_committed(answer[group_id])

    def commit(
        self, group_id: str, positions: Mapping[TopicPartition, Position], *, timeout: float | None = None
    ) -> dict[TopicPartition, str]:
        """Commit positions on behalf of a consumer group of Kafka's that has no active members; a new name is a new group.

        Offsets may go back as well as forward.

        :param timeout: seconds, where it is not that of the cluster
        :return: the partitions that were refused, with the reason; the others are committed
        :raises KafkaUnavailableError: the group's coordinator did not answer in time; some may be committed
        """
        answers = self._ask(
            f"whether it took the positions for consumer group {group_id!r}",
            list(positions),
            lambda partitions, timeout: kafka_groups.commit(
                self._client, group_id, {tp: positions[tp] for tp in partitions}, timeout, passing=_PASSING
            ),
            timeout=timeout,
        )
        return {tp: reason for tp, reason in answers.items() if reason is not None}

    def _logs(
        self,
        topics: Sequence[str],
        topic_errors: dict[str, KafkaOffsetsError] | None,
        partition_errors: dict[TopicPartition, KafkaOffsetsError] | None,
    ) -> dict[TopicPartition, PartitionLog]:
        # Describing comes first also because a client that lives long does not see new partitions otherwise.
        described = self._ask(
            "its topics",
            list(topics),
            lambda names, timeout: self._client.describe_topics(TopicCollection(list(names)), request_timeout=timeout),
            failed=topic_errors,
        )
        topic_ids = {topic: _topic_id(info) for topic, info in described.items()}
        for topic in sorted(topic for topic, topic_id in topic_ids.items() if topic_id is None):
            log.warning(
                "Kafka reports no id for topic %r: whether it was deleted and created again cannot be seen", topic
            )
        partitions = [TopicPartition(topic, info.id) for topic, one in described.items() for info in one.partitions]
        beginnings = self._list_offsets(partitions, OffsetSpec.earliest(), partition_errors)
        ends = self._list_offsets(list(beginnings), OffsetSpec.latest(), partition_errors)
        return {
            tp: PartitionLog(
                beginnings[tp].offset,
                # The end of committed transactions may lie before a beginning that moved between the two questions.
                max(beginnings[tp].offset, ends[tp].offset),
                topic_ids[tp.topic],
                ends[tp].leader_epoch,
            )
            for tp in ends
        }

    def _list_offsets(
        self,
        partitions: Collection[TopicPartition],
        spec: OffsetSpec | Mapping[TopicPartition, OffsetSpec],
        failed: dict[TopicPartition, KafkaOffsetsError] | None = None,
    ) -> dict[TopicPartition, Any]:
        def question(keys: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, Future[Any]]:
            specs = {ClientPartition(*tp): spec[tp] if isinstance(spec, Mapping) else spec for tp in keys}
            # The isolation level must be an argument: in the client's configuration it is ignored.
            futures = self._client.list_offsets(specs, isolation_level=self._isolation, request_timeout=timeout)
            return {TopicPartition(key.topic, key.partition): future for key, future in futures.items()}

        return self._ask("the offsets of its logs", partitions, question, failed=failed)

    def _ask(
        self,
        what: str,
        keys: Collection[Key],
        question: Question[Key],
        *,
        timeout: float | None = None,
        failed: dict[Key, KafkaOffsetsError] | None = None,
    ) -> dict[Key, Any]:
        """Ask for all keys at once, and again for those whose answer was a passing error.

        :param timeout: seconds, where it is not that of the cluster
        :param failed: where errors of single keys go, also those that do not pass in time; None raises them
        """
        most = self._timeout if timeout is None else timeout
        begun = time.monotonic()
        answers: dict[Key, Any] = {}
        waiting: dict[Key, KafkaError | None] = dict.fromkeys(keys)
        pause = _FIRST_PAUSE_SECONDS
        patience = _FIRST_TRY_SECONDS
        while waiting:
            left = most - (time.monotonic() - begun)
            if left <= 0:
                if failed is None:
                    raise self._unavailable(what, waiting, most)
                failed.update({key: self._unavailable(what, {key: code}, most) for key, code in waiting.items()})
                break
            for key, future in question(list(waiting), min(left, patience)).items():
                self._await(future, what)
                error = future.exception()
                if error is None:
                    answer = future.result()
                    if getattr(answer, "offset", None) == _OFFSET_INVALID:
                        waiting[key] = KafkaError(KafkaError._TRANSPORT, "the partition's leader did not answer")
                        continue
                    answers[key] = answer
                    del waiting[key]
                    continue
                code = error.args[0] if isinstance(error, KafkaException) else None
                if code is None or code.code() not in _PASSING | _UNKNOWN:
                    lasting = KafkaUnavailableError(f"Kafka at {self._servers} did not tell {what}: {error}")
                    if failed is None:
                        raise lasting from error
                    failed[key] = lasting
                    del waiting[key]
                    continue
                waiting[key] = code
            unknown = [key for key, code in waiting.items() if code is not None and code.code() in _UNKNOWN]
            if unknown and time.monotonic() - begun > _UNKNOWN_GRACE_SECONDS:
                if failed is None:
                    raise self._unknown(unknown)
                for key in unknown:
                    failed[key] = self._unknown([key])
                    del waiting[key]
            if waiting:
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                patience *= 2
                self._client = AdminClient(self._config, logger=_client_log)
        return answers

    def _await(self, future: Future[Any], what: str) -> None:
        while not future.done():
            # The answer comes on a thread of the client's; polling is only for what it says of failing connections.
            wait([future], timeout=_LOOK_SECONDS)
            self._client.poll(0)
            self._raise_if_hopeless(what)

    def _raise_if_hopeless(self, what: str) -> None:
        """Wrong credentials and certificates do not become right by waiting."""
        for reason in self._reasons:
            if reason.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
                raise ConfigurationError(f"Kafka at {self._servers} refuses the connection: {reason.str()}")

    def _unknown(self, keys: Collection[object]) -> UnknownTopicError:
        return UnknownTopicError(
            f"Kafka at {self._servers} has no {', '.join(sorted(map(_name, keys)))}, or this user may not "
            "describe it. Check the spelling, the connection, and the ACLs (Describe on the topic)."
        )

    def _unavailable(
        self, what: str, waiting: Mapping[Any, KafkaError | None], seconds: float
    ) -> KafkaUnavailableError:
        self._client.poll(0)
        told = [code.str() for code in waiting.values() if code is not None]
        reasons = list(dict.fromkeys([reason.str() for reason in self._reasons] + told))
        of = ", ".join(sorted(map(_name, waiting))[:5]) + (", …" if len(waiting) > 5 else "")
        return KafkaUnavailableError(
            f"Kafka at {self._servers} did not tell {what}{f' ({of})' if of else ''} within {seconds:.3g} s: "
            f"{'; '.join(reasons) or 'no reason given'}"
        )


def _name(key: object) -> str:
    if key is None:
        return ""
    return f"topic {key!r}" if isinstance(key, str) else f"partition {key}"


def _topic_id(info: Any) -> str | None:
    # An old broker reports no ids; the client then fills in the zero UUID.
    topic_id = info.topic_id
    if topic_id is None or not (topic_id.get_most_significant_bits() or topic_id.get_least_significant_bits()):
        return None
    # The client spells the id in plain base64, Kafka's own tools in the alphabet for URLs.
    return str(topic_id).translate(str.maketrans("+/", "-_"))
