"""The bounds of a replay: their classes; how they are resolved to offsets, checked against the logs, and split."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.core import log_identity
from airflow_kafka_offsets.core.instants import TimeSpan, instant, milliseconds
from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, PartitionLog, Span, TopicPartition
from airflow_kafka_offsets.core.options import Options, ruled
from airflow_kafka_offsets.core.parameters import FLAG, Rule, is_name, or_none, read_count
from airflow_kafka_offsets.core.planning import OnDataLoss, Plan
from airflow_kafka_offsets.core.templates import is_rendered_later
from airflow_kafka_offsets.core.text import MAX_INT64, count, first_few, is_unsigned, parse_unsigned
from airflow_kafka_offsets.exceptions import ConfigurationError, DataLossError

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.start_offsets import TimeSearch
    from airflow_kafka_offsets.ledger.batch_rows import Batch

log = logging.getLogger(__name__)

# After a range of time, that many offsets of each partition are looked at for records of the span.
_LOOK_AHEAD = 1_000

_SHAPES = '{"orders": {0: [10, 20]}}, or a list of {"topic": …, "partition": …, "start": …, "end": …}'

_INSTANT = Rule("an instant", lambda value: isinstance(value, datetime) or is_name(value))

_BATCH = Rule("the number of a batch", lambda value: is_unsigned(value) and value >= 1, read_count)

_RANGES = Rule(f"like {_SHAPES}", lambda value: isinstance(value, str | Mapping | Sequence))

Logs = Mapping[TopicPartition, PartitionLog]

Ranges = tuple[OffsetRange, ...]


@dataclass(frozen=True, repr=False)
class OffsetBounds(Options):
    """Ranges of offsets: start inclusive, end exclusive.

    :param ranges: `{"orders": {0: (10, 20)}}`, or a list of mappings with topic, partition, start, end and, optionally,
        the topic_id that the offsets belong to, such as `KafkaReplayPlanOperator` returns; either also as JSON text
        (templated)
    """

    ranges: Mapping[str, Mapping[Any, Any]] | Sequence[Mapping[str, Any]] | str = field(
        metadata=ruled(_RANGES, templated=True)
    )

    def read(self) -> Ranges:
        """Return the ranges by topic and partition.

        :raises ConfigurationError: they have another structure, name a partition twice, or are not offsets
        """
        try:
            given = json.loads(self.ranges) if isinstance(self.ranges, str) else self.ranges
            ranges = tuple(sorted(_parse(given), key=lambda range_: range_.topic_partition))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise ConfigurationError(
                f"OffsetBounds.ranges must be {_RANGES.expected}; got ranges={self.ranges!r}"
            ) from None
        for range_ in ranges:
            if not 0 <= range_.start <= range_.end:
                raise ConfigurationError(f"Offsets must not be negative or end before they start; got {range_}")
        if len({range_.topic_partition for range_ in ranges}) != len(ranges):
            raise ConfigurationError(f"Offsets must name each partition once; got {', '.join(map(str, ranges))}")
        return ranges


@dataclass(frozen=True, repr=False)
class TimeBounds(Options):
    """In every partition, from the first record at or after an instant up to the first record at or after another.

    Records are not ordered by their timestamps: all records between these two offsets are loaded. With `all_records`,
    exactly the records whose timestamps are within the span are loaded.

    :param since: inclusive; no zone means UTC, text is ISO 8601 (templated)
    :param until: exclusive; None, or an instant after all records, is the end of the log when the replay is planned
        (templated)
    :param all_records: read up to the end of the log (for the group's own table, up to the stored positions), and take
        the records within the span
    """

    since: str | datetime = field(metadata=ruled(_INSTANT, templated=True))
    until: str | datetime | None = field(default=None, metadata=ruled(or_none(_INSTANT), templated=True))
    all_records: bool = field(default=False, metadata=ruled(FLAG))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_rendered_later((self.since, self.until)):
            self.span()

    def span(self) -> TimeSpan:
        """Return both as instants.

        :raises ConfigurationError: one is not an instant, or `until` is not after `since`
        """
        since = instant("since", self.since)
        until = instant("until", self.until) if self.until is not None else None
        if until is not None and until <= since:
            raise ConfigurationError(f"until must be after since; got since={self.since!r}, until={self.until!r}")
        return TimeSpan(since, until)


@dataclass(frozen=True, repr=False)
class BatchBounds(Options):
    """The ranges of a batch in the group's history.

    :param batch_id: the id of the batch (templated)
    """

    batch_id: int = field(metadata=ruled(_BATCH, templated=True))


Bounds = OffsetBounds | TimeBounds | BatchBounds

BoundsGiven = Bounds | Mapping[str, Any] | Sequence[Any] | str
"""Bounds as users give them: a mapping, a list or a text is the `ranges` of `OffsetBounds`."""


BOUNDS = Rule(
    f"TimeBounds(…), BatchBounds(…), OffsetBounds(…), or offsets {_SHAPES}",
    lambda value: isinstance(value, Bounds | Mapping | Sequence),
)


def check_bounds(bounds: BoundsGiven, topics: Sequence[str]) -> Bounds:
    """Return bounds as one of the three classes, after the checks that need neither Kafka nor the database.

    :param topics: of the pipeline
    :raises ConfigurationError: the bounds are wrong; names the value received
    """
    if not isinstance(bounds, (OffsetBounds, TimeBounds, BatchBounds)):
        bounds = OffsetBounds(bounds)
    bounds.check()
    if isinstance(bounds, TimeBounds):
        bounds.span()
    if isinstance(bounds, OffsetBounds):
        _check_topics(bounds.read(), topics)
    return bounds


def describe_bounds(bounds: Bounds, topics: Sequence[str]) -> str:
    """Return the bounds as text for the history: equal bounds of two tries of a task give the same text."""
    if isinstance(bounds, OffsetBounds):
        return f"offsets {', '.join(map(str, bounds.read()))}"
    if isinstance(bounds, BatchBounds):
        return f"the ranges of batch {bounds.batch_id}"
    return f"{'all records of ' * bounds.all_records}{', '.join(sorted(topics))} {bounds.span()}"


def taken_span(bounds: Bounds) -> TimeSpan | None:
    """Return the span of time to which the records are limited; None for all records of the ranges."""
    return bounds.span() if isinstance(bounds, TimeBounds) and bounds.all_records else None


def resolve_bounds(
    bounds: Bounds,
    topics: Sequence[str],
    search: TimeSearch,
    batch: Callable[[int], Batch],
    positions: Mapping[TopicPartition, int] | None = None,
) -> tuple[Ranges, Logs]:
    """Return the ranges within bounds, and the logs of their topics.

    :param search: looks up instants in the cluster
    :param batch: returns a batch of the group's history
    :param positions: the positions of the group if it loads into the same table: its own load reads the offsets after
        them; None otherwise
    :return: ranges by topic and partition, none of them empty; the logs may lack some of the offsets
    :raises ConfigurationError: the ranges of the batch are of other topics than the pipeline's
    """
    cluster = search.cluster
    if isinstance(bounds, TimeBounds):
        logs = cluster.logs(topics)
        return _between(bounds, search, logs, positions), logs
    if isinstance(bounds, BatchBounds):
        loaded = batch(bounds.batch_id)
        if loaded.span is not None:
            raise ConfigurationError(
                f"Batch {bounds.batch_id} took the records {loaded.span}, and not all records of its ranges: replay "
                "that span with all_records instead"
            )
        ranges = tuple(replace(range_, target=range_.end) for range_ in loaded.ranges)
    else:
        ranges = bounds.read()
    ranges = tuple(range_ for range_ in ranges if len(range_))
    _check_topics(ranges, topics)
    # With a topic id, they were planned; others may be beyond the end.
    planned = {range_.topic_partition: range_.end for range_ in ranges if range_.topic_id is not None}
    logs = cluster.logs_of_partitions(range_.topic_partition for range_ in ranges)
    return ranges, cluster.extended(logs, planned)


def fit_to_logs(ranges: Iterable[OffsetRange], logs: Logs, on_data_loss: OnDataLoss) -> Plan:
    """Plan ranges of offsets that the logs have; offsets are left out only with `on_data_loss="skip"`.

    :return: a range for each given one; if all of its records are gone, it is empty, and a gap has its offsets
    :raises DataLossError: records are gone, and may not be skipped
    :raises TopicRecreatedError: the offsets belong to an earlier topic of the same name
    :raises LogTruncatedError: the offsets belong to a log that was truncated
    :raises ConfigurationError: there is no such partition, or its log ends before the range
    """
    ranges = tuple(ranges)
    log_identity.check_ranges([range_ for range_ in ranges if range_.topic_id is not None], logs)
    fitted: list[OffsetRange] = []
    gaps: list[Gap] = []
    wrong: list[str] = []
    lost: list[str] = []
    for range_ in ranges:
        tp, log = range_.topic_partition, logs.get(range_.topic_partition)
        if log is None or range_.end > log.end:
            why = "the topic has no such partition" if log is None else f"the log ends at offset {log.end}"
            wrong.append(f"{range_}: {why}")
            continue
        start = min(max(range_.start, log.beginning), range_.end)
        if start > range_.start:
            lost.append(f"{tp}: offsets {range_.start}..{start} are gone, the beginning offset is {log.beginning}")
            gaps.append(Gap(*tp, range_.start, start, "expired", "left out of a replay (on_data_loss='skip')"))
        cut = _with_bounds(range_, start, range_.end)
        fitted.append(replace(cut, topic_id=log.topic_id, how="replay", end_epoch=log.leader_epoch))
    if wrong:
        raise ConfigurationError(
            f"Offsets to replay are not in Kafka: {first_few(wrong, between='; ')}. Nothing was loaded."
        )
    if lost and on_data_loss == "fail":
        raise DataLossError(
            "Records to replay were deleted from the log (by retention, or by a user): "
            f"{first_few(lost, between='; ')}. Nothing was loaded. To replay the rest, set on_data_loss='skip': the "
            "gap is recorded in offset_gaps."
        )
    return Plan(tuple(fitted), tuple(gaps))


def plan_parts(ranges: Ranges, logs: Logs, most: int | None, on_data_loss: OnDataLoss) -> list[Plan]:
    """Plan ranges as batches of at most so many offsets; it raises what `fit_to_logs` raises."""
    # All ranges at once first, so that an error names every partition.
    fit_to_logs(ranges, logs, on_data_loss)
    parts = -(-sum(map(len, ranges)) // most) if most is not None else 1
    return [fit_to_logs(part, logs, on_data_loss) for part in cut_into_parts(ranges, parts)]


def requested_ranges(batch: Batch) -> Ranges:
    """Return the ranges that a batch of a replay was planned for, gaps included."""
    return tuple(replace(range_, start=batch.starts[range_.topic_partition]) for range_ in batch.ranges)


def cut_into_parts(ranges: Sequence[OffsetRange], parts: int) -> list[Ranges]:
    """Split ranges into parts of nearly equal numbers of offsets. Equal input gives equal parts.

    :param parts: the maximum number of parts, at least 1; no part is empty
    """
    total = sum(map(len, ranges))
    parts = min(parts, total)
    marks = [total * i // parts for i in range(parts + 1)] if parts else []
    return [_between_marks(ranges, low, high) for low, high in pairwise(marks)]


def bounds_as_json(ranges: Iterable[OffsetRange], logs: Logs) -> list[dict[str, Any]]:
    """Return ranges as plain data for `OffsetBounds`, with the ids of the topics that they belong to.

    :raises ConfigurationError: the topic of a range without an id has no such partition
    """
    ranges = tuple(ranges)
    missing = [range_ for range_ in ranges if range_.topic_id is None and range_.topic_partition not in logs]
    if missing:
        raise ConfigurationError(
            f"Offsets to replay are not in Kafka, because the topic has no such partition: {first_few(missing)}"
        )
    return [
        {name: getattr(range_, name) for name in ("topic", "partition", "start", "end")}
        | {"topic_id": range_.topic_id or logs[range_.topic_partition].topic_id}
        for range_ in ranges
    ]


def _parse(given: Any) -> Iterable[OffsetRange]:
    if isinstance(given, Mapping):
        for topic, partitions in given.items():
            for partition, (start, end) in partitions.items():
                yield _range(topic, partition, start, end)
    else:
        for item in given:
            yield _range(item["topic"], item["partition"], item["start"], item["end"], item.get("topic_id"))


def _range(topic: str, partition: Any, start: Any, end: Any, topic_id: str | None = None) -> OffsetRange:
    partition, start, end = map(_number, (partition, start, end))
    return OffsetRange(str(topic), partition, start, end, end, topic_id, "replay")


def _number(given: Any) -> int:
    """Return a number that a user gave, or a text of it; databases and JSON may give whole ones of other types.

    :raises ValueError: it is not whole, or no offset can be as high
    :raises OverflowError: it is infinite
    :raises TypeError: it is no number
    """
    if isinstance(given, str):
        return parse_unsigned(given.strip())
    number = int(given)
    if isinstance(given, bool) or number != given or number > MAX_INT64:
        raise ValueError(given)
    return number


def _check_topics(ranges: Iterable[OffsetRange], topics: Sequence[str]) -> None:
    others = sorted({range_.topic for range_ in ranges} - set(topics))
    if others:
        raise ConfigurationError(
            f"The bounds name topic {', '.join(map(repr, others))}; the topics of this replay are "
            f"{', '.join(map(repr, topics))}"
        )


def _between(
    bounds: TimeBounds, search: TimeSearch, logs: Logs, positions: Mapping[TopicPartition, int] | None
) -> Ranges:
    since, until = bounds.span()
    first = search.first_records(dict.fromkeys(logs, milliseconds(since)))
    # Where no record is that new, the next one will be at the end. Records of open transactions are not read.
    ends = {tp: log.end for tp, log in logs.items()}
    starts = {tp: min(first[tp].offset, end) if tp in first else end for tp, end in ends.items()}
    if bounds.all_records:
        if positions is not None:
            ends = {tp: min(end, positions.get(tp, 0)) for tp, end in ends.items()}
    elif until is not None:
        # What is not older than one instant does not lie before what is not older than an earlier one.
        later = search.first_records(dict.fromkeys(first, milliseconds(until)), starts)
        ends |= {tp: min(record.offset, ends[tp]) for tp, record in later.items()}
        _warn_of_records_after(search, since, until, {tp: (end, logs[tp].end) for tp, end in ends.items()})
    return tuple(_range(*tp, starts[tp], ends[tp], logs[tp].topic_id) for tp in sorted(logs) if starts[tp] < ends[tp])


def _warn_of_records_after(
    search: TimeSearch, since: datetime, until: datetime, rest: Mapping[TopicPartition, Span]
) -> None:
    """Log how many records of a span are shortly after its ranges, because timestamps are out of order.

    :param rest: the offsets after each range
    """
    looked_at = {tp: (start, min(start + _LOOK_AHEAD, end)) for tp, (start, end) in rest.items() if start < end}
    counts = search.count_within(milliseconds(since), milliseconds(until), looked_at)
    if left_out := {tp: found for tp, found in sorted(counts.items()) if found}:
        log.warning(
            "Timestamps are out of order: %s of the span from %s to %s are not replayed, because they are after the "
            "first record that is not older. Searched: %s. all_records=True replays exactly the records of the span",
            count(sum(left_out.values()), "record"),
            since.isoformat(),
            until.isoformat(),
            first_few(
                f"{found:,} in {tp} {start}..{end}" for tp, found in left_out.items() for start, end in [looked_at[tp]]
            ),
        )


def _between_marks(ranges: Sequence[OffsetRange], low: int, high: int) -> Ranges:
    """Return the offsets between two marks, which count the offsets of all ranges one after another."""
    pieces: list[OffsetRange] = []
    mark = 0
    for range_ in ranges:
        start, end = range_.start + max(low - mark, 0), range_.start + min(high - mark, len(range_))
        if start < end:
            pieces.append(_with_bounds(range_, start, end))
        mark += len(range_)
    return tuple(pieces)


def _with_bounds(range_: OffsetRange, start: int, end: int) -> OffsetRange:
    epoch = range_.leader_epoch if start == range_.start else None
    return replace(range_, start=start, end=end, target=end, leader_epoch=epoch)
