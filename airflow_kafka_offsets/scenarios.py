"""The scenarios of a rewind, named as `kafka-consumer-groups --reset-offsets` names them, and its scope. Pure."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.instants import duration, instant
from airflow_kafka_offsets.offsets import TopicPartition

Offsets = Mapping[TopicPartition, int]
Scope = Mapping[str, frozenset[int] | None]
"""Topics with the partitions that are meant, None for all of them; an empty scope is all topics of the group."""

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
# Kafka's offsets, and the numbers of batches, are signed numbers of 64 bits.
MOST = 2**63 - 1

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
    value: int | str | datetime | timedelta | Offsets | None = None

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
                name, _offsets(value) if isinstance(value, Mapping) else read_offsets(str(value or ""), group_id)
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


def parse_scope(scopes: str | Iterable[str]) -> Scope:
    """A scope of `topic` and `topic:partition,partition`, as Kafka's tool has it. Later mentions of a topic add to earlier ones.

    :param scopes: several of them, or one
    :raises ConfigurationError: a partition is not a number
    """
    found: dict[str, frozenset[int] | None] = {}
    for one in [scopes] if isinstance(scopes, str) else scopes:
        topic, colon, listed = one.partition(":")
        if not topic:
            raise ConfigurationError(f"A scope is topic or topic:0,1; got {one!r}")
        if not colon:
            found[topic] = None
            continue
        try:
            partitions = frozenset(_unsigned(number) for number in listed.split(","))
        except ValueError:
            raise ConfigurationError(
                f"A scope is topic or topic:0,1, with partitions as numbers; got {one!r}"
            ) from None
        before = found.get(topic, frozenset())
        found[topic] = None if before is None else before | partitions
    return found


def read_offsets(text: str, group_id: str | None = None) -> dict[TopicPartition, int]:
    """Offsets of a CSV file of `topic,partition,offset`, as `export` and Kafka's own tool write it.

    A header, blank lines and any line ends are fine.

    :param group_id: whose lines are taken where each begins with a group, which Kafka's tool writes for several groups
    :raises ConfigurationError: a line is wrong, or a partition is there twice; with the number of the line
    """
    offsets: dict[TopicPartition, int] = {}
    lines: dict[TopicPartition, int] = {}
    others: set[str] = set()
    for line, fields in _lines(text):
        if not any(fields):
            continue
        if not offsets and not others and [field.lower() for field in fields[-3:]] == ["topic", "partition", "offset"]:
            continue
        if len(fields) not in (3, 4) or "" in fields:
            raise ConfigurationError(
                f"Line {line} must be topic,partition,offset, with a group before them or without; got {','.join(fields)!r}"
            )
        if len(fields) == 4 and group_id is not None and fields[0] != group_id:
            others.add(fields[0])
            continue
        topic, partition, offset = fields[-3:]
        try:
            tp = TopicPartition(topic, _unsigned(partition))
            value = _unsigned(offset)
        except ValueError:
            raise ConfigurationError(
                f"Line {line} must have numbers that are not negative as partition and offset; got {','.join(fields)!r}"
            ) from None
        if tp in offsets:
            raise ConfigurationError(
                f"Line {line} names {tp} again, which line {lines[tp]} has with offset {offsets[tp]}"
            )
        offsets[tp] = value
        lines[tp] = line
    if not offsets:
        of = f" of group {group_id!r}, but of {', '.join(map(repr, sorted(others)))}" if others else ""
        raise ConfigurationError(f"The file has no line topic,partition,offset{of}")
    return offsets


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    # Strict: a quote that is never closed would take all that follows for one field.
    reader = csv.reader(text.lstrip("\ufeff").splitlines(), strict=True)
    try:
        for fields in reader:
            yield reader.line_num, [field.strip() for field in fields]
    except csv.Error as error:
        raise ConfigurationError(f"Line {reader.line_num} is not CSV: {error}") from None


def write_offsets(offsets: Offsets) -> str:
    """The CSV that `read_offsets` reads."""
    return "".join(f"{tp.topic},{tp.partition},{offset}\n" for tp, offset in sorted(offsets.items()))


def _offsets(given: Mapping[Any, Any]) -> dict[TopicPartition, int]:
    """Offsets that a DAG gives by partition."""
    offsets: dict[TopicPartition, int] = {}
    for place, offset in given.items():
        if not (isinstance(place, tuple) and len(place) == 2 and isinstance(place[0], str) and _is_unsigned(place[1])):
            raise ConfigurationError(f"from-file needs offsets by TopicPartition; got {place!r}")
        if not _is_unsigned(offset):
            raise ConfigurationError(
                f"from-file needs offsets that are whole numbers and not negative; got {offset!r} for {TopicPartition(*place)}"
            )
        offsets[TopicPartition(*place)] = offset
    if not offsets:
        raise ConfigurationError("from-file has no offsets: nothing would be moved")
    return offsets


def _is_unsigned(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST


def _unsigned(text: str) -> int:
    """What int() takes beyond digits, such as "1_0" and "+1", is a slip in a file of offsets."""
    if not (text.isascii() and text.isdigit()) or int(text) > MOST:
        raise ValueError(text)
    return int(text)


def _number(name: str, value: object) -> int:
    number = value
    try:
        if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
            number = int(value)
    except ValueError:  # of more digits than Python reads
        number = None
    if not isinstance(number, int) or isinstance(number, bool) or abs(number) > MOST:
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
