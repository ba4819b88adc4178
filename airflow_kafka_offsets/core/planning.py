"""Which offsets a batch loads: a pure decision from stored positions and log ends. No I/O.

The rules are those of `docs/semantics.md`; the case ids in tests (P08, P19, …) refer to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from airflow_kafka_offsets.core import log_identity
from airflow_kafka_offsets.core.caps import cap, most_offsets
from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.exceptions import DataLossError, NoPositionError

OnDataLoss = Literal["fail", "skip"]


class First(NamedTuple):
    """Where a partition begins that the group has no position of, and how that was found.

    :param timestamp_ms: of the record there, in milliseconds since 1970; None where it is not known
    """

    offset: int
    how: str
    timestamp_ms: int | None = None


Start = Literal["earliest", "latest", "none"] | Mapping[TopicPartition, First]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a batch will do.

    :param ranges: the ranges to load, by topic and partition; a partition with lag whose share of the cap is nothing
        has an empty range, so that its target is remembered
    :param gaps: offsets that are skipped by the user's choice
    :param initial: positions to store without loading anything: of partitions that begin at the end of their log
    """

    ranges: tuple[OffsetRange, ...] = ()
    gaps: tuple[Gap, ...] = ()
    initial: tuple[OffsetRange, ...] = ()

    @property
    def offsets(self) -> int:
        """How many offsets are planned: an upper bound of the number of records."""
        return sum(map(len, self.ranges))


def decide(
    positions: Mapping[TopicPartition, Position],
    logs: Mapping[TopicPartition, PartitionLog],
    *,
    start: Start = "earliest",
    on_data_loss: OnDataLoss = "fail",
    max_records: int | None = None,
    max_bytes: int | None = None,
    bytes_per_offset: Mapping[str, float] | None = None,
    targets: Mapping[TopicPartition, int] | None = None,
) -> Plan:
    """Decide the ranges of the next batch.

    :param positions: the stored positions of the group, read before the log ends
    :param logs: the log ends of every partition of every topic of the pipeline
    :param start: where a topic begins that the group has no position of: at the ends of its log, nowhere, or at offsets
        that were found for each of its partitions
    :param on_data_loss: fail, or skip to the beginning offset and record the gap
    :param max_records: the most offsets the batch may span, shared in proportion to lag
    :param max_bytes: the most bytes of keys and values, estimated
    :param bytes_per_offset: by topic, for that estimate
    :param targets: the offsets up to which to load; captured by an earlier batch of the same task instance, or a bound in time. Partitions
        that are not in it are not loaded by this task instance. None is the ends of the logs
    :raises PlanningError: where positions and log do not fit together; every partition concerned is named
    """
    topics = {tp.topic for tp in logs}
    known_topics = {tp.topic for tp in positions}
    unknown_topics = sorted(topics - known_topics)
    if start == "none" and unknown_topics:
        raise NoPositionError(
            f"Nothing is stored of topic {', '.join(map(repr, unknown_topics))}, and start='none' forbids to choose where to "
            "begin. Set start='earliest', start='latest' or a timestamp for the first run."
        )
    first = {tp: first_offset(tp, log, start, known_topics) for tp, log in logs.items()}
    begun = {tp: Position(one.offset, logs[tp].topic_id) for tp, one in first.items()}
    log_identity.check_positions(begun | dict(positions), logs, topics)
    ranges: list[OffsetRange] = []
    initial: list[OffsetRange] = []
    gaps: list[Gap] = []
    for tp, log in sorted(logs.items()):
        position, how = (positions[tp], "stored") if tp in positions else (begun[tp], first[tp].how)
        offset = position.offset
        if offset < log.beginning:
            gaps.append(
                Gap(*tp, offset, log.beginning, "expired", "skipped to the beginning offset (on_data_loss='skip')")
            )
            offset, how = log.beginning, "skipped-gap" if tp in positions else how
        target = _target(tp, offset, log, targets)
        one = OffsetRange(
            *tp,
            offset,
            target,
            target,
            log.topic_id,
            how,
            # Behind a gap, no leader has told that its log reached the start.
            position.leader_epoch if offset == position.offset else None,
            # Sound for every position up to the log's end: that epoch ends before it only if the log was cut before it.
            log.leader_epoch,
        )
        # A gap without a range would move no position: the partition gets an empty range that carries it.
        if len(one) or offset != position.offset:
            ranges.append(one)
        elif tp not in positions:
            # Stored although nothing is loaded: without a position, retention could take what comes next unnoticed.
            initial.append(one)
    if gaps and on_data_loss == "fail":
        raise DataLossError(data_loss_message(gaps))
    most = most_offsets(ranges, max_records, max_bytes, bytes_per_offset or {})
    return Plan(tuple(cap(ranges, most)), tuple(gaps), tuple(initial))


def check_open(
    ranges: Sequence[OffsetRange], logs: Mapping[TopicPartition, PartitionLog], on_data_loss: OnDataLoss
) -> bool:
    """Whether ranges that were planned earlier can still be read as they were planned.

    :param ranges: of the open batch
    :param logs: the log ends of now
    :return: False where their starts are gone from the log, and the user chose to skip what is gone
    :raises PlanningError: where the topic is another one now, or the log ends before a range, or as `on_data_loss` says
    """
    log_identity.check_ranges(ranges, logs)
    gaps = [
        Gap(*one.topic_partition, one.start, logs[one.topic_partition].beginning, "expired", "")
        for one in ranges
        if one.start < logs[one.topic_partition].beginning and len(one)
    ]
    if gaps and on_data_loss == "fail":
        raise DataLossError(data_loss_message(gaps))
    return not gaps


def data_loss_message(gaps: Sequence[Gap]) -> str:
    """What is lost, partition by partition, and the way out."""
    lost = "; ".join(
        f"{gap.topic}[{gap.partition}]: position {gap.start}, beginning offset {gap.end}, "
        f"{gap.end - gap.start} offsets gone"
        for gap in gaps
    )
    return (
        f"Records that were never loaded are gone from the log (retention, or deleted records): {lost}. "
        "Nothing was loaded. To go on without them, set on_data_loss='skip': the gap is recorded in offset_gaps."
    )


def first_offset(tp: TopicPartition, log: PartitionLog, start: Start, known_topics: Collection[str]) -> First:
    """Return where a partition begins that has no position.

    :param start: where a topic without a position begins; `none` is taken for `earliest`, and refused by `decide`
    :param known_topics: topics that have positions
    """
    if tp.topic in known_topics:
        # The topic got more partitions. Their first records were written before anybody could know of them, so that
        # starting at the end would lose them, whatever `start` says (P14).
        return First(log.beginning, "new-partition")
    if isinstance(start, Mapping):
        return start[tp]
    return First(log.end if start == "latest" else log.beginning, start)


def _target(tp: TopicPartition, start: int, log: PartitionLog, targets: Mapping[TopicPartition, int] | None) -> int:
    """Return the offset up to which this task instance loads a partition.

    :param start: the position: a target before it belongs to a run that came late, and there is nothing to load
    """
    wanted = log.end if targets is None else targets.get(tp, start)
    return max(start, min(wanted, log.end))
