"""How far a group is behind its topics, and how near retention is to what it has not loaded: a pure evaluation. No I/O.

The rules are those of `docs/semantics.md`; the case ids in tests (L01, L02, …) refer to them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from airflow_kafka_offsets.core.offsets import PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.core.planning import First, Start
from airflow_kafka_offsets.core.text import first_few

Flag = Literal["no position", "beyond the end"]


@dataclass(frozen=True, slots=True)
class Committed:
    """What is stored of a partition.

    :param record_timestamp: of the newest record that was committed; None where none was
    :param updated_at: when the position came to be there, by the database's clock
    """

    position: Position
    record_timestamp: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind one partition. Numbers are offsets, of which not every one need be a record.

    :param position: the next offset to read; None where nothing is stored
    :param beginning: the log's beginning offset; None, like all that follows from it, where the partition has an error
    :param lag: offsets that wait in the log
    :param lost: offsets that were not loaded and are gone from the log; no part of the lag
    :param time_lag: zero where the lag is; else the age of the newest record that was committed; None where none was
    :param delay: zero where the lag is; else for how long the oldest record that is newer than all that was committed has waited,
        or, where no such record is known, the position has not moved; None where neither was asked for or stored
    :param headroom: how many offsets the beginning offset is behind the position, negative where it has passed it; None
        where nothing is stored
    :param headroom_time: how long retention by time leaves the oldest record that is newer than all that was committed; zero
        where offsets are lost already. None where nothing waits, and where it is not known: the record is not, or the topic has
        no `retention.ms`, or also a limit of size, which may come sooner
    :param flags: what is odd, but no error
    :param error: why nothing is known of the partition
    """

    topic: str
    partition: int
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

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class LagReport:
    """The lag of a group, by partition and in total. Partitions with an error count nothing.

    :param partitions: by topic and partition
    :param note: what is odd about all of it, but no error
    """

    partitions: tuple[PartitionLag, ...]
    note: str | None = None

    @property
    def lag(self) -> int:
        return sum(one.lag or 0 for one in self.partitions)

    @property
    def lost(self) -> int:
        return sum(one.lost or 0 for one in self.partitions)

    @property
    def complete(self) -> bool:
        """Whether every partition counts: where one has an error, the total is only a lower bound."""
        return not self.errors

    @property
    def errors(self) -> tuple[PartitionLag, ...]:
        """The partitions of which nothing is known."""
        return tuple(one for one in self.partitions if one.error is not None)

    @property
    def time_lag(self) -> timedelta | None:
        """The longest of those that are known; None where none is."""
        return max((one.time_lag for one in self.partitions if one.time_lag is not None), default=None)

    @property
    def delay(self) -> timedelta | None:
        """The longest of those that are known; None where none is."""
        return max((one.delay for one in self.partitions if one.delay is not None), default=None)

    @property
    def headroom(self) -> int | None:
        """The smallest of those that are known; None where none is."""
        return min((one.headroom for one in self.partitions if one.headroom is not None), default=None)

    @property
    def headroom_time(self) -> timedelta | None:
        """The shortest of those that are known; None where none is."""
        return min((one.headroom_time for one in self.partitions if one.headroom_time is not None), default=None)

    def __str__(self) -> str:
        told = [f"lag {self.lag:,} in {len(self.partitions)} partitions"]
        if self.lost:
            told.append(f"{self.lost:,} offsets lost to retention")
        if self.errors:
            told.append(f"incomplete: {first_few((one.error for one in self.errors), most=1)}")
        if self.note:
            told.append(self.note)
        return "; ".join(told)

    def summary(self, most: int = 100) -> dict[str, Any]:
        """The totals, by topic too, and the partitions that are farthest behind, as JSON has it: for XCom and events.

        :param most: how many partitions, and how many errors
        """
        behind = sorted(self.partitions, key=lambda one: (-(one.lag or 0) - (one.lost or 0), one.topic_partition))
        return {
            **_totals(self),
            "topics": {topic: _totals(one) for topic, one in self.by_topic().items()},
            "partitions": [
                {
                    "topic": one.topic,
                    "partition": one.partition,
                    "position": one.position,
                    "beginning": one.beginning,
                    "end": one.end,
                    "flags": list(one.flags),
                    **measures(one),
                }
                for one in behind[:most]
                if one.error is None
            ],
            "partitions_left_out": max(0, len(behind) - most),
            "errors": [str(one.error) for one in self.errors[:most]],
        }

    def by_topic(self) -> dict[str, LagReport]:
        """A report for each topic."""
        topics: dict[str, list[PartitionLag]] = {}
        for one in self.partitions:
            topics.setdefault(one.topic, []).append(one)
        return {topic: LagReport(tuple(topics[topic])) for topic in sorted(topics)}


def _totals(report: LagReport) -> dict[str, Any]:
    return {**measures(report), "complete": report.complete}


def measures(one: PartitionLag | LagReport) -> dict[str, float | None]:
    """The numbers of a partition or of a total, by the names that events and metrics have for them; None is not known."""
    return {
        "lag": one.lag,
        "lost": one.lost,
        "time_lag_seconds": _seconds(one.time_lag),
        "delay_seconds": _seconds(one.delay),
        "headroom": one.headroom,
        "headroom_time_seconds": _seconds(one.headroom_time),
    }


def _seconds(duration: timedelta | None) -> float | None:
    return duration.total_seconds() if duration is not None else None


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
) -> LagReport:
    """Compare what is stored with the ends of the logs.

    :param committed: read before the ends of the logs: the other way round, a lag could come out negative
    :param logs: of the partitions that could be asked about
    :param now: the database's time
    :param start: where a load would begin with a topic of which nothing is stored. A new partition of a known topic begins at
        its beginning offset, whatever this says. What `none` refuses to load waits like with `earliest`
    :param errors: why partitions could not be asked about
    :param waiting: the timestamp of the oldest record that is newer than all that was committed, where it was found; None where
        nobody asked
    :param retention: how long topics keep records, of those that limit nothing but time
    :param known_topics: topics of which something is stored, also where that is nothing of these partitions
    :return: every partition that is stored, in a log, or has an error
    """
    failed = errors or {}
    known = {tp.topic for tp in committed}.union(known_topics)
    found: list[PartitionLag] = []
    for tp in sorted({*committed, *logs, *failed}):
        stored = committed.get(tp)
        log = logs.get(tp)
        error = failed.get(tp) or _mismatch(tp, stored, log)
        if error is not None or log is None:
            found.append(PartitionLag(*tp, position=stored.position.offset if stored else None, error=error))
            continue
        begun = stored or Committed(Position(begin(tp, log, start, known).offset))
        oldest = waiting.get(tp) if waiting is not None else None
        since = oldest or (begun.updated_at if waiting is not None else None)
        # Not by the date at which it may go: timestamps can be the last there is.
        left = retention[tp.topic] - (now - oldest) if oldest and retention and tp.topic in retention else None
        one = _measured(tp, begun, log, now, since, left)
        if stored is None:
            one = replace(one, position=None, headroom=None, flags=("no position", *one.flags))
        found.append(one)
    return LagReport(tuple(found))


def _measured(
    tp: TopicPartition,
    stored: Committed,
    log: PartitionLog,
    now: datetime,
    since: datetime | None,
    left: timedelta | None,
) -> PartitionLag:
    position, newest, none = stored.position.offset, stored.record_timestamp, timedelta(0)
    lag = max(0, log.end - max(position, log.beginning))
    lost = max(0, log.beginning - position)
    # Producers' clocks may be ahead of the database's.
    age = max(none, now - newest) if newest is not None else None
    waited = max(none, now - since) if since is not None else None
    return PartitionLag(
        *tp,
        position=position,
        beginning=log.beginning,
        end=log.end,
        lag=lag,
        lost=lost,
        time_lag=age if lag else none,
        delay=waited if lag else none,
        headroom=position - log.beginning,
        headroom_time=none if lost else max(none, left) if left is not None and lag else None,
        flags=("beyond the end",) if position > log.end else (),
    )


def begin(tp: TopicPartition, log: PartitionLog, start: Start, known_topics: Collection[str]) -> First:
    """Where a load would begin with a partition of which nothing is stored."""
    if tp.topic in known_topics:
        return First(log.beginning, "new-partition")
    if isinstance(start, Mapping):
        return start[tp]
    return First(log.end if start == "latest" else log.beginning, start)


def _mismatch(tp: TopicPartition, stored: Committed | None, log: PartitionLog | None) -> str | None:
    """Why offsets of the log cannot be compared with the position, where they are of different topics."""
    if stored is None:
        return None
    if log is None:
        return f"{tp}: the topic has no such partition now: it was deleted and created again"
    position = stored.position
    if position.topic_id and log.topic_id and position.topic_id != log.topic_id:
        return (
            f"{tp}: position {position.offset} belongs to topic id {position.topic_id}, the topic has id {log.topic_id} "
            "now: it was deleted and created again"
        )
    return None
