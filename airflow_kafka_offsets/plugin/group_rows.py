"""Groups as rows of the page: what needs attention, and in which order. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum

from airflow_kafka_offsets.core.history import RENAMED
from airflow_kafka_offsets.core.text import count, short_duration, shortened
from airflow_kafka_offsets.lag.report import LagReport, PartitionLag
from airflow_kafka_offsets.ledger.overview import GroupSummary
from airflow_kafka_offsets.plugin.problems import Problem
from airflow_kafka_offsets.plugin.sources import Schedule, Source

CRITICAL_SHARE, WARNING_SHARE = 0.1, 0.25
"""Shares of the retention that are left to the oldest unread record, below which a group needs attention."""


_GRACE = timedelta(minutes=5)
"""How long a run may take to start and to commit."""

NO_SCHEDULE = timedelta(days=1)
"""How long a group without a schedule may leave records unread before it is taken for stopped."""


class Level(IntEnum):
    """How much attention a group needs; the most first."""

    CRITICAL = 0
    WARNING = 1
    NOTICE = 2
    OK = 3

    @property
    def word(self) -> str:
        return self.name.lower()


STATES = ("error", "stopped", "stalled", "unknown", "lagging", "ok", "empty")
"""The states of groups, as Burrow has them, the most urgent first:

* error: a partition has an error, or records are lost
* stopped: records are unread, and no run has committed for longer than the schedule of the group's DAGs; or a DAG names
  a group that was deleted or renamed
* stalled: a batch is open, and no run works on it
* unknown: the lag is not known, or not yet
* lagging: the oldest unread record waits for more than two intervals of the schedule, or will soon be deleted
* ok: all others
* empty: there are no positions
"""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A row of the table of groups.

    :param report: None while the lag is not known
    :param lag_problem: why it is not
    :param kafka: the connection that the lag, or the problem, is from
    :param lag_age: seconds since the lag was measured
    :param share: of the retention that is left to the oldest unread record; None where it is not known
    :param state: one of `STATES`
    :param reasons: why the group needs attention
    :param errors: why partitions have an error
    """

    source: Source
    group: GroupSummary
    schedules: Sequence[Schedule]
    report: LagReport | None
    lag_problem: Problem | None
    kafka: str | None
    lag_age: float | None
    share: float | None
    state: str
    level: Level
    reasons: tuple[str, ...]
    errors: tuple[Problem, ...]

    @property
    def lag(self) -> int | None:
        """Return the lag of the partitions of which it is known; None where it is known of none."""
        return self.report.lag if self.report is not None else None

    @property
    def is_complete(self) -> bool:
        """Return whether the lag is known of all partitions."""
        return self.group.partitions == 0 or (self.report is not None and self.report.complete)

    @property
    def is_loaded(self) -> bool:
        """Return whether nothing is unread, as far as all partitions are known."""
        return self.lag == 0 and self.is_complete

    @property
    def needs_attention(self) -> bool:
        return self.level <= Level.WARNING

    @property
    def order(self) -> tuple[object, ...]:
        """Return what rows are sorted by: the level, the headroom, the delay, the lag, the name."""
        delay = self.report.delay if self.report is not None else None
        return (
            self.level,
            self.share if self.share is not None else 1.0,
            -(delay or timedelta(0)),
            -(self.lag or 0),
            self.group.group_id,
            *self.source.order(),
        )


def group_row(
    source: Source,
    group: GroupSummary,
    lag: LagReport | Problem | None,
    schedules: Sequence[Schedule] = (),
    *,
    now: datetime | None = None,
    kafka: str | None = None,
    lag_age: float | None = None,
) -> GroupRow:
    """Return the row of a group.

    :param lag: None while it is not known
    :param schedules: of the DAGs that load the group
    :param now: the time of its database
    :param kafka: the connection that the lag is from
    """
    report = lag if isinstance(lag, LagReport) else None
    lag_problem = lag if isinstance(lag, Problem) else None
    share = headroom_share(report.partitions) if report is not None else None
    found = sorted(_attention(group, report, share, schedules, now), key=lambda each: (each[0], STATES.index(each[1])))
    if lag_problem is not None:
        found.append((Level.WARNING, "unknown", "lag unknown"))
    state = min((state for _, state, _ in found), key=STATES.index, default="ok")
    if state == "ok":
        state = "empty" if group.partitions == 0 else "unknown" if report is None else "ok"
    return GroupRow(
        source,
        group,
        schedules,
        report,
        lag_problem,
        kafka,
        lag_age,
        share,
        state,
        min((level for level, _, _ in found), default=Level.OK),
        tuple(reason for _, _, reason in found),
        tuple(dict.fromkeys(partition_error(each, kafka) for each in report.errors)) if report is not None else (),
    )


def partition_error(partition: PartitionLag, kafka: str | None) -> Problem:
    """Return why a partition has an error.

    :param kafka: the connection; what its cluster said may name hosts and users
    """
    error = str(partition.error)
    # What our own comparison found begins with the partition.
    if error.startswith(f"{partition.topic_partition}: "):
        return Problem(error)
    return Problem(f"Connection {kafka!r} does not describe topic {partition.topic!r}", shortened(error), kafka)


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


def _attention(
    group: GroupSummary,
    report: LagReport | None,
    share: float | None,
    schedules: Sequence[Schedule],
    now: datetime | None,
) -> Iterable[tuple[Level, str, str]]:
    """Generate why a group needs attention: the level, the state that follows, and the reason."""
    is_held = group.held_by is not None
    if group.is_deleted and group.last_commit is not None:
        change = group.last_commit.scenario if group.last_commit.kind == RENAMED else None
        what = f"{change or 'deleted'} by batch {group.last_commit.batch_id}"
        if schedules:
            follows = "give the DAG the new name" if change else "the next run of the DAG begins a new group"
            yield Level.WARNING, "stopped", f"{what}: {follows}"
        else:
            yield Level.NOTICE, "empty", what
    if report is not None:
        if report.lost:
            yield Level.CRITICAL, "error", f"{count(report.lost, 'offset')} lost to retention"
        elif (level := share_level(share)) is not Level.OK:
            yield level, "lagging", "records will soon be deleted by retention"
        if report.errors:
            yield Level.CRITICAL, "error", f"{count(len(report.errors), 'partition')} with an error"
        if not is_held and now is not None:
            yield from _late(group, report, schedules, now)
    if group.open is not None and not is_held:
        yield (
            Level.WARNING,
            "stalled",
            f"batch {group.open.batch_id} is open, and no run holds the group: the next run loads it, or its log says "
            "why not",
        )
    elif group.open is not None and group.open.attempt > 1:
        yield Level.NOTICE, "ok", f"attempt {group.open.attempt} of batch {group.open.batch_id}"
    if group.between and not is_held:
        yield Level.WARNING, "stalled", "the target may differ from the state tables until the next run"
    if group.last is not None and group.last.dead_letters:
        yield Level.NOTICE, "ok", f"{count(group.last.dead_letters, 'dead letter')} in the last batch"


def _late(
    group: GroupSummary, report: LagReport, schedules: Sequence[Schedule], now: datetime
) -> Iterable[tuple[Level, str, str]]:
    """Generate why unread records are late, by the schedules of the DAGs."""
    delay = report.delay
    if not report.lag or delay is None:
        return
    if schedules and all(schedule.is_paused for schedule in schedules):
        # Without the names: who may read one of the DAGs may not know the others.
        yield (
            Level.WARNING,
            "stopped",
            f"records are unread, and the {'DAG is' if len(schedules) == 1 else 'DAGs are'} paused",
        )
        return
    periods = [each.period for each in schedules if each.period is not None and not each.is_paused]
    period = min(periods, default=NO_SCHEDULE)
    committed = group.last_commit.committed_at if group.last_commit is not None else None
    idle = now - committed if committed is not None else delay
    of = f"the schedule's {short_duration(period)}" if periods else "a day, without a schedule"
    if min(idle, delay) > period + _GRACE:
        yield Level.WARNING, "stopped", f"no run for {short_duration(idle)}, longer than {of}, and records are unread"
    elif periods and delay > 2 * period + _GRACE:
        longest = f"two intervals of the schedule ({short_duration(2 * period)})"
        yield Level.NOTICE, "lagging", f"records wait for {short_duration(delay)}, longer than {longest}"
