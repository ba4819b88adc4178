"""Which offsets a batch loads: a pure decision from stored positions and log ends. No I/O.

The rules are those of `docs/semantics.md`; the case ids in tests (P08, P19, …) refer to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    DataLossError,
    LogTruncatedError,
    NoPositionError,
    TopicRecreatedError,
)
from airflow_kafka_offsets.offsets import Gap, OffsetRange, PartitionLog, Position, TopicPartition

Start = Literal["earliest", "latest", "none"]
OnDataLoss = Literal["fail", "skip"]


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


def check_options(start: str, on_data_loss: str, max_records: int | None) -> None:
    """Refuse options that no plan can be made of.

    :raises ConfigurationError: with the value received and the values that are known
    """
    if start not in get_args(Start):
        raise ConfigurationError(f"start must be one of {', '.join(get_args(Start))}; got start={start!r}")
    if on_data_loss not in get_args(OnDataLoss):
        raise ConfigurationError(
            f"on_data_loss must be one of {', '.join(get_args(OnDataLoss))}; got on_data_loss={on_data_loss!r}"
        )
    if max_records is not None and max_records < 1:
        raise ConfigurationError(f"max_records must be at least 1, or None for no limit; got max_records={max_records}")


def decide(
    positions: Mapping[TopicPartition, Position],
    logs: Mapping[TopicPartition, PartitionLog],
    *,
    start: Start = "earliest",
    on_data_loss: OnDataLoss = "fail",
    max_records: int | None = None,
    targets: Mapping[TopicPartition, int] | None = None,
) -> Plan:
    """Decide the ranges of the next batch.

    :param positions: the stored positions of the group, read before the log ends
    :param logs: the log ends of every partition of every topic of the pipeline
    :param start: where a topic begins that the group has no position of
    :param on_data_loss: fail, or skip to the beginning offset and record the gap
    :param max_records: the most offsets the batch may span, shared in proportion to lag
    :param targets: ends captured by an earlier batch of the same task instance; partitions that are not in it are not
        loaded by this task instance
    :raises PlanningError: where positions and log do not fit together; every partition concerned is named
    """
    topics = {tp.topic for tp in logs}
    _check_identity(positions, logs, topics)
    known_topics = {tp.topic for tp in positions}
    unknown_topics = sorted(topics - known_topics)
    if start == "none" and unknown_topics:
        raise NoPositionError(
            f"Nothing is stored of topic {', '.join(map(repr, unknown_topics))}, and start='none' forbids to choose where to "
            "begin. Set start='earliest' or start='latest' for the first run."
        )
    ranges: list[OffsetRange] = []
    initial: list[OffsetRange] = []
    gaps: list[Gap] = []
    for tp, log in sorted(logs.items()):
        offset, how = _start(positions.get(tp), log, start, tp.topic in known_topics)
        if offset < log.beginning:
            gaps.append(
                Gap(*tp, offset, log.beginning, "expired", "skipped to the beginning offset (on_data_loss='skip')")
            )
            offset, how = log.beginning, "skipped-gap"
        target = log.end if targets is None else min(targets.get(tp, offset), log.end)
        if target > offset:
            ranges.append(OffsetRange(*tp, offset, target, target, log.topic_id, how))
        elif tp not in positions:
            # Stored although nothing is loaded: without a position, retention could take what comes next unnoticed.
            initial.append(OffsetRange(*tp, offset, offset, offset, log.topic_id, how))
    if gaps and on_data_loss == "fail":
        raise DataLossError(_data_loss_message(gaps))
    # A gap without a range would move no position: the partition gets an empty range that carries it.
    planned = {one.topic_partition for one in ranges}
    for gap in gaps:
        tp = TopicPartition(gap.topic, gap.partition)
        if tp not in planned:
            ranges.append(OffsetRange(*tp, gap.end, gap.end, gap.end, logs[tp].topic_id, "skipped-gap"))
    ranges.sort(key=lambda one: one.topic_partition)
    return Plan(tuple(_cap(ranges, max_records)), tuple(gaps), tuple(initial))


def check_open(
    ranges: Sequence[OffsetRange], logs: Mapping[TopicPartition, PartitionLog], on_data_loss: OnDataLoss
) -> bool:
    """Whether ranges that were planned earlier can still be read as they were planned.

    :param ranges: of the open batch
    :param logs: the log ends of now
    :return: False where their starts are gone from the log, and the user chose to skip what is gone
    :raises PlanningError: where the topic is another one now, or the log ends before a range, or as `on_data_loss` says
    """
    check_identity(ranges, logs)
    gaps = [
        Gap(*one.topic_partition, one.start, logs[one.topic_partition].beginning, "expired", "")
        for one in ranges
        if one.start < logs[one.topic_partition].beginning and len(one)
    ]
    if gaps and on_data_loss == "fail":
        raise DataLossError(_data_loss_message(gaps))
    return not gaps


def check_identity(ranges: Sequence[OffsetRange], logs: Mapping[TopicPartition, PartitionLog]) -> None:
    """Make sure that the logs are still those that the ranges were planned from.

    :raises PlanningError: a topic is another one, or its log ends before a range
    """
    ends = {one.topic_partition: Position(one.end, one.topic_id) for one in ranges}
    _check_identity(ends, logs, {one.topic for one in ranges})


def share(lags: Sequence[int], cap: int) -> list[int]:
    """Share `cap` offsets over partitions in proportion to their lag (P19).

    Every partition with lag gets at least one while the cap lasts, so that a small partition next to a huge one moves
    in every batch. The sum is exactly min(cap, sum of lags), and the same input gives the same answer.
    """
    total = sum(lags)
    if total <= cap:
        return list(lags)
    waiting = [i for i, lag in enumerate(lags) if lag > 0]
    shares = [0] * len(lags)
    if len(waiting) >= cap:
        for i in sorted(waiting, key=lambda i: (-lags[i], i))[:cap]:
            shares[i] = 1
        return shares
    spare = cap - len(waiting)
    rest = total - len(waiting)
    remainders: dict[int, int] = {}
    for i in waiting:
        extra, remainders[i] = divmod(spare * (lags[i] - 1), rest)
        shares[i] = 1 + extra
    left = cap - sum(shares)
    for i in sorted(waiting, key=lambda i: (-remainders[i], i))[:left]:
        shares[i] += 1
    return shares


def _start(position: Position | None, log: PartitionLog, start: Start, topic_is_known: bool) -> tuple[int, str]:
    if position is not None:
        return position.offset, "stored"
    if topic_is_known:
        # The topic got more partitions. Their first records were written before anybody could know of them, so that
        # starting at the end would lose them, whatever `start` says (P14).
        return log.beginning, "new-partition"
    if start == "earliest":
        return log.beginning, "earliest"
    return log.end, "latest"


def _check_identity(
    positions: Mapping[TopicPartition, Position], logs: Mapping[TopicPartition, PartitionLog], topics: Collection[str]
) -> None:
    recreated: list[str] = []
    truncated: list[str] = []
    for tp, position in sorted(positions.items()):
        if tp.topic not in topics:
            continue
        log = logs.get(tp)
        if log is None:
            recreated.append(f"{tp}: position {position.offset} is stored, but the topic has no such partition now")
        elif position.topic_id and log.topic_id and position.topic_id != log.topic_id:
            recreated.append(
                f"{tp}: position {position.offset} belongs to topic id {position.topic_id}, "
                f"the topic has id {log.topic_id} and offsets {log.beginning}..{log.end} now"
            )
        elif position.offset > log.end:
            truncated.append(f"{tp}: position {position.offset} is beyond the end offset {log.end}")
    if recreated:
        raise TopicRecreatedError(
            "A topic was deleted and created again, so that the stored positions mean nothing in it: "
            + "; ".join(recreated)
            + ". Load the new topic under a new group_id, or delete the positions of this topic on purpose."
        )
    if truncated:
        raise LogTruncatedError(
            "The log ends before the stored position (unclean leader election, or a restored cluster): "
            + "; ".join(truncated)
            + ". Find out which records were lost; then set the position to the end offset on purpose, or use a new "
            "group_id to load from the beginning."
        )


def _data_loss_message(gaps: Sequence[Gap]) -> str:
    lost = "; ".join(
        f"{gap.topic}[{gap.partition}]: position {gap.start}, beginning offset {gap.end}, "
        f"{gap.end - gap.start} offsets gone"
        for gap in gaps
    )
    return (
        f"Records that were never loaded are gone from the log (retention, or deleted records): {lost}. "
        "Nothing was loaded. To go on without them, set on_data_loss='skip': the gap is recorded in offset_gaps."
    )


def _cap(ranges: list[OffsetRange], max_records: int | None) -> list[OffsetRange]:
    if max_records is None:
        return ranges
    shares = share([len(one) for one in ranges], max_records)
    return [replace(one, end=one.start + size) for one, size in zip(ranges, shares, strict=True)]
