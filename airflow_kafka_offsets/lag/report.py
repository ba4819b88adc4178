"""The lag of a group, evaluated from its stored positions and the ends of the logs. No I/O.

`evaluate` decides; `measure` asks the database and Kafka for what it compares, and `thresholds` decides whether a lag
is worth acting upon. The rules are those of `docs/semantics.md`; the case ids in tests (L01, L02, …) refer to them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal

from airflow_kafka_offsets.core import instants
from airflow_kafka_offsets.core.log_identity import topic_mismatch
from airflow_kafka_offsets.core.offsets import OfPartition, PartitionLog, Position, Scope, TopicPartition
from airflow_kafka_offsets.core.planning import LONG_OPEN, Start, first_offset
from airflow_kafka_offsets.core.text import count, first_reason

Flag = Literal["no position", "beyond the end", "open transaction"]

_ZERO = timedelta(0)


@dataclass(frozen=True, slots=True)
class LagQuestion:
    """A group, and what to measure of it.

    :param scope: topics, or some of their partitions, with or without a position; empty is all topics with positions
    :param start: where a load begins with topics that have no position
    :param times: whether to measure, with more requests, how long records have waited and when retention deletes them
    """

    group_id: str
    scope: Scope = field(default_factory=dict)
    start: instants.Start = "earliest"
    times: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """The stored position of a partition.

    :param record_timestamp: of the newest committed record; None if no record was committed
    :param updated_at: when the position was stored, by the database's clock
    """

    position: Position
    record_timestamp: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class PartitionLag(OfPartition):
    """The lag of one partition. Numbers count offsets; compaction and transactions leave offsets without a record.

    The oldest unread record is the first one with a timestamp after that of the newest committed record.

    :param position: the next offset to read; None if no position is stored
    :param beginning: the log's beginning offset; None if Kafka did not report it
    :param end: the log's end offset
    :param lag: offsets in the log that are not loaded; None, as are the following, if the partition has an error
    :param lost: offsets that were not loaded and are no longer in the log; they are not part of the lag
    :param time_lag: zero without a lag; else the age of the newest committed record; None if no record was committed
    :param delay: zero without a lag; else how long the oldest unread record has waited or, if it cannot be found, how
        long the position has not moved; None if times were not asked for, and if no position is stored either
    :param headroom: the position minus the beginning offset, negative if records are lost; None if no position is
        stored
    :param headroom_time: time until retention deletes the oldest unread record; zero if records are already lost; None
        if nothing is unread or it cannot be known (no such record, no `retention.ms`, or a size limit)
    :param flags: what is unusual; a position beyond the end is also an error, and behind the end, records wait for a
        transaction, for which the position has waited for long
    :param error: why the lag of the partition is not known
    """

    position: int | None = None
    beginning: int | None = None
    end: int | None = None
    lag: int | None = None
    lost: int | None = None
    time_lag: timedelta | None = None
    delay: timedelta | None = None
    headroom: int | None = None
    headroom_time: timedelta | None = None
    flags: tuple[Flag, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LagReport:
    """The lag of a group, by partition and in total. The totals leave out partitions with an error.

    :param partitions: in the order of topic and partition
    :param note: what is unusual about the whole report, but no error
    :param denied: which ACLs are missing for topics of the report; these have errors
    :param unknown_headroom: why `headroom_time` will not be known of some topics, whatever is unread
    """

    partitions: tuple[PartitionLag, ...]
    note: str | None = None
    denied: str | None = None
    unknown_headroom: str | None = None

    @property
    def lag(self) -> int | None:
        """Return the sum of the known lags; None if none is known."""
        return self._sum("lag")

    @property
    def lost(self) -> int | None:
        """Return the sum of the known lost offsets; None if none is known."""
        return self._sum("lost")

    @property
    def complete(self) -> bool:
        """Return whether no partition has an error; otherwise the totals are lower bounds."""
        return not self.errors

    @property
    def errors(self) -> tuple[PartitionLag, ...]:
        """Return the partitions with an error."""
        return tuple(partition for partition in self.partitions if partition.error is not None)

    @property
    def flags(self) -> tuple[Flag, ...]:
        """Return what is unusual about some partition."""
        return tuple(dict.fromkeys(flag for partition in self.partitions for flag in partition.flags))

    @property
    def time_lag(self) -> timedelta | None:
        """Return the longest known time lag; None if none is known."""
        return max(self._known("time_lag"), default=None)

    @property
    def delay(self) -> timedelta | None:
        """Return the longest known delay; None if none is known."""
        return max(self._known("delay"), default=None)

    @property
    def headroom(self) -> int | None:
        """Return the smallest known headroom; None if none is known."""
        return min(self._known("headroom"), default=None)

    @property
    def headroom_time(self) -> timedelta | None:
        """Return the shortest known time until records are lost; None if none is known."""
        return min(self._known("headroom_time"), default=None)

    def _sum(self, measure: str) -> int | None:
        known = self._known(measure)
        return sum(known) if known else None

    def _known(self, measure: str) -> list[Any]:
        values = (getattr(partition, measure) for partition in self.partitions)
        return [value for value in values if value is not None]

    def __str__(self) -> str:
        lag = "unknown" if self.lag is None else f"{self.lag:,}"
        parts = [f"lag {lag} in {count(len(self.partitions), 'partition')}"]
        if self.lost:
            parts.append(f"{count(self.lost, 'offset')} lost to retention")
        if self.errors:
            parts.append(f"incomplete: {first_reason(partition.error for partition in self.errors)}")
        if self.note:
            parts.append(self.note)
        return "; ".join(parts)

    def by_topic(self) -> dict[str, LagReport]:
        """Return a report for each topic."""
        topics = groupby(self.partitions, attrgetter("topic"))
        return {topic: LagReport(tuple(partitions)) for topic, partitions in topics}

    def summary(self, most: int = 100) -> dict[str, Any]:
        """Return the totals, in all and by topic, and the partitions with the largest lag, for XCom and events.

        :param most: how many partitions, and how many errors
        :return: what JSON can hold
        """
        worst_first = sorted(
            self.partitions, key=lambda each: (-(each.lag or 0) - (each.lost or 0), each.topic_partition)
        )
        return {
            **_totals(self),
            "topics": {topic: _totals(report) for topic, report in self.by_topic().items()},
            "partitions": [
                {name: getattr(partition, name) for name in ("topic", "partition", "position", "beginning", "end")}
                | {"flags": list(partition.flags), **numbers(partition)}
                for partition in worst_first[:most]
                if partition.error is None
            ],
            "partitions_left_out": max(0, len(worst_first) - most),
            "errors": [str(partition.error) for partition in self.errors[:most]],
        }


def measures(lag: PartitionLag | LagReport) -> dict[str, int | timedelta | None]:
    """Return the measures of a partition or of a total, by the names that commands, events and metrics have for
    them.
    """
    return {
        "lag": lag.lag,
        "lost": lag.lost,
        "time_lag_seconds": lag.time_lag,
        "delay_seconds": lag.delay,
        "headroom": lag.headroom,
        "headroom_time_seconds": lag.headroom_time,
    }


def numbers(lag: PartitionLag | LagReport) -> dict[str, float | None]:
    """Return the measures with durations in seconds; None is not known."""
    return {
        name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in measures(lag).items()
    }


def _totals(report: LagReport) -> dict[str, Any]:
    return {**numbers(report), "complete": report.complete}


def evaluate(
    committed: Mapping[TopicPartition, Committed],
    logs: Mapping[TopicPartition, PartitionLog],
    *,
    now: datetime,
    start: Start = "earliest",
    errors: Mapping[TopicPartition, str] | None = None,
    waiting: Mapping[TopicPartition, datetime] | None = None,
    retention: Mapping[str, timedelta] | None = None,
    known_topics: Collection[str] = (),
    held_back: Collection[TopicPartition] = (),
) -> LagReport:
    """Compare stored positions with the ends of the logs.

    :param committed: read before the ends of the logs: the other way round, a lag could be negative
    :param logs: of the partitions that Kafka described. A position beyond the end of its log means that the log was
        truncated: its partition has an error
    :param now: the database's time
    :param start: where a load begins with a topic that has no position. A new partition of a known topic begins at its
        beginning offset in any case. For a topic that `none` refuses to load, the lag is that of `earliest`
    :param errors: why Kafka did not describe partitions
    :param waiting: the timestamps of the oldest unread records that were found; None if times were not asked for
    :param retention: how long topics keep records, of topics that limit time only
    :param known_topics: further topics with positions, in partitions other than those of `committed`
    :param held_back: the partitions with offsets behind the end, because they wait for an open transaction
    :return: every partition that has a position, a log or an error
    """
    errors, times = errors or {}, _Times(now, waiting, retention or {})
    known = {tp.topic for tp in committed}.union(known_topics)
    partitions: list[PartitionLag] = []
    for tp in sorted({*committed, *logs, *errors}):
        stored, log, error = committed.get(tp), logs.get(tp), errors.get(tp)
        position = stored.position.offset if stored is not None else None
        if error is None and stored is not None and (mismatch := topic_mismatch(tp, stored.position, log)):
            error = f"{mismatch}: the topic was recreated; rewind the group to an offset or a time in the new one"
        if error is not None or log is None:
            partitions.append(PartitionLag(*tp, position=position, error=error))
        else:
            begin = first_offset(tp, log, start, known).offset if position is None else position
            partitions.append(_measured(tp, stored, log, begin, times, tp in held_back))
    return LagReport(tuple(partitions))


@dataclass(frozen=True, slots=True)
class _Times:
    """What `evaluate` knows of times, with the parameters that it describes."""

    now: datetime
    waiting: Mapping[TopicPartition, datetime] | None
    retention: Mapping[str, timedelta]

    def age(self, instant: datetime | None) -> timedelta | None:
        """Return how long ago an instant was; producers' clocks may be ahead of the database's."""
        return max(_ZERO, self.now - instant) if instant is not None else None

    def delay(self, tp: TopicPartition, updated_at: datetime | None = None) -> timedelta | None:
        """Return how long the oldest unread record has waited or, if it was not found, since when the position has
        not moved.
        """
        return self.age(self.waiting.get(tp) or updated_at) if self.waiting is not None else None

    def until_deleted(self, tp: TopicPartition) -> timedelta | None:
        """Return the time until retention deletes the oldest unread record."""
        oldest = self.waiting.get(tp) if self.waiting is not None else None
        if oldest is None or tp.topic not in self.retention:
            return None
        # Not the instant at which it ends: a timestamp may be the largest that a datetime can hold.
        return max(_ZERO, self.retention[tp.topic] - (self.now - oldest))


def _measured(
    tp: TopicPartition,
    stored: Committed | None,
    log: PartitionLog,
    begin: int,
    times: _Times,
    is_held_back: bool,
) -> PartitionLag:
    """Return the lag of a partition that Kafka described.

    :param begin: the position, or where a load would begin
    :param is_held_back: whether offsets behind the end wait for an open transaction
    """
    flags: tuple[Flag, ...] = ("no position",) if stored is None else ()
    unmoved = times.age(stored.updated_at) if stored is not None else None
    if is_held_back and begin == log.end and unmoved is not None and unmoved >= LONG_OPEN:
        flags = (*flags, "open transaction")
    position, newest, updated_at = (
        (begin, stored.record_timestamp, stored.updated_at) if stored is not None else (None, None, None)
    )
    if begin > log.end:
        what, then = ("position", "; rewind the group") if stored is not None else ("start", "")
        error = f"{tp}: {what} {begin} is beyond the end offset {log.end}: the log was truncated{then}"
        return PartitionLag(*tp, position, log.beginning, log.end, flags=(*flags, "beyond the end"), error=error)
    lag, lost = max(0, log.end - max(begin, log.beginning)), max(0, log.beginning - begin)
    return PartitionLag(
        *tp,
        position=position,
        beginning=log.beginning,
        end=log.end,
        lag=lag,
        lost=lost,
        time_lag=times.age(newest) if lag else _ZERO,
        delay=times.delay(tp, updated_at) if lag else _ZERO,
        headroom=position - log.beginning if position is not None else None,
        headroom_time=_ZERO if lost else times.until_deleted(tp) if lag else None,
        flags=flags,
    )
