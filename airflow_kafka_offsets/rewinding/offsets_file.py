"""Offsets by partition as CSV: `export` writes it, `from-file` reads it. No I/O: the command line opens the files."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.text import is_unsigned, parse_unsigned
from airflow_kafka_offsets.exceptions import ConfigurationError

PartitionOffsets = Mapping[TopicPartition, int]


def read_offsets(text: str, group_id: str | None = None) -> dict[TopicPartition, int]:
    """Return the offsets of a CSV text of `topic,partition,offset`, as `export` and Kafka's own tool write it.

    A header, blank lines and any line ends are fine.

    :param group_id: whose lines are read if each begins with a group, which Kafka's tool writes for several groups
    :raises ConfigurationError: a line is wrong, or names a partition again; with the number of the line
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
    return "".join(f"{tp.topic},{tp.partition},{offset}\n" for tp, offset in sorted(offsets.items()))


def offsets_by_partition(given: Mapping[Any, Any]) -> dict[TopicPartition, int]:
    """Return the offsets that a DAG names by partition.

    :raises ConfigurationError: there are none, or a key is no partition, or a value no offset
    """
    offsets: dict[TopicPartition, int] = {}
    for key, offset in given.items():
        if not (isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str) and is_unsigned(key[1])):
            raise ConfigurationError(f"from-file needs offsets by TopicPartition; got {key!r}")
        if not is_unsigned(offset):
            raise ConfigurationError(
                f"from-file needs offsets that are whole numbers and not negative; got {offset!r} for {TopicPartition(*key)}"
            )
        offsets[TopicPartition(*key)] = offset
    if not offsets:
        raise ConfigurationError("from-file has no offsets: nothing would be moved")
    return offsets
