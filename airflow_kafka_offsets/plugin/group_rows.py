"""Groups as rows of the page: what needs attention, and in which order. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.lag.report import LagReport, PartitionLag
from airflow_kafka_offsets.ledger.overview import GroupSummary
from airflow_kafka_offsets.plugin.problems import Problem
from airflow_kafka_offsets.plugin.sources import Source

CRITICAL_SHARE, WARNING_SHARE = 0.1, 0.25
"""Shares of the retention that are left to the oldest unread record, below which a group needs attention."""


class Level(IntEnum):
    """How much attention a group needs; the most first."""

    CRITICAL = 0
    WARNING = 1
    NOTICE = 2
    OK = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A row of the table of groups.

    :param report: None while the lag is not known
    :param lag_problem: why it is not
    :param share: of the retention that is left to the oldest unread record; None where it is not known
    :param reasons: why the group needs attention
    """

    source: Source
    group: GroupSummary
    report: LagReport | None
    lag_problem: Problem | None
    share: float | None
    level: Level
    reasons: tuple[str, ...]

    @property
    def order(self) -> tuple[object, ...]:
        """Return what rows are sorted by: the level, the headroom, the delay, the lag, the name."""
        delay = self.report.delay if self.report is not None else None
        return (
            self.level,
            self.share if self.share is not None else 1.0,
            -(delay or timedelta(0)),
            -((self.report.lag or 0) if self.report is not None else 0),
            self.group.group_id,
            *self.source.order(),
        )


def group_row(source: Source, group: GroupSummary, lag: LagReport | Problem | None) -> GroupRow:
    """Return the row of a group.

    :param lag: None while it is not known
    """
    report = lag if isinstance(lag, LagReport) else None
    lag_problem = lag if isinstance(lag, Problem) else None
    share = headroom_share(report.partitions) if report is not None else None
    found = sorted(_attention(group, report, share), key=lambda reason: reason[0])
    if lag_problem is not None:
        found.append((Level.WARNING, "lag unknown"))
    level = min((level for level, _ in found), default=Level.OK)
    return GroupRow(source, group, report, lag_problem, share, level, tuple(reason for _, reason in found))


def headroom_share(partitions: Iterable[PartitionLag]) -> float | None:
    """Return the smallest share of the retention that is left to an oldest unread record; 0 if records are lost.

    Retention is its age and the time until it is deleted. None where no time is known; 1 where nothing is unread.
    """
    partitions = list(partitions)
    unread = [partition for partition in partitions if partition.lag != 0 or partition.lost]
    # Partitions without unread records say nothing of the others, whose times may not be known.
    shares = [share for partition in unread or partitions if (share := partition_share(partition)) is not None]
    return min(shares, default=None)


def partition_share(partition: PartitionLag) -> float | None:
    """Return the share of a partition; see `headroom_share`."""
    if partition.lost:
        return 0.0
    if partition.lag == 0:
        return 1.0
    if partition.headroom_time is None or partition.delay is None:
        return None
    retention = partition.headroom_time + partition.delay
    return partition.headroom_time / retention if retention else 0.0


def share_level(share: float | None) -> Level:
    """Return the level of a share of headroom."""
    if share is None or share >= WARNING_SHARE:
        return Level.OK
    return Level.CRITICAL if share < CRITICAL_SHARE else Level.WARNING


def _attention(group: GroupSummary, report: LagReport | None, share: float | None) -> Iterable[tuple[Level, str]]:
    if report is not None:
        if report.lost:
            yield Level.CRITICAL, f"{count(report.lost, 'offset')} lost to retention"
        elif (level := share_level(share)) is not Level.OK:
            yield level, "records will soon be deleted by retention"
        if report.errors:
            yield Level.CRITICAL, f"{count(len(report.errors), 'partition')} with an error"
    is_held = group.held_by is not None
    if group.open is not None and not is_held:
        yield Level.WARNING, f"batch {group.open.batch_id} is open, and no run holds the group"
    elif group.open is not None and group.open.attempt > 1:
        yield Level.NOTICE, f"attempt {group.open.attempt} of batch {group.open.batch_id}"
    if group.between and not is_held:
        yield Level.WARNING, "the target may differ from the state tables until the next run"
    if group.last is not None and group.last.dead_letters:
        yield Level.NOTICE, f"{count(group.last.dead_letters, 'dead letter')} in the last batch"
