"""Instants: as users write them, as Kafka takes them, and as messages show them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow_kafka_offsets.exceptions import ConfigurationError


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


def milliseconds(value: datetime) -> int:
    """Milliseconds since 1970, rounded up: the first that is not before the instant."""
    return -(-(value - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1))


def shown(value: datetime) -> str:
    """An instant as text, in UTC."""
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
