"""Instants and durations: parsed from what users write, converted to what Kafka takes, formatted for messages. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from airflow_kafka_offsets.exceptions import ConfigurationError

_EPOCH = datetime.fromtimestamp(0, UTC)

# Weeks to seconds: months and years have no fixed length.
_DURATION = re.compile(
    r"P(?=.)(?:(?P<weeks>N)W)?(?:(?P<days>N)D)?(?:T(?=.)(?:(?P<hours>N)H)?(?:(?P<minutes>N)M)?(?:(?P<seconds>N)S)?)?".replace(
        "N", r"[0-9]+(?:\.[0-9]+)?"
    )
)


def instant(name: str, value: str | datetime, expected: str = "a timestamp") -> datetime:
    """Parse a parameter that is an instant; no zone means UTC.

    :raises ConfigurationError: it is not a date-time, or lies before 1970, where Kafka's timestamps begin
    """
    try:
        parsed = datetime.fromisoformat(value) if isinstance(value, str) else value
        parsed = parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise ConfigurationError(f"{name} must be {expected} (ISO 8601); got {name}={value!r}") from None
    if parsed < _EPOCH:
        raise ConfigurationError(
            f"{name} must not lie before 1970, where Kafka's timestamps begin; got {name}={value!r}"
        )
    return parsed


def duration(text: str) -> timedelta | None:
    """Parse an ISO 8601 duration of weeks, days, hours, minutes and seconds, such as `P1DT12H`; return None for other texts.

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
    """Return the instant of a record's timestamp; for one after the year 9999 (a producer that writes microseconds), the last instant."""
    try:
        return _EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def format_instant(value: datetime) -> str:
    """Format an instant in UTC."""
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
