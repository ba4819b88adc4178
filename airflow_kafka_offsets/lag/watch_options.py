"""What is watched, and how often: the parameters that the sensor and both triggers share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_kafka_offsets.core.parameters import (
    DURATION,
    FLAG,
    NAME,
    TEXT,
    Rule,
    are_texts,
    check_untemplated,
    one_of,
    or_none,
)
from airflow_kafka_offsets.hooks.metrics import Stats, emit_lag
from airflow_kafka_offsets.lag.thresholds import Require, Thresholds

if TYPE_CHECKING:
    from airflow_kafka_offsets.core.start import Start
    from airflow_kafka_offsets.lag.measure import LagQuestion
    from airflow_kafka_offsets.lag.report import LagReport


TEMPLATED = ("group_id", "topics")
"""What a sensor renders, and a watch therefore checks when it looks."""

_COMMITTED_BY = "committed-by:"


class Judged(NamedTuple):
    """What was made of a report.

    :param met: whether the thresholds are met; None where nobody knows
    :param told: the report and the conditions, for the log
    :param payload: what goes on with who waits; None where the thresholds are not met
    """

    met: bool | None
    told: str
    payload: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LagWatch:
    """A group whose lag is watched. Names of connections only: what these say is read by the process that watches.

    As for `KafkaLagSensor`: `group_id`, `topics`, `offsets_conn_id`, `min_lag`, `max_lag`, `max_delay`, `min_headroom`, `require`,
    `per_partition`, `allow_incomplete`, `start`, `isolation_level`, `offsets_schema`, `offsets_prefix`, `kafka_conn_id`.

    :param poll_interval: from one look to the next
    :raises ConfigurationError: the thresholds or the interval can mean nothing
    """

    group_id: str
    topics: str | Sequence[str] = ()
    offsets_conn_id: str
    min_lag: int | None = None
    max_lag: int | None = None
    max_delay: timedelta | None = None
    min_headroom: timedelta | int | None = None
    require: Require = "any"
    per_partition: bool = False
    allow_incomplete: bool = False
    poll_interval: timedelta = timedelta(seconds=60)
    start: Start = "earliest"
    isolation_level: str = "read_committed"
    offsets_schema: str | None = None
    offsets_prefix: str = ""
    kafka_conn_id: str = "kafka_default"

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in TEMPLATED}
        check_untemplated(given, LAG_RULES, TEMPLATED)
        self._thresholds()  # refuses bad ones

    def as_kwargs(self) -> dict[str, Any]:
        """The same as parameters that Airflow can store."""
        start = self.start
        return {field.name: getattr(self, field.name) for field in fields(self)} | {
            "topics": [self.topics] if isinstance(self.topics, str) else list(self.topics),
            "start": start if isinstance(start, (str, datetime, timedelta)) else _COMMITTED_BY + start.group_id,
        }

    def question(self) -> LagQuestion:
        """
        :raises ConfigurationError: the start or the scope can mean nothing
        """
        # Here and not above: DAG files are parsed every few seconds.
        from airflow_kafka_offsets.core.scope import parse_scope
        from airflow_kafka_offsets.core.start import CommittedBy, check_start
        from airflow_kafka_offsets.lag.measure import LagQuestion

        start = self.start
        if isinstance(start, str) and start.startswith(_COMMITTED_BY):
            start = CommittedBy(start.removeprefix(_COMMITTED_BY))
        check_start(start)
        return LagQuestion(self.group_id, parse_scope(self.topics), start, times=self._thresholds().needs_times)

    def judge(self, report: LagReport, stats: Stats) -> Judged:
        """Compare a report with the thresholds, and tell Airflow's metrics what is in it."""
        emit_lag(stats, self.group_id, report)
        verdict = self._thresholds().of(report)
        told = f"Group {self.group_id!r}: {report}; {verdict}"
        if not verdict.met:
            return Judged(verdict.met, told, None)
        met = [one.name for one in verdict.conditions if one.met]
        return Judged(True, told, {"group_id": self.group_id, "met": met, "report": report.summary()})

    def _thresholds(self) -> Thresholds:
        return Thresholds(**{field.name: getattr(self, field.name) for field in fields(Thresholds)})


LAG_RULES = {
    "group_id": NAME,
    "topics": Rule("a text or a list of texts", lambda value: isinstance(value, str) or are_texts(value)),
    "offsets_conn_id": NAME,
    "per_partition": FLAG,
    "allow_incomplete": FLAG,
    "poll_interval": DURATION,
    "rearm_after": DURATION,
    "isolation_level": one_of("read_committed", "read_uncommitted"),
    "offsets_schema": or_none(TEXT),
    "offsets_prefix": TEXT,
    "kafka_conn_id": NAME,
}
