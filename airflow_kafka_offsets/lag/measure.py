"""The lag of groups as it is now: positions from the database first, then the ends of the logs, then `lag.evaluate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.instants import from_milliseconds, milliseconds
from airflow_kafka_offsets.core.log_identity import check_cluster
from airflow_kafka_offsets.core.offsets import PartitionLog, TopicPartition
from airflow_kafka_offsets.core.planning import First
from airflow_kafka_offsets.core.scope import Scope, partitions_in
from airflow_kafka_offsets.core.start import Start
from airflow_kafka_offsets.exceptions import ConfigurationError, KafkaOffsetsError
from airflow_kafka_offsets.kafka.cluster import Cluster, PartialLogs
from airflow_kafka_offsets.kafka.start_offsets import first_offsets
from airflow_kafka_offsets.lag.group_states import GroupState, group_states
from airflow_kafka_offsets.lag.report import Committed, LagReport, begin, evaluate
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.tables import Tables

_NO_TABLES = (
    "no state tables are there: nothing was loaded yet, or offsets_schema or offsets_prefix is not that of the load"
)


_WaitingKey = tuple[str, int, int, int]
"""Topic, partition, position, and the timestamp that is looked for. A plain tuple of plain values costs the garbage collector nothing;
thousands of other ones that outlive a poll bring on full collections, whose pauses hold up an event loop."""


@dataclass(frozen=True, slots=True)
class LagQuestion:
    """What is asked about a group.

    :param scope: topics, or partitions of them, of which nothing need be stored yet; empty is the topics of the stored positions
    :param start: where a load would begin with topics of which nothing is stored
    :param times: whether to find out also, by more requests, how long records have waited and how long retention leaves them
    """

    group_id: str
    scope: Scope = field(default_factory=dict)
    start: Start = "earliest"
    times: bool = False

    def topics(self, state: GroupState) -> frozenset[str]:
        """The topics that are meant."""
        return frozenset(self.scope) or state.topics


def measure_lag(
    engine: Engine,
    tables: Tables,
    cluster: Cluster,
    question: LagQuestion,
    *,
    new_group: bool = False,
) -> LagReport:
    """How far a group is behind.

    Four requests to Kafka for any number of partitions: the cluster's id, the topics, and both ends of their logs; two more with
    `times`. A partition that cannot be asked about is an entry with an error.

    :param cluster: its isolation level decides what the end of a log is; its time-out, how long a partition without a leader
        is waited for
    :param new_group: whether the group may be one that nothing is stored of yet
    :raises ConfigurationError: the state tables know no such group
    :raises ClusterChangedError: the positions belong to another cluster
    :raises UnknownTopicError: one of the topics or partitions in the scope does not exist, and nothing is stored of it
    :raises KafkaUnavailableError: the cluster did not answer in time
    """
    with engine.connect() as conn:
        if not new_group:
            cluster_of(conn, tables, question.group_id)
        states = group_states(conn, tables, [question.group_id])
    report = next(LagPolls(cluster).reports([(question, states[question.group_id])]))
    if isinstance(report, Exception):
        raise report
    return report


class LagPolls:
    """Looks at the lag of any number of groups, each of which costs no more requests than one group would.

    The timestamp of a record that waits is asked for once for each position, however often that is looked at.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._waiting: dict[_WaitingKey, datetime] = {}
        self._used: dict[_WaitingKey, datetime] = {}

    def reports(self, asked: Iterable[tuple[LagQuestion, GroupState]]) -> Iterator[LagReport | Exception]:
        """A report for each question, or why there is none; one after the other, so that not all are held at once.

        Whatever goes wrong with one group is told of that group alone.

        :param asked: with states that were read before
        :raises KafkaUnavailableError: the cluster did not answer in time
        """
        meant = [(question, state, question.topics(state)) for question, state in asked]
        cluster_id = self._cluster.cluster_id()
        topics = frozenset[str]().union(*(topics for _, _, topics in meant))
        logs = self._cluster.partial_logs(sorted(topics)) if topics else PartialLogs({}, {}, {})
        timed = frozenset[str]().union(*(topics for question, _, topics in meant if question.times))
        retention = self._cluster.retention(sorted(timed - logs.topic_errors.keys())) if timed else {}
        look = _Look.of(cluster_id, logs, retention)
        self._waiting, self._used = self._used, {}
        for question, state, topics in meant:
            try:
                report: LagReport | Exception = self._report(question, state, topics, look)
            except Exception as error:
                report = error
            yield report

    def _report(self, question: LagQuestion, state: GroupState, topics: frozenset[str], look: _Look) -> LagReport:
        check_cluster(question.group_id, state.cluster_id, look.cluster_id)
        if not topics:
            if not state.known:
                raise ConfigurationError(f"Nothing is stored of group {question.group_id!r} yet: name its topics")
            return LagReport(())
        stored = state.committed()
        committed = {tp: one for tp, one in stored.items() if tp.topic in topics}
        logs, errors = look.at(topics, committed)
        meant = frozenset(partitions_in(question.scope, {*committed, *errors}, logs))
        committed = {tp: one for tp, one in committed.items() if tp in meant}
        logs = {tp: one for tp, one in logs.items() if tp in meant}
        positions = {tp: one.position for tp, one in stored.items()}
        start = first_offsets(self._cluster, question.start, lambda: state.now, logs, positions)
        new = {tp: begin(tp, log, start, state.topics) for tp, log in logs.items() if tp not in committed}
        report = evaluate(
            committed,
            logs,
            now=state.now,
            start=start,
            errors={tp: error for tp, error in errors.items() if tp in meant},
            waiting=self._first_waiting(committed, new, logs) if question.times else None,
            retention=look.retention,
            known_topics=state.topics,
        )
        # Before the first load that is as it should be; but it is also what a misspelled schema looks like.
        return report if state.installed else replace(report, note=_NO_TABLES)

    def _first_waiting(
        self,
        committed: Mapping[TopicPartition, Committed],
        new: Mapping[TopicPartition, First],
        logs: Mapping[TopicPartition, PartitionLog],
    ) -> dict[TopicPartition, datetime]:
        """When the oldest record that is newer than all that was committed was written, by its timestamp.

        Of a partition of which nothing was committed, the first record of the log, if the position does not lie behind it; or
        that which was found by time.

        :param new: where a load would begin with partitions of which nothing is stored
        """
        after: dict[TopicPartition, tuple[int, int]] = {}
        found: dict[TopicPartition, datetime] = {}
        for tp, log in logs.items():
            stored = committed.get(tp)
            position = stored.position.offset if stored is not None else new[tp].offset
            if position >= log.end:
                continue
            if stored is None and (timestamp_ms := new[tp].timestamp_ms) is not None:
                found[tp] = from_milliseconds(timestamp_ms)
                continue
            newest = stored.record_timestamp if stored is not None else None
            after[tp] = (position, milliseconds(newest) + 1 if newest is not None else 0)
        known = {tp: self._waiting[*tp, *key] for tp, key in after.items() if (*tp, *key) in self._waiting}
        unknown = {tp: key for tp, key in after.items() if tp not in known}
        if unknown:
            first = self._cluster.first_since({tp: since for tp, (_, since) in unknown.items()})
            for tp, one in first.items():
                # What lies before the position was loaded, or is read no more.
                if one.offset >= unknown[tp][0]:
                    known[tp] = from_milliseconds(one.timestamp_ms)
        self._used |= {(*tp, *after[tp]): timestamp for tp, timestamp in known.items()}
        return known | found


@dataclass(frozen=True, slots=True)
class _Look:
    """What the cluster said of the topics of all groups, by topic."""

    cluster_id: str
    logs: Mapping[str, Mapping[TopicPartition, PartitionLog]]
    topic_errors: Mapping[str, KafkaOffsetsError]
    partition_errors: Mapping[str, Mapping[TopicPartition, str]]
    retention: Mapping[str, timedelta]

    @classmethod
    def of(cls, cluster_id: str, found: PartialLogs, retention: Mapping[str, timedelta]) -> _Look:
        logs: dict[str, dict[TopicPartition, PartitionLog]] = {}
        for tp, log in found.logs.items():
            logs.setdefault(tp.topic, {})[tp] = log
        errors: dict[str, dict[TopicPartition, str]] = {}
        for tp, error in found.partition_errors.items():
            errors.setdefault(tp.topic, {})[tp] = str(error)
        return cls(cluster_id, logs, found.topic_errors, errors, retention)

    def at(
        self, topics: Iterable[str], committed: Mapping[TopicPartition, Committed]
    ) -> tuple[dict[TopicPartition, PartitionLog], dict[TopicPartition, str]]:
        """The logs of some topics, and why partitions have none.

        :raises KafkaOffsetsError: a topic could not be asked about, and nothing is stored of it
        """
        logs: dict[TopicPartition, PartitionLog] = {}
        errors: dict[TopicPartition, str] = {}
        for topic in topics:
            logs |= self.logs.get(topic, {})
            errors |= self.partition_errors.get(topic, {})
            if topic in self.topic_errors:
                of_topic = [tp for tp in committed if tp.topic == topic]
                if not of_topic:
                    raise self.topic_errors[topic]
                errors |= dict.fromkeys(of_topic, str(self.topic_errors[topic]))
        return logs, errors
