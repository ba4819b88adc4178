"""When a lag is worth acting upon: `LagWatch` has the options of the lag sensor and of all lag triggers, `Thresholds`
compares a lag with thresholds, and `Edge` decides whether thresholds that stay met are worth another event. No I/O.

Who polls, and how, is not in here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from operator import ge, le
from typing import Any, ClassVar, Literal, NamedTuple

from airflow_kafka_offsets.core.instants import CommittedBy, Start, check_start
from airflow_kafka_offsets.core.offsets import parse_scope
from airflow_kafka_offsets.core.options import ISOLATION_LEVEL, IsolationLevel, StateTables, group_of
from airflow_kafka_offsets.core.parameters import (
    COUNT,
    DURATION,
    FLAG,
    NAME,
    Rule,
    are_texts,
    check,
    check_parsed,
    one_of,
    or_none,
    read_count,
)
from airflow_kafka_offsets.core.text import is_unsigned
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.lag.report import LagQuestion, LagReport

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


LAG_RULES = {
    "group_id": NAME,
    "topics": Rule("a text or a list of texts", lambda value: isinstance(value, str) or are_texts(value)),
    "conn_id": NAME,
    "per_partition": FLAG,
    "allow_incomplete": FLAG,
    "poll_interval": DURATION,
    "rearm_after": DURATION,
    # What else it must be depends on the time of the poll.
    "start": Rule("a word, an instant or a duration", lambda value: value is not None),
    "isolation_level": ISOLATION_LEVEL,
    "state_tables": group_of(StateTables),
    "kafka_conn_id": NAME,
}

_COMMITTED_BY = "committed-by:"


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


class Judgement(NamedTuple):
    """A report compared with thresholds.

    :param met: whether the thresholds are met; None if it cannot be known
    :param text: the report and the conditions, for the log
    :param payload: what an event or XCom carries; None unless the thresholds are met
    """

    met: bool | None
    text: str
    payload: dict[str, Any] | None


@dataclass(kw_only=True, eq=False, repr=False)
class LagWatch(Thresholds):
    """A group whose lag is watched. Connections are named, and read by the process that polls.

    As for `KafkaLagSensor`: `group_id`, `topics`, `conn_id`, `min_lag`, `max_lag`, `max_delay`, `min_headroom`,
    `require`, `per_partition`, `allow_incomplete`, `start`, `isolation_level`, `state_tables`,
    `kafka_conn_id`.

    :param poll_interval: from one poll to the next
    :raises ConfigurationError: a threshold or another option cannot work
    """

    templated: ClassVar[Sequence[str]] = (
        "group_id",
        "topics",
        "conn_id",
        "min_lag",
        "max_lag",
        "min_headroom",
        "start",
        "state_tables",
        "kafka_conn_id",
    )

    group_id: str
    topics: str | Sequence[str] = ()
    conn_id: str
    poll_interval: timedelta = timedelta(seconds=60)
    start: Start = "earliest"
    isolation_level: IsolationLevel = "read_committed"
    state_tables: StateTables = StateTables()
    kafka_conn_id: str = "kafka_default"

    def __post_init__(self) -> None:
        if isinstance(self.state_tables, dict):  # as `as_kwargs` has it
            self.state_tables = StateTables(**self.state_tables)
        check_parsed({field.name: getattr(self, field.name) for field in fields(self)}, LAG_RULES, self.templated)
        super().__post_init__()

    def as_kwargs(self) -> dict[str, Any]:
        """Return the options as values that Airflow can store."""
        start = self.start
        return {field.name: getattr(self, field.name) for field in fields(self)} | {
            "topics": [self.topics] if isinstance(self.topics, str) else list(self.topics),
            "state_tables": asdict(self.state_tables),
            "start": start if isinstance(start, (str, datetime, timedelta)) else _COMMITTED_BY + start.group_id,
        }

    def question(self) -> LagQuestion:
        """Return what a poll measures.

        :raises ConfigurationError: the start or a topic cannot be parsed
        """
        start = self.start
        if isinstance(start, str) and start.startswith(_COMMITTED_BY):
            start = CommittedBy(start.removeprefix(_COMMITTED_BY))
        check_start(start)
        return LagQuestion(self.group_id, parse_scope(self.topics), start, self.needs_times)

    def judge(self, report: LagReport) -> Judgement:
        """Compare a report with the thresholds, for the log and an event; raises what `Thresholds.compare` raises."""
        verdict = self.compare(report)
        text = f"Group {self.group_id!r}: {report}; {verdict}"
        if not verdict.met:
            return Judgement(verdict.met, text, None)
        met = [condition.name for condition in verdict.conditions if condition.met]
        return Judgement(True, text, {"group_id": self.group_id, "met": met, "report": report.summary()})


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
