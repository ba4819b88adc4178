"""The options of the lag sensor and of all lag triggers: what is watched, with which thresholds, how often.

Who polls, and how, is not in here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from airflow_kafka_offsets.core.options import ISOLATION_LEVEL, IsolationLevel, StateTables, group_of
from airflow_kafka_offsets.core.parameters import DURATION, FLAG, NAME, Rule, are_texts, check_parsed
from airflow_kafka_offsets.lag.thresholds import Thresholds

if TYPE_CHECKING:
    from airflow_kafka_offsets.core.instants import Start
    from airflow_kafka_offsets.lag.measure import LagQuestion
    from airflow_kafka_offsets.lag.report import LagReport


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
        # Imported here because DAG files are parsed every few seconds.
        from airflow_kafka_offsets.core.instants import CommittedBy, check_start
        from airflow_kafka_offsets.core.offsets import parse_scope
        from airflow_kafka_offsets.lag.measure import LagQuestion

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
