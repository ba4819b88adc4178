"""Offsets as CSV: exported and read back."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.text import is_unsigned, parse_unsigned
from airflow_kafka_offsets.exceptions import ConfigurationError

PartitionOffsets = Mapping[TopicPartition, int]


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
            tp = TopicPartition(topic, parse_unsigned(partition))
            value = parse_unsigned(offset)
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


def write_offsets(offsets: PartitionOffsets) -> str:
    """The CSV that `read_offsets` reads."""
    return "".join(f"{tp.topic},{tp.partition},{offset}\n" for tp, offset in sorted(offsets.items()))


def offsets_by_partition(given: Mapping[Any, Any]) -> dict[TopicPartition, int]:
    """Offsets that a DAG gives by partition."""
    offsets: dict[TopicPartition, int] = {}
    for place, offset in given.items():
        if not (isinstance(place, tuple) and len(place) == 2 and isinstance(place[0], str) and is_unsigned(place[1])):
            raise ConfigurationError(f"from-file needs offsets by TopicPartition; got {place!r}")
        if not is_unsigned(offset):
            raise ConfigurationError(
                f"from-file needs offsets that are whole numbers and not negative; got {offset!r} for {TopicPartition(*place)}"
            )
        offsets[TopicPartition(*place)] = offset
    if not offsets:
        raise ConfigurationError("from-file has no offsets: nothing would be moved")
    return offsets
