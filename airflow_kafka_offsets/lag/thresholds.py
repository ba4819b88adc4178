"""When a lag is enough to act upon: a pure evaluation of thresholds, all of them inclusive. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, NamedTuple

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.lag.report import LagReport

Require = Literal["any", "all"]


class Condition(NamedTuple):
    """One threshold beside what was found.

    :param name: `min_lag`, `max_lag`, `max_delay` or `min_headroom`
    :param found: what was compared; None where it is not known, and then the condition is not met
    """

    name: str
    threshold: int | timedelta
    found: int | timedelta | None
    met: bool

    def __str__(self) -> str:
        found = "unknown" if self.found is None else _shown(self.found)
        return f"{self.name} {_shown(self.threshold)} {'met' if self.met else 'not met'} by {found}"


class Verdict(NamedTuple):
    """What thresholds say of a report.

    :param met: whether to act; None where nobody knows: the report is incomplete, and that is not allowed, or it is nothing but
        errors
    """

    met: bool | None
    conditions: tuple[Condition, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.conditions))


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What has to be found for a sensor to go on, or a trigger to fire. Every threshold is inclusive.

    :param min_lag: enough to load: at least so many offsets wait
    :param max_lag: caught up: at most so many offsets wait
    :param max_delay: waited long enough: the oldest record that waits is at least so old
    :param min_headroom: about to lose records: at most so much is left until retention takes what waits; a duration, or a number
        of offsets that the beginning offset is behind the position. Records that are lost already meet it
    :param require: whether `any` of the conditions is enough, or `all` must be met
    :param per_partition: compare lags of single partitions: one with `min_lag` is enough, and `max_lag` must hold for each.
        A delay and a headroom are always those of the partition that is worst off
    :param allow_incomplete: act upon what is known where some partitions have an error; else nothing is met then. Where all have
        one, nothing is met in either case
    :raises ConfigurationError: none is given, one is negative or can mean nothing, or they contradict each other
    """

    min_lag: int | None = None
    max_lag: int | None = None
    max_delay: timedelta | None = None
    min_headroom: timedelta | int | None = None
    require: Require = "any"
    per_partition: bool = False
    allow_incomplete: bool = False

    def __post_init__(self) -> None:
        if all(one is None for one in (self.min_lag, self.max_lag, self.max_delay, self.min_headroom)):
            raise ConfigurationError("Give at least one of min_lag, max_lag, max_delay and min_headroom; got none")
        if self.require not in ("any", "all"):
            raise ConfigurationError(f"require must be 'any' or 'all'; got require={self.require!r}")
        _check_number("min_lag", self.min_lag, 1, "a lag is never less than 0, so that it would always be met")
        _check_number("max_lag", self.max_lag, 0, "a lag is never less than 0")
        if self.max_delay is not None:
            _check_duration("max_delay", self.max_delay)
        if isinstance(self.min_headroom, timedelta):
            _check_duration("min_headroom", self.min_headroom)
        else:
            _check_number(
                "min_headroom", self.min_headroom, 0, "positions never stand before the beginning of their log"
            )
        self._check_together()

    def _check_together(self) -> None:
        if self.min_lag is None or self.max_lag is None:
            return
        both = f"min_lag={self.min_lag!r} and max_lag={self.max_lag!r}"
        if self.require == "all" and self.min_lag > self.max_lag:
            raise ConfigurationError(f"{both} can never be met together; with require='any' either is enough")
        if self.require == "any" and self.min_lag <= self.max_lag + 1:
            raise ConfigurationError(f"Of {both} one is met by every lag; with require='all' both have to be")

    @property
    def needs_times(self) -> bool:
        """Whether it takes more requests: how long records have waited, and how long retention leaves them."""
        return self.max_delay is not None or isinstance(self.min_headroom, timedelta)

    def of(self, report: LagReport) -> Verdict:
        """Compare a report with the thresholds."""
        conditions = tuple(self._conditions(report))
        if report.errors and not (self.allow_incomplete and _lags(report)):
            return Verdict(None, conditions)
        if not report.partitions:
            # Nobody knows of what a lag of 0 would be.
            return Verdict(False, conditions)
        met = [one.met for one in conditions]
        return Verdict(any(met) if self.require == "any" else all(met), conditions)

    def _conditions(self, report: LagReport) -> list[Condition]:
        lags = _lags(report)
        # Of single partitions, the greatest decides for both. Where nothing is known, 0 would be caught up.
        lag = (max(lags) if self.per_partition else sum(lags)) if lags else None
        found: list[Condition] = []
        if self.min_lag is not None:
            found.append(Condition("min_lag", self.min_lag, lag, lag is not None and lag >= self.min_lag))
        if self.max_lag is not None:
            found.append(Condition("max_lag", self.max_lag, lag, lag is not None and lag <= self.max_lag))
        if self.max_delay is not None:
            delay = report.delay
            found.append(Condition("max_delay", self.max_delay, delay, delay is not None and delay >= self.max_delay))
        if isinstance(self.min_headroom, timedelta):
            left = report.headroom_time
            met = left is not None and left <= self.min_headroom
            found.append(Condition("min_headroom", self.min_headroom, left, met))
        elif self.min_headroom is not None:
            # Without a lag, the beginning offset takes nothing that waits, however near it is.
            waiting = [one.headroom for one in report.partitions if (one.lag or one.lost) and one.headroom is not None]
            least = min(waiting, default=None)
            found.append(
                Condition("min_headroom", self.min_headroom, least, least is not None and least <= self.min_headroom)
            )
        return found


def _lags(report: LagReport) -> list[int]:
    return [one.lag for one in report.partitions if one.lag is not None]


def _check_number(name: str, value: object, least: int, why: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        kind = "a whole number of offsets, or a timedelta" if name == "min_headroom" else "a whole number of offsets"
        raise ConfigurationError(f"{name} must be {kind}; got {name}={value!r}")
    if value < least:
        raise ConfigurationError(f"{name} must be at least {least}: {why}; got {name}={value!r}")


def _check_duration(name: str, value: object) -> None:
    if not isinstance(value, timedelta):
        raise ConfigurationError(f"{name} must be a timedelta; got {name}={value!r}")
    if value <= timedelta(0):
        raise ConfigurationError(f"{name} must be positive; got {name}={value!r}")


def _shown(value: int | timedelta) -> str:
    return f"{value:,}" if isinstance(value, int) else str(timedelta(seconds=round(value.total_seconds())))
