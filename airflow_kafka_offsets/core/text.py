"""Short texts for logs and messages."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_kafka_offsets.core.offsets import MAX_INT64


def first_few(items: Iterable[object], *, between: str = ", ", most: int = 10) -> str:
    """The first items, and how many more there are."""
    every = list(items)
    told = [str(one) for one in every[:most]]
    if len(every) > most:
        told.append(f"and {len(every) - most} more")
    return between.join(told)


def is_unsigned(value: object) -> bool:
    """Return whether a value is an integer that the database can hold as an offset."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INT64


def parse_unsigned(text: str) -> int:
    """Read an offset that a user wrote: digits only. "1_0" and "+1", which int() accepts, are mistakes.

    :raises ValueError: it is none
    """
    if not (text.isascii() and text.isdigit()) or int(text) > MAX_INT64:
        raise ValueError(text)
    return int(text)
