"""The scenarios of a rewind, named as `kafka-consumer-groups --reset-offsets` names them, and its scope. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from airflow_kafka_offsets.core.instants import duration, instant
from airflow_kafka_offsets.core.offsets import MAX_INT64
from airflow_kafka_offsets.core.scope import Scope
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.rewinding.offsets_file import (
    PartitionOffsets,
    offsets_by_partition,
    read_offsets,
    write_offsets,
)

_WITHOUT_VALUE = ("to-earliest", "to-latest", "to-current", "undo")

_NAMES = {
    "to-batch": "batch",
    "to-group": "group",
    "import": "consumer group of Kafka's",
}

SCENARIOS = (
    "to-earliest",
    "to-latest",
    "to-current",
    "to-offset",
    "shift-by",
    "to-datetime",
    "by-duration",
    "from-file",
    "to-batch",
    "to-group",
    "import",
    "undo",
)

_NUMBER = re.compile(r"[+-]?[0-9]+")

# Where a position stands, these say; elsewhere there is nothing to count from.
RELATIVE = ("shift-by", "to-current")


@dataclass(frozen=True, slots=True)
class Scenario:
    """Where positions are moved to.

    :param name: one of `SCENARIOS`
    :param value: the offset, the number of offsets, the instant (in UTC), the duration, the offsets of a file, the number of
        the batch, or the name of the group; None where the name says it all
    """

    name: str
    value: int | str | datetime | timedelta | PartitionOffsets | None = None

    @classmethod
    def of(cls, name: str, value: object = None, *, group_id: str | None = None) -> Scenario:
        """A scenario of what a user says: numbers, instants and durations may be text.

        :param value: for `to-offset`, `shift-by` and `to-batch` a number; for `to-datetime` an instant, ISO 8601, no zone means
            UTC; for `by-duration` a duration back from now, ISO 8601 such as `P1DT12H`; for `from-file` the text of a CSV file,
            or the offsets by partition; for `to-group` a group of the state tables; for `import` a consumer group of Kafka's
        :param group_id: whose lines of a file are meant, see `read_offsets`
        :raises ConfigurationError: there is no such scenario, or it cannot have this value
        """
        if name not in SCENARIOS:
            raise ConfigurationError(f"A rewind is one of {', '.join(SCENARIOS)}; got {name!r}")
        if name in _WITHOUT_VALUE:
            if value is not None:
                raise ConfigurationError(f"{name} takes no value; got {value!r}")
            return cls(name)
        if name in ("to-offset", "shift-by", "to-batch"):
            number = _number(name, value)
            if number < 0 and name != "shift-by":
                raise ConfigurationError(f"{name} must not be negative; got {number}")
            return cls(name, number)
        if name == "to-datetime":
            return cls(name, instant(name, value, "a date-time, such as 2026-11-17T08:00:00Z"))  # type: ignore[arg-type]
        if name == "by-duration":
            return cls(name, _duration(value))
        if name == "from-file":
            # The path is the command line's business; a DAG has offsets or text.
            return cls(
                name,
                offsets_by_partition(value) if isinstance(value, Mapping) else read_offsets(str(value or ""), group_id),
            )
        if not isinstance(value, str) or not value:
            raise ConfigurationError(f"{name} needs the name of a {_NAMES[name]}; got {value!r}")
        return cls(name, value)

    @property
    def text(self) -> str:
        """The scenario in a few words, for the history."""
        if self.value is None:
            return self.name
        if isinstance(self.value, Mapping):
            return f"{self.name} ({len(self.value)} partitions)"
        if isinstance(self.value, datetime):
            return f"{self.name} {self.value:%Y-%m-%dT%H:%M:%S.%f}Z".replace(".000000Z", "Z")
        return f"{self.name} {self.value}"

    def told(self, scope: Scope) -> str:
        """The scenario with its scope, for the history: whether two rewinds are about the same is known by it."""
        parts = [self.text]
        if isinstance(self.value, Mapping):
            # The offsets are too many to tell; other ones have another checksum.
            parts.append(f"sha256 {sha256(write_offsets(self.value).encode()).hexdigest()[:12]}")
        if scope:
            listed = (
                topic if partitions is None else f"{topic}:{','.join(map(str, sorted(partitions)))}"
                for topic, partitions in sorted(scope.items())
            )
            parts.append(f"of {' '.join(listed)}")
        return ", ".join(parts)


def _number(name: str, value: object) -> int:
    number = value
    try:
        if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
            number = int(value)
    except ValueError:  # of more digits than Python reads
        number = None
    if not isinstance(number, int) or isinstance(number, bool) or abs(number) > MAX_INT64:
        raise ConfigurationError(f"{name} needs a whole number of 64 bits at most; got {value!r}")
    return number


def _duration(value: object) -> timedelta:
    found = value if isinstance(value, timedelta) else _parsed_duration(value)
    # As Airflow's own times have them: such a duration is also a timedelta, of 30 days for a month.
    if getattr(found, "months", 0) or getattr(found, "years", 0):
        raise _no_duration(value)
    if found < timedelta(0):
        raise ConfigurationError(f"by-duration counts back from now and must not be negative; got {value!r}")
    if found > datetime.now(UTC) - datetime.fromtimestamp(0, UTC):
        raise ConfigurationError(
            f"by-duration must not reach back before 1970, where Kafka's timestamps begin; got {value!r}"
        )
    return timedelta(seconds=found.total_seconds())


def _parsed_duration(value: object) -> timedelta:
    try:
        found = duration(str(value))
    except OverflowError:
        raise ConfigurationError(f"by-duration is too long; got {value!r}") from None
    if found is None:
        raise _no_duration(value)
    return found


def _no_duration(value: object) -> ConfigurationError:
    return ConfigurationError(
        f"by-duration needs a duration of weeks, days, hours, minutes and seconds, ISO 8601, such as P1DT12H; got {value!r}"
    )
