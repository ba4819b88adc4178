"""Where a load begins and ends, as DAG authors write it: an end of the log, an instant, a duration, the commits of a
consumer group.

Instants and durations are parsed from what users write, converted to what Kafka takes, and formatted for messages.
Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from airflow_kafka_offsets.exceptions import ConfigurationError

_WORDS = ("earliest", "latest", "none")

_EPOCH = datetime.fromtimestamp(0, UTC)

# Weeks to seconds: months and years have no fixed length.
_DURATION = re.compile(
    r"P(?=.)(?:(?P<weeks>N)W)?(?:(?P<days>N)D)?(?:T(?=.)(?:(?P<hours>N)H)?(?:(?P<minutes>N)M)?(?:(?P<seconds>N)S)?)?".replace(
        "N", r"[0-9]+(?:\.[0-9]+)?"
    )
)


def instant(name: str, value: str | datetime, expected: str = "a timestamp (ISO 8601)") -> datetime:
    """Parse a parameter that is an instant; no zone means UTC.

    :raises ConfigurationError: the value is not a date-time, or is before 1970, where Kafka's timestamps begin
    """
    try:
        parsed = datetime.fromisoformat(value) if isinstance(value, str) else value
        parsed = parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        # Python's reason, where there is one: the form is right, and "day is out of range for month".
        why = f": {error}" if " must be in " in str(error) or "out of range" in str(error) else ""
        raise ConfigurationError(f"{name} must be {expected}; got {name}={value!r}{why}") from None
    if parsed < _EPOCH:
        raise ConfigurationError(
            f"{name} must not lie before 1970, where Kafka's timestamps begin; got {name}={value!r}"
        )
    return parsed


def duration(text: str) -> timedelta | None:
    """Parse an ISO 8601 duration of weeks, days, hours, minutes and seconds, such as `P1DT12H`; return None for other
    texts.

    :raises OverflowError: it is longer than any timedelta
    """
    # pendulum, which Airflow uses for times, silently truncates numbers of more than 32 bits.
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    return timedelta(**{unit: float(number) for unit, number in match.groupdict().items() if number is not None})


def milliseconds(value: datetime) -> int:
    """Return the first millisecond since 1970 that is not before an instant."""
    return -(-(value - _EPOCH) // timedelta(milliseconds=1))


def from_milliseconds(value: int) -> datetime:
    """Return the instant of a record's timestamp; for one after the year 9999 (a producer that writes microseconds),
    the last instant.
    """
    try:
        return _EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def format_instant(value: datetime) -> str:
    """Format an instant in UTC."""
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


class TimeSpan(NamedTuple):
    """The records of a span of time: their timestamps are at or after `since`, and before `until`; None is no limit."""

    since: datetime
    until: datetime | None

    @property
    def milliseconds(self) -> tuple[int, int | None]:
        """Both as milliseconds since 1970."""
        return milliseconds(self.since), None if self.until is None else milliseconds(self.until)

    def overlaps(self, other: TimeSpan) -> bool:
        """Return whether a record can be of both."""
        return (self.until is None or other.since < self.until) and (other.until is None or self.since < other.until)

    def __str__(self) -> str:
        until = f"until {self.until.isoformat()}" if self.until is not None else "up to the end"
        return f"since {self.since.isoformat()} {until}"


@dataclass(frozen=True, slots=True)
class CommittedBy:
    """Begin at the committed offsets of a consumer group in Kafka.

    A partition without a commit begins at its beginning offset: the consumer group never read it.

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
        if start > datetime.now(UTC) - _EPOCH:
            raise ConfigurationError(
                "start as a duration must not begin before 1970, where Kafka's timestamps begin; for the whole log "
                f"set start='earliest'; got start={start!r}"
            )
    elif isinstance(start, datetime) or start not in _WORDS:
        instant("start", start, f"one of {', '.join(_WORDS)}, a timestamp (ISO 8601), a timedelta or CommittedBy(…)")


def check_until(until: str | datetime | None) -> None:
    """Refuse what is neither an instant nor None.

    :raises ConfigurationError: with the value received
    """
    if until is not None:
        instant("until", until)
