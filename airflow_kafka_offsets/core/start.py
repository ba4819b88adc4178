"""Where a topic without a stored position begins, as DAG authors write it. Needs no Kafka client."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_kafka_offsets.core.instants import from_milliseconds, instant
from airflow_kafka_offsets.exceptions import ConfigurationError

_WORDS = ("earliest", "latest", "none")


@dataclass(frozen=True, slots=True)
class CommittedBy:
    """Begin at the committed offsets of a consumer group in Kafka.

    Partitions without a commit begin at their beginning offset: the group never read them.

    :param group_id: the consumer group, for example that of the job that the load replaces
    """

    group_id: str


Start = str | datetime | timedelta | CommittedBy
"""`earliest`, `latest`, `none`, an instant (also as ISO 8601 text), a duration back from now, or a group's commits."""


def check_start(start: Start) -> None:
    """Refuse what is not a `Start`.

    :raises ConfigurationError: with the value received
    """
    if isinstance(start, CommittedBy):
        if not start.group_id:
            raise ConfigurationError("start=CommittedBy(…) needs the name of a consumer group; got an empty one")
    elif isinstance(start, timedelta):
        if start <= timedelta(0):
            raise ConfigurationError(
                f"start as a duration counts back from now and must be positive; got start={start!r}"
            )
        if start > datetime.now(UTC) - from_milliseconds(0):
            raise ConfigurationError(
                "start as a duration must not reach back before 1970, where Kafka's timestamps begin (start='earliest' is all "
                f"that the log holds); got start={start!r}"
            )
    elif isinstance(start, datetime) or start not in _WORDS:
        instant("start", start, f"one of {', '.join(_WORDS)}, a timestamp, a timedelta or CommittedBy(…)")


def check_until(until: str | datetime | None) -> None:
    """Refuse what is neither an instant nor None.

    :raises ConfigurationError: with the value received
    """
    if until is not None:
        instant("until", until, "a timestamp")
