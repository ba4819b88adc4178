"""Measure the lag of groups: read their positions, with a few queries whatever the number of groups, then the ends of
the logs, and call `lag.report.evaluate`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.chunks import portions
from airflow_kafka_offsets.core.instants import from_milliseconds, milliseconds
from airflow_kafka_offsets.core.log_identity import check_cluster
from airflow_kafka_offsets.core.offsets import PartitionLog, Position, TopicPartition, partitions_in
from airflow_kafka_offsets.core.planning import First, first_offset
from airflow_kafka_offsets.core.text import first_reason
from airflow_kafka_offsets.database.transactions import database_now
from airflow_kafka_offsets.exceptions import ConfigurationError, KafkaOffsetsError, KafkaUnavailableError, LedgerError
from airflow_kafka_offsets.kafka.cluster import Cluster, PartialLogs
from airflow_kafka_offsets.kafka.start_offsets import first_offsets
from airflow_kafka_offsets.lag.report import Committed, LagQuestion, LagReport, evaluate
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.install import installed_version
from airflow_kafka_offsets.ledger.positions import too_many_positions
from airflow_kafka_offsets.ledger.tables import Ledger, Tables

T = TypeVar("T")

_NO_TABLES = (
    "the state tables do not exist: nothing was loaded yet, or the load has another StateTables schema or prefix"
)


_UnreadKey = tuple[str, int, int, int]
"""Topic, partition, position, and the timestamp that is searched. The garbage collector does not track plain tuples of
plain values: thousands of objects that outlive a poll would bring on full collections, whose pauses block an event
loop."""


# Topics in a request, and of a group. For unknown ones, a client takes time with the square of their number (librdkafka
# 2.16): for 9,000, some seconds.
_TOPICS_AT_ONCE, _MOST_TOPICS = 2_000, 6_000


def measure_lag(ledger: Ledger, cluster: Cluster, question: LagQuestion, *, new_group: bool = False) -> LagReport:
    """Measure the lag of a group.

    For any number of partitions, this takes four requests to Kafka: the cluster's id, the topics, and both ends of the
    logs; three more with `times`. A partition that Kafka does not describe is in the report with an error.

    :param cluster: its isolation level decides what the end of a log is; its timeout, how long to wait for a partition
        without a leader
    :param new_group: whether the state tables need not have the group
    :raises ConfigurationError: the state tables do not have the group
    :raises ClusterChangedError: the positions belong to another cluster
    :raises UnknownTopicError: a topic or partition of the scope does not exist and has no position
    :raises KafkaUnavailableError: the cluster did not answer in time
    """
    with ledger.connect() as conn:
        if not new_group:
            cluster_of(conn, ledger.tables, question.group_id)
        states = group_states(conn, ledger.tables, [question.group_id])
    report = next(LagPolls(cluster).reports([(question, states[question.group_id])]))
    if isinstance(report, Exception):
        raise report
    return report


class LagPolls:
    """Polls of the lag of any number of groups, each with as many requests to Kafka as one group takes.

    The timestamp of the oldest unread record is requested once for each position, however often it is polled.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._unread: dict[_UnreadKey, datetime] = {}
        self._unread_now: dict[_UnreadKey, datetime] = {}

    def reports(self, questions: Iterable[tuple[LagQuestion, GroupState]]) -> Iterator[LagReport | Exception]:
        """Generate a report for each question, or the error that it meets, so that not all reports are held at once.

        An error of one group leaves the others alone.

        :param questions: with the states of their groups, which are read before
        :raises KafkaUnavailableError: the cluster did not answer in time
        """
        scoped = [(question, state, frozenset(question.scope) or state.topics) for question, state in questions]
        cluster_id = self._cluster.cluster_id()
        logs = self._logs(topics for _, _, topics in scoped)
        timed = frozenset[str]().union(
            *(topics for question, _, topics in scoped if question.times and len(topics) <= _MOST_TOPICS)
        )
        unknown: dict[str, str] = {}
        retention = self._cluster.retention(sorted(timed - logs.topic_errors.keys()), unknown) if timed else {}
        held_back = self._cluster.held_back({tp: each for tp, each in logs.logs.items() if tp.topic in timed})
        errors = _by_topic({tp: str(error) for tp, error in logs.partition_errors.items()})
        snapshot = _Snapshot(cluster_id, _by_topic(logs.logs), logs.topic_errors, errors, retention, unknown, held_back)
        self._unread, self._unread_now = self._unread_now, {}
        for question, state, topics in scoped:
            try:
                report: LagReport | Exception = self._report(question, state, topics, snapshot)
            except Exception as error:
                report = error
            yield report

    def _logs(self, of_groups: Iterable[frozenset[str]]) -> PartialLogs:
        """Return the ends of the logs of the topics of groups, those of groups with few topics first: unknown topics,
        as in made-up positions, may take all the time that there is. After that, no more are asked for.

        :raises KafkaUnavailableError: the cluster did not answer in time
        """
        logs, failure = PartialLogs({}, {}, {}), None
        for topics in _requests(of_groups):
            if failure is None:
                try:
                    answer = self._cluster.partial_logs(topics)
                except KafkaUnavailableError as error:
                    if logs == PartialLogs({}, {}, {}):
                        raise
                    answer = PartialLogs({}, dict.fromkeys(topics, error), {})
                unavailable = [each for each in answer.topic_errors.values() if isinstance(each, KafkaUnavailableError)]
                # A topic alone may be without a leader.
                failure = unavailable[0] if 2 * len(unavailable) > len(topics) else None
            else:
                answer = PartialLogs({}, dict.fromkeys(topics, failure), {})
            logs.logs.update(answer.logs)
            logs.topic_errors.update(answer.topic_errors)
            logs.partition_errors.update(answer.partition_errors)
        return logs

    def _report(
        self, question: LagQuestion, state: GroupState, topics: frozenset[str], snapshot: _Snapshot
    ) -> LagReport:
        check_cluster(question.group_id, state.cluster_id, snapshot.cluster_id)
        stored = state.committed()
        if not topics:
            if not state.known:
                raise ConfigurationError(
                    f"There are no stored positions of group {question.group_id!r} yet: name its topics"
                )
            return LagReport(())
        if len(topics) > _MOST_TOPICS:
            raise LedgerError(
                f"The lag of group {question.group_id!r} is not measured: it has {len(topics):,} topics, more than "
                f"{_MOST_TOPICS:,}. Delete the positions of topics that do not exist, or split the group"
            )
        logs, errors = snapshot.of_topics(topics, stored)
        scope = partitions_in(question.scope, {*stored, *errors}, logs)
        committed = {tp: stored[tp] for tp in scope if tp in stored}
        logs = {tp: logs[tp] for tp in scope if tp in logs}
        errors = {tp: errors[tp] for tp in scope if tp in errors}
        positions = {tp: each.position for tp, each in stored.items()}
        # As the brokers report it: a proof would need the right to read, and a consumer at each poll.
        find = self._cluster.offsets_for_times
        start = first_offsets(self._cluster, question.start, lambda: state.now, logs, positions, find=find)
        new = {tp: first_offset(tp, log, start, state.topics) for tp, log in logs.items() if tp not in committed}
        logs = self._with_open_transactions(
            logs, {tp: first.offset for tp, first in new.items()} | {tp: positions[tp].offset for tp in committed}
        )
        report = evaluate(
            committed,
            logs,
            now=state.now,
            start=start,
            errors=errors,
            waiting=self._oldest_unread(committed, new, logs) if question.times else None,
            retention=snapshot.retention,
            known_topics=state.topics,
            held_back=snapshot.held_back,
        )
        of_scope = sorted({tp.topic for tp in scope})
        return replace(
            report,
            # Normal before the first load, but a misspelled schema looks the same.
            note=None if state.installed else _NO_TABLES,
            denied=snapshot.denied(of_scope),
            unknown_headroom=snapshot.unknown_headroom(of_scope) if question.times else None,
        )

    def _with_open_transactions(
        self, logs: dict[TopicPartition, PartitionLog], begins: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, PartitionLog]:
        """Return the logs, with ends at positions that are before the high watermark, though transactions before them
        are open.

        A `read_uncommitted` load stores such positions, and records may have arrived since Kafka reported the ends.

        :param begins: the positions, and where a load begins with partitions that have none
        """
        beyond = [tp for tp, offset in begins.items() if tp in logs and offset > logs[tp].end]
        ends = self._cluster.high_watermarks(beyond) if beyond else {}
        return logs | {tp: replace(logs[tp], end=begins[tp]) for tp in beyond if begins[tp] <= ends[tp]}

    def _oldest_unread(
        self,
        committed: Mapping[TopicPartition, Committed],
        new: Mapping[TopicPartition, First],
        logs: Mapping[TopicPartition, PartitionLog],
    ) -> dict[TopicPartition, datetime]:
        """Return the timestamps of the oldest unread records.

        In a partition without a committed record, it is the record that `start` found by time, or the first one of the
        log, if it is not before the position.

        :param new: where a load begins with partitions that have no position
        """
        searched: dict[TopicPartition, tuple[int, int]] = {}
        oldest: dict[TopicPartition, datetime] = {}
        for tp, log in logs.items():
            if tp in committed:
                position, newest, timestamp_ms = committed[tp].position.offset, committed[tp].record_timestamp, None
            else:
                (position, _, timestamp_ms), newest = new[tp], None
            if position >= log.end:
                continue
            if timestamp_ms is not None:
                oldest[tp] = from_milliseconds(timestamp_ms)
            else:
                searched[tp] = (position, milliseconds(newest) + 1 if newest is not None else 0)
        known = {tp: self._unread[*tp, *key] for tp, key in searched.items() if (*tp, *key) in self._unread}
        unknown = {tp: key for tp, key in searched.items() if tp not in known}
        if unknown:
            records = self._cluster.offsets_for_times({tp: since for tp, (_, since) in unknown.items()}, partial=True)
            for tp, record in records.items():
                # A record before the position is loaded, or will never be.
                if record.offset >= unknown[tp][0]:
                    known[tp] = from_milliseconds(record.timestamp_ms)
        self._unread_now |= {(*tp, *searched[tp]): timestamp for tp, timestamp in known.items()}
        return known | oldest


class _Snapshot(NamedTuple):
    """What the cluster answered about the topics of all groups, by topic."""

    cluster_id: str
    logs: Mapping[str, dict[TopicPartition, PartitionLog]]
    topic_errors: Mapping[str, KafkaOffsetsError]
    partition_errors: Mapping[str, dict[TopicPartition, str]]
    retention: Mapping[str, timedelta]
    unknown_retention: Mapping[str, str]
    held_back: Collection[TopicPartition]

    def denied(self, topics: Sequence[str]) -> str | None:
        """Return which ACLs are missing to see topics; None if none is."""
        errors = (self.topic_errors.get(topic) for topic in topics)
        return first_reason(error for error in errors if isinstance(error, ConfigurationError)) or None

    def unknown_headroom(self, topics: Sequence[str]) -> str | None:
        """Return why the retention of topics will not be known; None if it is."""
        reasons = (self.unknown_retention[topic] for topic in topics if topic in self.unknown_retention)
        return first_reason(reasons) or None

    def of_topics(
        self, topics: Iterable[str], committed: Mapping[TopicPartition, Committed]
    ) -> tuple[dict[TopicPartition, PartitionLog], dict[TopicPartition, str]]:
        """Return the logs of topics, and why partitions have none.

        :raises KafkaOffsetsError: Kafka did not describe a topic, and it has no position
        """
        logs: dict[TopicPartition, PartitionLog] = {}
        errors: dict[TopicPartition, str] = {}
        positions = _by_topic(committed)
        for topic in topics:
            logs |= self.logs.get(topic, {})
            errors |= self.partition_errors.get(topic, {})
            if error := self.topic_errors.get(topic):
                if topic not in positions:
                    raise error
                errors |= dict.fromkeys(positions[topic], str(error))
        return logs, errors


def _requests(of_groups: Iterable[frozenset[str]]) -> Iterator[Sequence[str]]:
    """Yield the topics of groups, each once, in parts that are asked for together; those of few topics come first."""
    asked, part = set[str](), list[str]()
    for topics in sorted(of_groups, key=len):
        new = sorted(topics - asked) if len(topics) <= _MOST_TOPICS else []
        asked.update(new)
        for some in portions(new, _TOPICS_AT_ONCE):
            if part and len(part) + len(some) > _TOPICS_AT_ONCE:
                yield part
                part = []
            part.extend(some)
    if part:
        yield part


def _by_topic(values: Mapping[TopicPartition, T]) -> dict[str, dict[TopicPartition, T]]:
    topics: dict[str, dict[TopicPartition, T]] = {}
    for tp, value in values.items():
        topics.setdefault(tp.topic, {})[tp] = value
    return topics


# Databases limit the bound values of a statement.
_GROUPS_PER_QUERY = 500

_COLUMNS = ("topic", "partition", "offset_value", "topic_id", "leader_epoch", "record_timestamp", "updated_at")

_Stored = tuple[str, int, int, str | None, int | None, datetime | None, datetime | None]
"""A position as it is stored. The garbage collector does not track plain tuples of plain values: objects for thousands
of groups would make its pauses longer, and these block an event loop."""


@dataclass(frozen=True, slots=True)
class GroupState:
    """The state of a group in the state tables.

    :param now: the database's time
    :param known: whether the state tables have the group
    :param cluster_id: the Kafka cluster that the group is loaded from; None if it is not known
    :param busy: whether a run holds the group's lease
    :param stored: the group's positions
    :param installed: whether the state tables exist
    :param error: why the positions were not read
    """

    now: datetime
    known: bool = False
    cluster_id: str | None = None
    busy: bool = False
    stored: Sequence[_Stored] = ()
    installed: bool = True
    error: KafkaOffsetsError | None = None

    @property
    def topics(self) -> frozenset[str]:
        """Return the topics with positions."""
        return frozenset(topic for topic, *_ in self.stored)

    def fingerprint(self) -> int:
        """Return a number that changes when a position moves."""
        return hash(frozenset(row[:3] for row in self.stored))

    def committed(self) -> dict[TopicPartition, Committed]:
        """Return the positions as objects, created at each call; see `_Stored`.

        :raises KafkaOffsetsError: they were not read
        """
        if self.error is not None:
            raise self.error
        return {
            TopicPartition(topic, partition): Committed(Position(offset, topic_id, epoch), newest, updated_at)
            for topic, partition, offset, topic_id, epoch, newest, updated_at in self.stored
        }


def group_states(conn: Connection, tables: Tables, group_ids: Collection[str]) -> dict[str, GroupState]:
    """Return the state of each group, known or not. Without state tables, no group is known.

    :raises LedgerError: the state tables are of another version
    """
    now, wanted = database_now(conn), sorted(group_ids)
    if installed_version(conn, tables) is None:
        return {group_id: GroupState(now, installed=False) for group_id in wanted}
    groups, offsets = tables.consumer_groups.c, tables.consumed_offsets.c
    positions = sa.select(offsets.consumer_group, *(offsets[name] for name in _COLUMNS))
    leases = sa.select(groups.group_id, groups.cluster_id, groups.lease_owner, groups.lease_expires_at)
    stored: dict[str, list[_Stored]] = {group_id: [] for group_id in wanted}
    states = {group_id: GroupState(now) for group_id in wanted}
    for some in portions(wanted, _GROUPS_PER_QUERY):
        errors = too_many_positions(conn, tables, some)
        states |= {group_id: GroupState(now, error=error) for group_id, error in errors.items()}
        read = [group_id for group_id in some if group_id not in errors]
        for group_id, *position in conn.execute(positions.where(offsets.consumer_group.in_(read))):
            stored[group_id].append(tuple(position))
        for row in conn.execute(leases.where(groups.group_id.in_(some))):
            busy = row.lease_owner is not None and (row.lease_expires_at or now) > now
            held, error = stored[row.group_id], errors.get(row.group_id)
            states[row.group_id] = GroupState(now, True, row.cluster_id, busy, held, error=error)
    return states
