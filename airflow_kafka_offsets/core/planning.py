"""The offsets that a batch of a load has. `decide` is the only place where they are decided, from stored positions and
the ends of the logs. The ranges of a replay are what its user asked for (`replaying.bounds`).

It does no I/O: `loading.plan` reads the positions and the ends, and writes the plan. The numbers of rules, here and in
comments, are those of the section "Planning" in `docs/semantics.md`; so are the ids of cases in tests (P08, P19, …).

* Rule 4: a range ends at the planned end, which becomes the position.
* Rules 5 and 6: where a partition without a position begins.
* Rule 7: offsets that are gone from the log are an error or a gap.
* Rule 8: positions must belong to the log (`core.log_identity`).
* Rule 9: a number of offsets and of bytes limits a batch (`cap`).
* Rule 11: `until` limits it too; `kafka.start_offsets` turns the instant into the `targets` of `decide`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Literal, NamedTuple

from airflow_kafka_offsets.core import log_identity
from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.escaping import command_line
from airflow_kafka_offsets.exceptions import DataLossError, NoPositionError

OnDataLoss = Literal["fail", "skip"]

UNKNOWN_RECORD_BYTES = 1024.0
"""Assumed size of a record of a topic of which no batch was loaded yet."""


LONG_OPEN = timedelta(minutes=15)
"""How long a position waits for an open transaction until this is told: by default no producer may ask for more."""


class First(NamedTuple):
    """Where a partition without a position begins, and how that was decided.

    :param timestamp_ms: timestamp of the record there, in milliseconds since 1970; None if it is not known
    """

    offset: int
    how: str
    timestamp_ms: int | None = None


Start = Literal["earliest", "latest", "none"] | Mapping[TopicPartition, First]


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch that is decided, and not written yet.

    :param ranges: the ranges to load, by topic and partition; a partition with lag whose share of the cap is 0
        has an empty range, so that its target is stored
    :param gaps: offsets that are skipped because the user chose so
    :param initial: positions to store without loading anything: those of partitions without a position of which nothing
        is to be loaded now
    :param logs: as they were reported, where the plan is for now
    """

    ranges: tuple[OffsetRange, ...] = ()
    gaps: tuple[Gap, ...] = ()
    initial: tuple[OffsetRange, ...] = ()
    logs: Mapping[TopicPartition, PartitionLog] = field(default_factory=dict, compare=False, repr=False)


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
    group_id: str = "GROUP",
) -> Plan:
    """Decide the ranges of the next batch.

    :param positions: the stored positions of the group, read before the ends of the logs
    :param logs: the log of every partition of every topic of the pipeline
    :param start: where a topic without a position begins: at an end of its log, nowhere, or at an offset for each
        partition
    :param on_data_loss: fail, or skip to the beginning offset and record the gap
    :param max_records: the most offsets the batch may span, shared in proportion to lag
    :param max_bytes: the most bytes of keys and values, estimated
    :param bytes_per_offset: by topic, for that estimate
    :param targets: the offsets up to which to load: those that an earlier batch of the same task instance stored, or
        those of `until`. Partitions without one are not loaded. None means the ends of the logs
    :param group_id: for messages
    :raises PlanningError: positions and logs do not fit together; the message names every partition concerned
    """
    topics = {tp.topic for tp in logs}
    known_topics = {tp.topic for tp in positions}
    if start == "none" and topics - known_topics:
        raise NoPositionError(
            f"There is no stored position of topic {', '.join(map(repr, sorted(topics - known_topics)))}, and "
            "start='none' does not provide one. Set start='earliest', start='latest' or a timestamp for the first "
            "run."
        )
    # Rules 5 and 6.
    first = {tp: first_offset(tp, log, start, known_topics) for tp, log in logs.items()}
    begins = {tp: Position(begin.offset, logs[tp].topic_id) for tp, begin in first.items()} | dict(positions)
    # Rule 8.
    log_identity.check_positions(begins, logs, topics)
    ranges: list[OffsetRange] = []
    initial: list[OffsetRange] = []
    gaps: list[Gap] = []
    for tp, log in sorted(logs.items()):
        is_known, offset = tp in positions, begins[tp].offset
        range_ = _range_from(tp, begins[tp], log, "stored" if is_known else first[tp].how, is_known, targets)
        has_gap = range_.start != offset
        if has_gap:
            decision = "skipped to the beginning offset (on_data_loss='skip')"
            gaps.append(Gap(*tp, offset, range_.start, "expired", decision))
        # A gap without a range would move no position: the partition gets an empty range.
        if len(range_) or has_gap:
            ranges.append(range_)
        elif not is_known:
            # Rule 5: stored although nothing is loaded. Without a position, the loss of the next records would not be
            # noticed.
            initial.append(range_)
    _raise_if_lost(gaps, on_data_loss, group_id)
    # Rule 9.
    most = most_offsets(ranges, max_records, max_bytes, bytes_per_offset or {})
    return Plan(tuple(cap(ranges, most)), tuple(gaps), tuple(initial))


def _range_from(
    tp: TopicPartition,
    begin: Position,
    log: PartitionLog,
    how: str,
    is_known: bool,
    targets: Mapping[TopicPartition, int] | None,
) -> OffsetRange:
    """Return the range of a partition up to its target; it may be empty.

    :param begin: the position, or where the partition begins without one
    :param how: how that was decided
    :param is_known: whether it is a stored position
    """
    has_gap = begin.offset < log.beginning
    # Rule 7.
    start = max(begin.offset, log.beginning)
    # Rule 11. Where the target lies before the position, another run has loaded the records, and nothing is left.
    wanted = log.end if targets is None else targets.get(tp, start)
    target = max(start, min(wanted, log.end))
    # Rule 4: the range ends at the target, whether or not a record is there.
    return OffsetRange(
        *tp,
        start,
        target,
        target,
        log.topic_id,
        "skipped-gap" if has_gap and is_known else how,
        # After a gap, no leader has reported that its log reached the start.
        None if has_gap else begin.leader_epoch,
        # Valid for every position up to the log's end: the epoch ends before it only if the log was truncated
        # before it.
        log.leader_epoch,
    )


def can_still_be_read(
    ranges: Sequence[OffsetRange],
    logs: Mapping[TopicPartition, PartitionLog],
    on_data_loss: OnDataLoss,
    group_id: str = "GROUP",
) -> bool:
    """Return whether the ranges of an open batch can still be read as they were planned (rules 7 and 8).

    :param ranges: those of the open batch
    :param logs: the logs as they are now
    :return: False if the start of a range is gone from the log, and the user chose to skip lost offsets
    :raises PlanningError: the topic was recreated, a log ends before a range, or offsets are lost and
        `on_data_loss` is `fail`
    """
    log_identity.check_ranges(ranges, logs)
    gaps = [
        Gap(*range_.topic_partition, range_.start, logs[range_.topic_partition].beginning, "expired", "")
        for range_ in ranges
        if range_.start < logs[range_.topic_partition].beginning and len(range_)
    ]
    _raise_if_lost(gaps, on_data_loss, group_id)
    return not gaps


def first_offset(tp: TopicPartition, log: PartitionLog, start: Start, known_topics: Collection[str]) -> First:
    """Return where a partition begins that has no position.

    :param start: where a topic without a position begins; `none` is taken for `earliest`, and refused by `decide`
    :param known_topics: topics that have positions
    """
    if tp.topic in known_topics:
        # The topic got more partitions. Their first records were written before anybody could know of them, so that
        # starting at the end would lose them, whatever `start` says (rule 6, P14).
        return First(log.beginning, "new-partition")
    if isinstance(start, Mapping):
        return start[tp]
    return First(log.end if start == "latest" else log.beginning, start)


def _raise_if_lost(gaps: Sequence[Gap], on_data_loss: OnDataLoss, group_id: str) -> None:
    """
    :raises DataLossError: naming the lost offsets, partition by partition, and what to do
    """
    if gaps and on_data_loss == "fail":
        lost = "; ".join(
            f"{gap.topic_partition}: position {gap.start}, beginning offset {gap.end}, {gap.end - gap.start} offsets "
            "gone"
            for gap in gaps
        )
        raise DataLossError(
            f"Records were deleted from the log before they were loaded (by retention, or by a user): {lost}. Nothing "
            f"was loaded. To continue without them, run '{command_line('rewind', group_id)} --shift-by 0', or set "
            "on_data_loss='skip' (of a command: --on-data-loss skip), also for a group without positions: the gap is "
            "recorded in offset_gaps."
        )


def cap(ranges: Sequence[OffsetRange], most: int | None) -> list[OffsetRange]:
    """Shorten ranges so that together they move the positions by no more than `most` offsets; None leaves them.

    A partition with lag whose share is 0 keeps an empty range, so that its target is stored.
    """
    if most is None:
        return list(ranges)
    shares = share(list(map(len, ranges)), most)
    return [replace(range_, end=range_.start + size) for range_, size in zip(ranges, shares, strict=True)]


def most_offsets(
    ranges: Sequence[OffsetRange], max_records: int | None, max_bytes: int | None, bytes_per_offset: Mapping[str, float]
) -> int | None:
    """Return the most offsets of one batch by both limits; None without a limit.

    :param bytes_per_offset: by topic, measured in the last batches
    """
    if max_bytes is None:
        return max_records
    offsets = sum(map(len, ranges))
    expected = sum(len(range_) * (bytes_per_offset.get(range_.topic) or UNKNOWN_RECORD_BYTES) for range_ in ranges)
    if expected <= max_bytes:
        return max_records
    # Shares are in proportion to lag: the mean size of a record in a batch is that in the whole backlog.
    by_bytes = max(1, int(max_bytes / (expected / offsets)))
    return by_bytes if max_records is None else min(max_records, by_bytes)


def share(lags: Sequence[int], most: int) -> list[int]:
    """Share `most` offsets over partitions in proportion to their lag (P19).

    Every partition with lag gets at least one while the cap lasts, so that a small partition next to a huge one moves
    in every batch. The sum is exactly min(most, sum of lags), and the same input gives the same answer.
    """
    total = sum(lags)
    if total <= most:
        return list(lags)
    waiting = [i for i, lag in enumerate(lags) if lag > 0]
    shares = [0] * len(lags)
    if len(waiting) >= most:
        for i in sorted(waiting, key=lambda i: (-lags[i], i))[:most]:
            shares[i] = 1
        return shares
    spare = most - len(waiting)
    rest = total - len(waiting)
    remainders: dict[int, int] = {}
    for i in waiting:
        extra, remainders[i] = divmod(spare * (lags[i] - 1), rest)
        shares[i] = 1 + extra
    left = most - sum(shares)
    for i in sorted(waiting, key=lambda i: (-remainders[i], i))[:left]:
        shares[i] += 1
    return shares
