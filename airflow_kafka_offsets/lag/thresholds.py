"""When a lag is worth acting upon: `Thresholds` compares it with thresholds, and `Edge` decides whether thresholds that
stay met are worth another event. No I/O.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import timedelta
from operator import ge, le
from typing import Any, Literal, NamedTuple

from airflow_kafka_offsets.core.parameters import COUNT, DURATION, Rule, check, one_of, or_none, read_count
from airflow_kafka_offsets.core.text import is_unsigned
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.lag.report import LagReport

Require = Literal["any", "all"]

_HEADROOM = Rule(
    "a whole number of offsets, or a positive timedelta",
    lambda value: is_unsigned(value) or DURATION.fits(value),
    read_count,
)

THRESHOLD_RULES = {
    "min_lag": or_none(Rule("a whole number of offsets of at least 1 (0 would always be met)", COUNT.fits, read_count)),
    "max_lag": or_none(Rule("a whole number of offsets", is_unsigned, read_count)),
    "max_delay": or_none(DURATION),
    "min_headroom": or_none(_HEADROOM),
    "require": one_of("any", "all"),
}


class Condition(NamedTuple):
    """A threshold and the value that was compared with it.

    :param name: `min_lag`, `max_lag`, `max_delay` or `min_headroom`
    :param value: None if it is not known; the condition is not met then
    """

    name: str
    threshold: int | timedelta
    value: int | timedelta | None
    met: bool

    def __str__(self) -> str:
        value = "unknown" if self.value is None else _format(self.value)
        return f"{self.name} {_format(self.threshold)} {'met' if self.met else 'not met'} by {value}"


class Verdict(NamedTuple):
    """The result of comparing a report with thresholds.

    :param met: whether to act; None if it cannot be known, because partitions have errors
    """

    met: bool | None
    conditions: tuple[Condition, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.conditions))


# Not frozen: a trigger is a subclass, and Airflow sets attributes of triggers.
@dataclass(kw_only=True, eq=False, repr=False)
class Thresholds:
    """Thresholds of a lag, all inclusive, which `KafkaLagSensor` describes.

    :raises ConfigurationError: no threshold is given, one is negative or always met, or they contradict each other
    """

    min_lag: int | None = None
    max_lag: int | None = None
    max_delay: timedelta | None = None
    min_headroom: timedelta | int | None = None
    require: Require = "any"
    per_partition: bool = False
    allow_incomplete: bool = False

    def __post_init__(self) -> None:
        if (self.min_lag, self.max_lag, self.max_delay, self.min_headroom) == (None,) * 4:
            raise ConfigurationError("Give at least one of min_lag, max_lag, max_delay and min_headroom; got none")
        check(vars(self), THRESHOLD_RULES)
        if self.min_lag is None or self.max_lag is None:
            return
        both = f"min_lag={self.min_lag!r} and max_lag={self.max_lag!r}"
        if self.require == "all" and self.min_lag > self.max_lag:
            raise ConfigurationError(f"{both} can never be met together; with require='any' either is enough")
        if self.require == "any" and self.min_lag <= self.max_lag + 1:
            raise ConfigurationError(f"Of {both} one is met by every lag; with require='all' both have to be met")

    @property
    def needs_times(self) -> bool:
        """Return whether the report must have times, which take further requests."""
        return self.max_delay is not None or isinstance(self.min_headroom, timedelta)

    def compare(self, report: LagReport) -> Verdict:
        """Compare a report with the thresholds.

        Partitions with errors leave it open whether they are met, unless `allow_incomplete` is set and some partition
        has none.

        :raises ConfigurationError: an ACL is missing, without which it would stay open, or the headroom in time would
            never be known
        """
        if isinstance(self.min_headroom, timedelta) and report.unknown_headroom is not None:
            raise ConfigurationError(
                f"min_headroom={self.min_headroom!r} can never be met, because the headroom in time is unknown: "
                f"{report.unknown_headroom}"
            )
        conditions = tuple(self._conditions(report))
        if report.errors and not (self.allow_incomplete and _lags(report)):
            if report.denied is not None:
                raise ConfigurationError(report.denied)
            return Verdict(None, conditions)
        # Without partitions, a lag of 0 would mean nothing.
        met = (any if self.require == "any" else all)(condition.met for condition in conditions)
        return Verdict(bool(report.partitions) and met, conditions)

    def _conditions(self, report: LagReport) -> list[Condition]:
        lags = _lags(report)
        # With `per_partition`, the largest decides for both: one partition reaches `min_lag`, or all keep `max_lag`.
        lag = (max(lags) if self.per_partition else sum(lags)) if lags else None
        # Nobody knows how much of a truncated log was loaded: such a group has not caught up, whatever the other
        # partitions say.
        caught_up = lag if "beyond the end" not in report.flags else None
        headroom: int | timedelta | None = report.headroom_time
        if not isinstance(self.min_headroom, timedelta):
            # Where nothing is unread, nothing is about to be lost, however close the beginning offset is.
            unread = (partition.headroom for partition in report.partitions if partition.lag or partition.lost)
            headroom = min((offsets for offsets in unread if offsets is not None), default=None)
        compared: list[tuple[str, Any, Any, Any]] = [
            ("min_lag", self.min_lag, lag, ge),
            ("max_lag", self.max_lag, caught_up, le),
            ("max_delay", self.max_delay, report.delay, ge),
            ("min_headroom", self.min_headroom, headroom, le),
        ]
        return [
            Condition(name, threshold, value, value is not None and reaches(value, threshold))
            for name, threshold, value, reaches in compared
            if threshold is not None
        ]


class Edge:
    """Fires when a condition becomes true, and again if the load that followed was not enough, or did not follow.

    An event asks for a load. So it fires again if the condition is still true after positions have moved, and if no
    position has moved for an interval: the run may have failed. It does not fire while a run loads the group.

    :param rearm_after: how long after an event it fires again though no position has moved
    """

    def __init__(self, rearm_after: timedelta) -> None:
        self._rearm_after = rearm_after.total_seconds()
        self._fired_at: float | None = None  # None is armed
        self._positions: Hashable = None

    def fires(self, met: bool | None, positions: Hashable, *, busy: bool, now: float) -> bool:
        """Decide whether to fire after a poll.

        :param met: whether the condition is true; None is not known, and changes nothing
        :param positions: any value that changes when a position moves
        :param busy: whether a run loads the group
        :param now: seconds of a monotonic clock
        """
        if met is False:
            self._fired_at = None
        if not met or busy:
            return False
        fired = self._fired_at is not None and now - self._fired_at < self._rearm_after
        if fired and positions == self._positions:
            return False
        self._fired_at, self._positions = now, positions
        return True


def _lags(report: LagReport) -> list[int]:
    return [partition.lag for partition in report.partitions if partition.lag is not None]


def _format(value: int | timedelta) -> str:
    return f"{value:,}" if isinstance(value, int) else str(timedelta(seconds=round(value.total_seconds())))
