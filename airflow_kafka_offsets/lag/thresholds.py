"""Compare a lag with thresholds: the one place where this is done is `Thresholds._conditions`. No I/O."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from operator import ge, le
from typing import Any, Literal, NamedTuple

from airflow_kafka_offsets.core.parameters import COUNT, DURATION, Rule, check, one_of, or_none
from airflow_kafka_offsets.core.text import is_unsigned
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.lag.report import LagReport

Require = Literal["any", "all"]

_RULES = {
    "min_lag": or_none(Rule("a whole number of offsets of at least 1 (0 would always be met)", COUNT.fits)),
    "max_lag": or_none(Rule("a whole number of offsets", is_unsigned)),
    "max_delay": or_none(DURATION),
    "min_headroom": or_none(
        Rule(
            "a whole number of offsets, or a positive timedelta",
            lambda value: is_unsigned(value) or DURATION.fits(value),
        )
    ),
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
        check(asdict(self), _RULES)
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

    def of(self, report: LagReport) -> Verdict:
        """Compare a report with the thresholds.

        Partitions with errors leave it open whether they are met, unless `allow_incomplete` is set and some partition has none.
        """
        conditions = tuple(self._conditions(report))
        if report.errors and not (self.allow_incomplete and _lags(report)):
            return Verdict(None, conditions)
        # Without partitions, a lag of 0 would mean nothing.
        met = (any if self.require == "any" else all)(condition.met for condition in conditions)
        return Verdict(bool(report.partitions) and met, conditions)

    def _conditions(self, report: LagReport) -> list[Condition]:
        lags = _lags(report)
        # With `per_partition`, the largest decides for both: one partition reaches `min_lag`, or all keep `max_lag`.
        lag = (max(lags) if self.per_partition else sum(lags)) if lags else None
        headroom: int | timedelta | None = report.headroom_time
        if not isinstance(self.min_headroom, timedelta):
            # Where nothing is unread, nothing is about to be lost, however close the beginning offset is.
            unread = (partition.headroom for partition in report.partitions if partition.lag or partition.lost)
            headroom = min((offsets for offsets in unread if offsets is not None), default=None)
        compared: list[tuple[str, Any, Any, Any]] = [
            ("min_lag", self.min_lag, lag, ge),
            ("max_lag", self.max_lag, lag, le),
            ("max_delay", self.max_delay, report.delay, ge),
            ("min_headroom", self.min_headroom, headroom, le),
        ]
        return [
            Condition(name, threshold, value, value is not None and reaches(value, threshold))
            for name, threshold, value, reaches in compared
            if threshold is not None
        ]


def _lags(report: LagReport) -> list[int]:
    return [partition.lag for partition in report.partitions if partition.lag is not None]


def _format(value: int | timedelta) -> str:
    return f"{value:,}" if isinstance(value, int) else str(timedelta(seconds=round(value.total_seconds())))
