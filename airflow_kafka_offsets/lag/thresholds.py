"""When a lag is worth acting upon: `LagWatch` has the options of the lag sensor and of all lag triggers, and compares a
lag with their thresholds; `Edge` decides whether thresholds that stay met are worth another event. No I/O.

Who polls, and how, is not in here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from operator import ge, le
from typing import Any, ClassVar, Literal, NamedTuple

from airflow_kafka_offsets.core.instants import CommittedBy, Start, check_start
from airflow_kafka_offsets.core.offsets import parse_scope
from airflow_kafka_offsets.core.options import ISOLATION_LEVEL, IsolationLevel, StateTables, group_of, ruled
from airflow_kafka_offsets.core.parameters import (
    COUNT,
    DURATION,
    FLAG,
    NAME,
    Rule,
    are_texts,
    check_parsed,
    one_of,
    or_none,
    read_count,
)
from airflow_kafka_offsets.core.templates import is_rendered_later
from airflow_kafka_offsets.core.text import is_unsigned
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.lag.report import LagQuestion, LagReport

Require = Literal["any", "all"]

_TOPICS = Rule("a text or a list of texts", lambda value: isinstance(value, str) or are_texts(value))

_MIN_LAG = Rule("a whole number of offsets of at least 1 (0 would always be met)", COUNT.fits, read_count)

_MAX_LAG = Rule("a whole number of offsets", is_unsigned, read_count)

_HEADROOM = Rule(
    "a whole number of offsets, or a positive timedelta",
    lambda value: is_unsigned(value) or DURATION.fits(value),
    read_count,
)

# What else it must be depends on the time of the poll.
_START = Rule("a word, an instant or a duration", lambda value: value is not None)

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


class Judgement(NamedTuple):
    """A report compared with thresholds.

    :param met: whether to act; None if it cannot be known, because partitions have errors
    :param text: the report and the conditions, for the log
    :param payload: what an event or XCom carries; None unless the thresholds are met
    """

    met: bool | None
    text: str
    payload: dict[str, Any] | None


# Not frozen: a trigger is a subclass, and Airflow sets attributes of triggers.
@dataclass(kw_only=True, eq=False, repr=False)
class LagWatch:
    """A group whose lag is watched, and thresholds, all inclusive. Connections are named, and read by the process that
    polls.

    As for `KafkaLagSensor`: `group_id`, `topics`, `conn_id`, `min_lag`, `max_lag`, `max_delay`, `min_headroom`,
    `require`, `per_partition`, `allow_incomplete`, `start`, `isolation_level`, `state_tables`,
    `kafka_conn_id`.

    :param poll_interval: from one poll to the next
    :raises ConfigurationError: no threshold is given, one is negative or always met, they contradict each other, or
        another option cannot work
    """

    templated: ClassVar[Sequence[str]]
    """The options that Airflow renders."""

    group_id: str = field(metadata=ruled(NAME, templated=True))
    topics: str | Sequence[str] = field(default=(), metadata=ruled(_TOPICS, templated=True))
    conn_id: str = field(metadata=ruled(NAME, templated=True))
    min_lag: int | None = field(default=None, metadata=ruled(or_none(_MIN_LAG), templated=True))
    max_lag: int | None = field(default=None, metadata=ruled(or_none(_MAX_LAG), templated=True))
    max_delay: timedelta | None = field(default=None, metadata=ruled(or_none(DURATION)))
    min_headroom: timedelta | int | None = field(default=None, metadata=ruled(or_none(_HEADROOM), templated=True))
    require: Require = field(default="any", metadata=ruled(one_of("any", "all")))
    per_partition: bool = field(default=False, metadata=ruled(FLAG))
    allow_incomplete: bool = field(default=False, metadata=ruled(FLAG))
    poll_interval: timedelta = field(default=timedelta(seconds=60), metadata=ruled(DURATION))
    start: Start = field(default="earliest", metadata=ruled(_START, templated=True))
    isolation_level: IsolationLevel = field(default="read_committed", metadata=ruled(ISOLATION_LEVEL))
    state_tables: StateTables = field(default=StateTables(), metadata=ruled(group_of(StateTables), templated=True))
    kafka_conn_id: str = field(default="kafka_default", metadata=ruled(NAME, templated=True))

    def __post_init__(self) -> None:
        if isinstance(self.state_tables, dict):  # as `as_kwargs` has it
            self.state_tables = StateTables(**self.state_tables)
        check_parsed({name: getattr(self, name) for name in self.rules()}, self.rules(), self.templated)
        if (self.min_lag, self.max_lag, self.max_delay, self.min_headroom) == (None,) * 4:
            raise ConfigurationError("Give at least one of min_lag, max_lag, max_delay and min_headroom; got none")
        if self.min_lag is None or self.max_lag is None or is_rendered_later([self.min_lag, self.max_lag]):
            return
        both = f"min_lag={self.min_lag!r} and max_lag={self.max_lag!r}"
        if self.require == "all" and self.min_lag > self.max_lag:
            raise ConfigurationError(f"{both} can never be met together; with require='any' either is enough")
        if self.require == "any" and self.min_lag <= self.max_lag + 1:
            raise ConfigurationError(f"Of {both} one is met by every lag; with require='all' both have to be met")

    @classmethod
    def rules(cls) -> dict[str, Rule]:
        """Return what the options must be."""
        return {each.name: each.metadata["rule"] for each in fields(cls) if "rule" in each.metadata}

    def as_kwargs(self) -> dict[str, Any]:
        """Return the options as values that Airflow can store."""
        start = self.start
        return {each.name: getattr(self, each.name) for each in fields(self)} | {
            "topics": [self.topics] if isinstance(self.topics, str) else list(self.topics),
            "state_tables": asdict(self.state_tables),
            "start": start if isinstance(start, (str, datetime, timedelta)) else _COMMITTED_BY + start.group_id,
        }

    def question(self) -> LagQuestion:
        """Return what a poll measures. Times take further requests.

        :raises ConfigurationError: the start or a topic cannot be parsed
        """
        start = self.start
        if isinstance(start, str) and start.startswith(_COMMITTED_BY):
            start = CommittedBy(start.removeprefix(_COMMITTED_BY))
        check_start(start)
        times = self.max_delay is not None or isinstance(self.min_headroom, timedelta)
        return LagQuestion(self.group_id, parse_scope(self.topics), start, times)

    def judge(self, report: LagReport) -> Judgement:
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
        conditions = self._conditions(report)
        text = f"Group {self.group_id!r}: {report}; {'; '.join(map(str, conditions))}"
        if report.errors and not (self.allow_incomplete and _lags(report)):
            if report.denied is not None:
                raise ConfigurationError(report.denied)
            return Judgement(None, text, None)
        met = [condition.name for condition in conditions if condition.met]
        # Without partitions, a lag of 0 would mean nothing.
        if not report.partitions or len(met) < (1 if self.require == "any" else len(conditions)):
            return Judgement(False, text, None)
        return Judgement(True, text, {"group_id": self.group_id, "met": met, "report": report.summary()})

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


LagWatch.templated = tuple(each.name for each in fields(LagWatch) if each.metadata["templated"])


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
