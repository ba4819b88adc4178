"""Instants and durations: as users write them, as Kafka takes them, and as messages show them. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from airflow_kafka_offsets.exceptions import ConfigurationError

_EPOCH = datetime.fromtimestamp(0, UTC)

# Weeks to seconds: months and years are of no certain length.
_DURATION = re.compile(
    r"P(?=.)(?:(?P<weeks>N)W)?(?:(?P<days>N)D)?(?:T(?=.)(?:(?P<hours>N)H)?(?:(?P<minutes>N)M)?(?:(?P<seconds>N)S)?)?".replace(
        "N", r"[0-9]+(?:\.[0-9]+)?"
    )
)


def instant(name: str, value: str | datetime, expected: str = "a timestamp") -> datetime:
    """A parameter as an instant: no zone means UTC.

    :raises ConfigurationError: it is no date-time, or lies before 1970, where Kafka's timestamps begin
    """
    try:
        read = datetime.fromisoformat(value) if isinstance(value, str) else value
        read = read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise ConfigurationError(f"{name} must be {expected} (ISO 8601); got {name}={value!r}") from None
    if read < datetime(1970, 1, 1, tzinfo=UTC):
        raise ConfigurationError(
            f"{name} must not lie before 1970, where Kafka's timestamps begin; got {name}={value!r}"
        )
    return read


def duration(text: str) -> timedelta | None:
    """A duration of weeks, days, hours, minutes and seconds, ISO 8601, such as `P1DT12H`; None where the text is none.

    :raises OverflowError: it is longer than any timedelta
    """
    # Not by Airflow's own library for times: it takes numbers of more than 32 bits for others, without a word.
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    return timedelta(**{unit: float(number) for unit, number in found.groupdict().items() if number is not None})


def milliseconds(value: datetime) -> int:
    """Milliseconds since 1970, rounded up: the first that is not before the instant."""
    return -(-(value - _EPOCH) // timedelta(milliseconds=1))


def from_milliseconds(value: int) -> datetime:
    """The instant of a record's timestamp. One behind the year 9999 (a producer that writes microseconds) is the last there is."""
    try:
        return _EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def format_instant(value: datetime) -> str:
    """An instant as text, in UTC."""
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
