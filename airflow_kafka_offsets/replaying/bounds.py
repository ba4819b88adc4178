"""What a replay loads: bounds of three kinds, turned into offsets, held against the logs, and cut into parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.core import log_identity
from airflow_kafka_offsets.core.instants import instant, milliseconds
from airflow_kafka_offsets.core.offsets import MAX_INT64, Gap, OffsetRange, PartitionLog, TopicPartition
from airflow_kafka_offsets.core.planning import OnDataLoss, Plan
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import ConfigurationError, DataLossError

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.cluster import Cluster
    from airflow_kafka_offsets.ledger.batch_rows import Batch


_SHAPES = '{"orders": {0: [10, 20]}}, or a list of {"topic": …, "partition": …, "start": …, "end": …}'

Logs = Mapping[TopicPartition, PartitionLog]

Ranges = tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """Ranges of offsets: start inclusive, end exclusive.

    :param ranges: `{"orders": {0: (10, 20)}}`, or a list of mappings with topic, partition, start, end and, optionally, the
        topic_id that the offsets belong to, such as `KafkaReplayPlanOperator` returns; either also as JSON text
    """

    ranges: Mapping[str, Mapping[Any, Any]] | Sequence[Mapping[str, Any]] | str

    def read(self) -> Ranges:
        """
        :raises ConfigurationError: they are in none of these shapes, overlap, or are no offsets
        """
        try:
            given = json.loads(self.ranges) if isinstance(self.ranges, str) else self.ranges
            read = tuple(sorted(_read(given), key=lambda one: one.topic_partition))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ConfigurationError(f"Offsets must look like {_SHAPES}; got {self.ranges!r}") from None
        for one in read:
            if not 0 <= one.start <= one.end:
                raise ConfigurationError(f"Offsets must not be negative or end before they start; got {one}")
        if len({one.topic_partition for one in read}) != len(read):
            raise ConfigurationError(f"Offsets must name each partition once; got {', '.join(map(str, read))}")
        return read


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """From the first record at or after an instant up to the first record at or after another, in every partition.

    Records do not lie in the order of their timestamps: those in between are loaded whatever their timestamps are, and what
    lies outside is not.

    :param since: inclusive; no zone means UTC, text is ISO 8601
    :param until: exclusive; None, or an instant that no record has reached, is the end of the log when the replay is planned
    """

    since: str | datetime
    until: str | datetime | None = None

    def instants(self) -> tuple[datetime, datetime | None]:
        """
        :raises ConfigurationError: one is no instant, or they are the wrong way round
        """
        since = instant("since", self.since)
        until = instant("until", self.until) if self.until is not None else None
        if until is not None and until <= since:
            raise ConfigurationError(f"until must be after since; got since={self.since!r}, until={self.until!r}")
        return since, until


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """The ranges of a batch of the group's history, from their starts to where the positions were moved.

    :param batch_id: its number
    """

    batch_id: int


Bounds = OffsetBounds | TimeBounds | BatchBounds


def check_bounds(bounds: Bounds | Mapping[str, Any] | Sequence[Mapping[str, Any]], topics: Sequence[str]) -> Bounds:
    """Refuse what cannot be meant, before anything is asked.

    :param bounds: a mapping, or a list, means `Offsets`
    :param topics: of the pipeline
    :raises ConfigurationError: says what was received
    """
    if not isinstance(bounds, (OffsetBounds, TimeBounds, BatchBounds)):
        bounds = OffsetBounds(bounds)
    if isinstance(bounds, TimeBounds):
        bounds.instants()
    if isinstance(bounds, OffsetBounds):
        _check_topics(bounds.read(), topics)
    if isinstance(bounds, BatchBounds) and (
        not isinstance(bounds.batch_id, int) or not 1 <= bounds.batch_id <= MAX_INT64
    ):
        raise ConfigurationError(f"A batch is known by its number; got batch_id={bounds.batch_id!r}")
    return bounds


def describe_bounds(bounds: Bounds, topics: Sequence[str]) -> str:
    """The bounds for the history. Those of two tries of a task that want the same are the same text."""
    if isinstance(bounds, OffsetBounds):
        return f"offsets {', '.join(map(str, bounds.read()))}"
    if isinstance(bounds, BatchBounds):
        return f"the ranges of batch {bounds.batch_id}"
    since, until = bounds.instants()
    to = f"until {until.isoformat()}" if until is not None else "up to the end"
    return f"{', '.join(sorted(topics))} since {since.isoformat()} {to}"


def resolve_bounds(
    bounds: Bounds, topics: Sequence[str], cluster: Cluster, batch: Callable[[int], Batch]
) -> tuple[Ranges, Logs]:
    """The ranges that are meant, and the logs of their topics.

    :param batch: looks up a batch of the group's history
    :return: ranges without empty ones, by topic and partition, whether the logs hold them or not
    :raises ConfigurationError: the ranges of the batch are not of the pipeline's topics
    """
    if isinstance(bounds, TimeBounds):
        logs = cluster.logs(topics)
        return _between(bounds, cluster, logs), logs
    if isinstance(bounds, BatchBounds):
        found = batch(bounds.batch_id)
        ranges = tuple(replace(one, target=one.end) for one in found.ranges)
    else:
        ranges = bounds.read()
    ranges = tuple(one for one in ranges if one.start < one.end)
    _check_topics(ranges, topics)
    return ranges, cluster.logs(sorted({one.topic for one in ranges})) if ranges else {}


def fit_to_logs(ranges: Iterable[OffsetRange], logs: Logs, on_data_loss: OnDataLoss) -> Plan:
    """Hold ranges against the logs: nothing is moved to what is there, but for what may be skipped.

    :return: a range for each one given; one whose records are all gone is empty, and its gap says so
    :raises DataLossError: records are gone, and may not be skipped
    :raises TopicRecreatedError: the offsets belong to an earlier topic of the same name
    :raises LogTruncatedError: they belong to a log that was cut
    :raises ConfigurationError: there is no such partition, or its log ends before
    """
    ranges = tuple(ranges)
    log_identity.check_ranges([one for one in ranges if one.topic_id is not None], logs)
    wrong = [
        f"{one}: the log ends at offset {logs[one.topic_partition].end}"
        if one.topic_partition in logs
        else f"{one}: the topic has no such partition"
        for one in ranges
        if one.topic_partition not in logs or one.end > logs[one.topic_partition].end
    ]
    if wrong:
        raise ConfigurationError(
            f"Offsets that are to be replayed are not in Kafka: {first_few(wrong, between='; ')}. Nothing was loaded."
        )
    fitted: list[OffsetRange] = []
    gaps: list[Gap] = []
    for one in ranges:
        log = logs[one.topic_partition]
        start = min(max(one.start, log.beginning), one.end)
        if start > one.start:
            gaps.append(
                Gap(*one.topic_partition, one.start, start, "expired", "left out of a replay (on_data_loss='skip')")
            )
        fitted.append(
            OffsetRange(
                *one.topic_partition,
                start,
                one.end,
                one.end,
                log.topic_id,
                "replay",
                one.leader_epoch if start == one.start else None,
                log.leader_epoch,
            )
        )
    if gaps and on_data_loss == "fail":
        lost = [
            f"{gap.topic}[{gap.partition}]: offsets {gap.start}..{gap.end} are gone, the beginning offset is "
            f"{logs[TopicPartition(gap.topic, gap.partition)].beginning}"
            for gap in gaps
        ]
        raise DataLossError(
            f"Records that are to be replayed are gone from the log (retention, or deleted records): "
            f"{first_few(lost, between='; ')}. Nothing was loaded. To replay what is left, set on_data_loss='skip': the gap is recorded in offset_gaps."
        )
    return Plan(tuple(fitted), tuple(gaps))


def wanted(batch: Batch) -> Ranges:
    """The ranges that an open batch of a replay was planned for, before what was gone was left out."""
    gone = {TopicPartition(gap.topic, gap.partition): gap.start for gap in batch.gaps}
    return tuple(replace(one, start=gone.get(one.topic_partition, one.start)) for one in batch.ranges)


def cut_into_parts(ranges: Sequence[OffsetRange], parts: int) -> list[Ranges]:
    """Cut ranges into parts of nearly equal numbers of offsets. The same input gives the same parts.

    :param parts: how many; fewer come out where there are fewer offsets. None is empty
    """
    if parts < 1:
        raise ConfigurationError(f"parts must be at least 1; got parts={parts}")
    total = sum(one.end - one.start for one in ranges)
    parts = min(parts, total)
    marks = [total * i // parts for i in range(parts + 1)] if parts else []
    return [_between_marks(ranges, low, high) for low, high in pairwise(marks)]


def bounds_as_json(ranges: Iterable[OffsetRange], logs: Logs) -> list[dict[str, Any]]:
    """Ranges as plain data that `Offsets` reads again, with the ids of the topics that they belong to.

    :raises ConfigurationError: the topic of a range without an id has no such partition
    """
    ranges = tuple(ranges)
    missing = [str(one) for one in ranges if one.topic_id is None and one.topic_partition not in logs]
    if missing:
        raise ConfigurationError(
            f"Offsets that are to be replayed are not in Kafka, the topic has no such partition: {first_few(missing)}"
        )
    return [
        {
            "topic": one.topic,
            "partition": one.partition,
            "start": one.start,
            "end": one.end,
            "topic_id": one.topic_id or logs[one.topic_partition].topic_id,
        }
        for one in ranges
    ]


def _read(given: Any) -> Iterable[OffsetRange]:
    if isinstance(given, Mapping):
        for topic, partitions in given.items():
            for partition, (start, end) in partitions.items():
                yield _range(topic, partition, start, end)
    else:
        for one in given:
            yield _range(one["topic"], one["partition"], one["start"], one["end"], one.get("topic_id"))


def _range(topic: str, partition: Any, start: Any, end: Any, topic_id: str | None = None) -> OffsetRange:
    return OffsetRange(str(topic), int(partition), int(start), int(end), int(end), topic_id, "replay")


def _check_topics(ranges: Iterable[OffsetRange], topics: Sequence[str]) -> None:
    others = sorted({one.topic for one in ranges} - set(topics))
    if others:
        raise ConfigurationError(
            f"The bounds name topic {', '.join(map(repr, others))}; the topics of this replay are {', '.join(map(repr, topics))}"
        )


def _between(bounds: TimeBounds, cluster: Cluster, logs: Logs) -> Ranges:
    since, until = bounds.instants()
    starts = cluster.offsets_at(list(logs), milliseconds(since))
    ends = cluster.offsets_at(list(logs), milliseconds(until)) if until is not None else {}
    ranges = []
    for tp, log in sorted(logs.items()):
        # No record that new means that the end is where such records will come; an open transaction's are not to be read.
        start = min(starts[tp].offset, log.end) if tp in starts else log.end
        end = min(ends[tp].offset, log.end) if tp in ends else log.end
        if start < end:
            ranges.append(OffsetRange(*tp, start, end, end, log.topic_id, "replay"))
    return tuple(ranges)


def _between_marks(ranges: Sequence[OffsetRange], low: int, high: int) -> Ranges:
    """What lies between two marks, where all ranges are one line."""
    pieces: list[OffsetRange] = []
    at = 0
    for one in ranges:
        start, end = one.start + max(low - at, 0), one.start + min(high - at, one.end - one.start)
        if start < end:
            pieces.append(
                replace(
                    one,
                    start=start,
                    end=end,
                    target=end,
                    leader_epoch=one.leader_epoch if start == one.start else None,
                )
            )
        at += one.end - one.start
    return tuple(pieces)
