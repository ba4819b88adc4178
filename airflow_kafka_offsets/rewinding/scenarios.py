"""The scenarios of a rewind, named as `kafka-consumer-groups --reset-offsets` names them, and offsets by partition as
CSV: `export` writes it, `from-file` reads it. No I/O: the command line opens the files.

To add a scenario:

* name it in `_VALUES`, with the function that checks its value;
* in `preview._wanted_offset`, return its offset; if the history, another group or Kafka has to be asked, ask in
  `look_up` of `previewing`; if the scenario names its partitions itself, in `known_positions`;
* if its offsets belong to the cluster that the group was loaded from, add it to `previewing._OF_OLD_CLUSTER`;
* add its option to the command `rewind` in `cli/commands.py`, and its rules to `docs/semantics.md`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from airflow_kafka_offsets.core.instants import duration, instant
from airflow_kafka_offsets.core.offsets import Scope, TopicPartition
from airflow_kafka_offsets.core.text import MAX_INT64, count, is_unsigned, parse_unsigned, shortened
from airflow_kafka_offsets.escaping import printable
from airflow_kafka_offsets.exceptions import ConfigurationError

PartitionOffsets = Mapping[TopicPartition, int]

Value = int | str | datetime | timedelta | PartitionOffsets | None

_NUMBER = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, slots=True)
class Scenario:
    """Where positions are moved to.

    :param name: one of `SCENARIOS`
    :param value: the offset, the number of offsets, the instant (in UTC), the duration, the offsets of a file, the id
        of the batch, or the name of the group; None for a scenario without a value
    """

    name: str
    value: Value = None

    @classmethod
    def of(cls, name: str, value: object = None, *, group_id: str | None = None) -> Scenario:
        """Return the scenario that a user names: numbers, instants and durations may be text.

        :param value: for `to-offset`, `shift-by` and `to-batch` a number; for `to-datetime` an instant, ISO 8601, no
            zone means UTC; for `by-duration` a duration back from now, ISO 8601 such as `P1DT12H`; for `from-file` the
            text of a CSV file, or the offsets by partition; for `to-group` a group of the state tables; for `import` a
            consumer group in Kafka
        :param group_id: whose lines of a file are meant, see `read_offsets`
        :raises ConfigurationError: there is no such scenario, or it cannot have this value
        """
        if name not in SCENARIOS:
            raise ConfigurationError(f"A rewind is one of {', '.join(SCENARIOS)}; got {name!r}")
        if name == "from-file" and not isinstance(value, Mapping):
            # Only the command line reads a path; a DAG has offsets or text.
            value = read_offsets(str(value or ""), group_id)
        return cls(name, _VALUES[name](name, value))

    @property
    def text(self) -> str:
        """Return the scenario in a few words, for the history."""
        if self.value is None:
            return self.name
        if isinstance(self.value, Mapping):
            return f"{self.name} ({count(len(self.value), 'partition')})"
        if isinstance(self.value, datetime):
            return f"{self.name} {self.value:%Y-%m-%dT%H:%M:%S.%f}Z".replace(".000000Z", "Z")
        return f"{self.name} {self.value}"

    def describe(self, scope: Scope) -> str:
        """Return the scenario with its scope, for the history. Rewinds with equal descriptions are the same."""
        parts = [self.text]
        if isinstance(self.value, Mapping):
            # There are too many offsets to name; a checksum tells files apart.
            parts.append(f"sha256 {sha256(write_offsets(self.value).encode()).hexdigest()[:12]}")
        if scope:
            topics = (
                topic if partitions is None else f"{topic}:{','.join(map(str, sorted(partitions)))}"
                for topic, partitions in sorted(scope.items())
            )
            parts.append(f"of {' '.join(topics)}")
        return ", ".join(parts)


def read_offsets(text: str, group_id: str | None = None) -> dict[TopicPartition, int]:
    """Return the offsets of a CSV text of `topic,partition,offset`, as `export` and Kafka's own tool write it.

    A header, blank lines and any line ends are fine.

    :param group_id: whose lines are read if each begins with a group, which Kafka's tool writes for several groups
    :raises ConfigurationError: a line is wrong, or repeats a partition; the message has the line number
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
                f"Line {line} must be topic,partition,offset, with a group before them or without; got "
                f"{','.join(fields)!r}"
            )
        if len(fields) == 4 and group_id is not None and fields[0] != group_id:
            others.add(fields[0])
            continue
        try:
            tp, offset = TopicPartition(fields[-3], parse_unsigned(fields[-2])), parse_unsigned(fields[-1])
        except ValueError:
            raise ConfigurationError(
                f"Line {line} must have numbers that are not negative as partition and offset; got {','.join(fields)!r}"
            ) from None
        if tp in offsets:
            raise ConfigurationError(
                f"Line {line} names {tp} again, which line {lines[tp]} has with offset {offsets[tp]}"
            )
        offsets[tp], lines[tp] = offset, line
    if not offsets:
        of = f" of group {group_id!r}, but of {', '.join(map(repr, sorted(others)))}" if others else ""
        raise ConfigurationError(f"The file has no line topic,partition,offset{of}")
    return offsets


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    # Strict: a quote without an end would make one field of the rest of the text.
    reader = csv.reader(text.lstrip("\ufeff").splitlines(), strict=True)
    try:
        for fields in reader:
            yield reader.line_num, [field.strip() for field in fields]
    except csv.Error as error:
        raise ConfigurationError(f"Line {reader.line_num} is not CSV: {error}") from None


def write_offsets(offsets: PartitionOffsets) -> str:
    """Return the CSV that `read_offsets` reads."""
    return "".join(f"{printable(tp.topic)},{tp.partition},{offset}\n" for tp, offset in sorted(offsets.items()))


def _offsets_by_partition(given: Mapping[Any, Any]) -> dict[TopicPartition, int]:
    """Return the offsets that a DAG names by partition.

    :raises ConfigurationError: there are none, a key is not a partition, or a value is not an offset
    """
    offsets: dict[TopicPartition, int] = {}
    for key, offset in given.items():
        if not (isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str) and is_unsigned(key[1])):
            raise ConfigurationError(f"from-file needs offsets by TopicPartition; got {key!r}")
        if not is_unsigned(offset):
            raise ConfigurationError(
                f"from-file needs offsets that are whole numbers and not negative; got {offset!r} for "
                f"{TopicPartition(*key)}"
            )
        offsets[TopicPartition(*key)] = offset
    if not offsets:
        raise ConfigurationError("from-file has no offsets: nothing would be moved")
    return offsets


def _no_value(name: str, value: Any) -> None:
    if value is not None:
        raise ConfigurationError(f"{name} takes no value; got {value!r}")


def _number(name: str, value: Any) -> int:
    try:
        number = int(value) if isinstance(value, str) and _NUMBER.fullmatch(value.strip()) else value
    except ValueError:  # of more digits than Python reads
        number = None
    if not isinstance(number, int) or isinstance(number, bool) or abs(number) > MAX_INT64:
        raise ConfigurationError(f"{name} needs a whole number of 64 bits at most; got {value!r}")
    return number


def _unsigned(name: str, value: Any) -> int:
    number = _number(name, value)
    if number < 0:
        raise ConfigurationError(f"{name} must not be negative; got {number}")
    return number


def _instant(name: str, value: Any) -> datetime:
    return instant(name, value, "a date-time, such as 2026-11-17T08:00:00Z")


def _duration(name: str, value: Any) -> timedelta:
    try:
        parsed = value if isinstance(value, timedelta) else duration(str(value))
    except OverflowError:
        raise ConfigurationError(f"{name} is too long; got {value!r}") from None
    # A duration of Airflow's own type may have months: it is also a timedelta, of 30 days for each.
    if parsed is None or any(getattr(parsed, unit, 0) for unit in ("months", "years")):
        raise ConfigurationError(
            f"{name} needs a duration of weeks, days, hours, minutes and seconds, ISO 8601, such as P1DT12H; got "
            f"{value!r}"
        )
    if parsed < timedelta(0):
        raise ConfigurationError(f"{name} counts back from now and must not be negative; got {value!r}")
    if parsed > datetime.now(UTC) - datetime.fromtimestamp(0, UTC):
        raise ConfigurationError(f"{name} must not begin before 1970, where Kafka's timestamps begin; got {value!r}")
    return timedelta(seconds=parsed.total_seconds())


# Of a name in Kafka's protocol.
_MOST_BYTES = 32_767


def _group(name: str, value: Any) -> str:
    # A longer one breaks the client's request, which it then repeats for half a minute.
    if not isinstance(value, str) or not value or len(value.encode(errors="replace")) > _MOST_BYTES:
        kind = "consumer group in Kafka" if name == "import" else "group"
        raise ConfigurationError(f"{name} needs the name of a {kind}; got {shortened(repr(value))}")
    return value


_VALUES: Mapping[str, Callable[[str, Any], Value]] = {
    "to-earliest": _no_value,
    "to-latest": _no_value,
    "to-current": _no_value,
    "to-offset": _unsigned,
    "shift-by": _number,
    "to-datetime": _instant,
    "by-duration": _duration,
    "from-file": lambda name, value: _offsets_by_partition(value),
    "to-batch": _unsigned,
    "to-group": _group,
    "import": _group,
    "undo": _no_value,
}

SCENARIOS = tuple(_VALUES)
