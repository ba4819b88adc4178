"""Short texts for logs and messages, and numbers parsed from the texts of users. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

MAX_INT64 = 2**63 - 1
"""The largest offset, and the largest number of a batch: both are signed 64-bit integers."""


MOST_QUOTED = 500
"""The most characters that a message quotes of what another program says."""


def first_few(items: Iterable[object], *, between: str = ", ", most: int = 10) -> str:
    """Join the first items, and how many more there are."""
    texts = [str(item) for item in items]
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return between.join(texts[:most] + more)


def first_reason(reasons: Iterable[object]) -> str:
    """Return the first of several reasons, and how many different ones there are besides; empty without any."""
    return first_few(dict.fromkeys(str(reason).rstrip(".") for reason in reasons), most=1)


def shortened(text: str, most: int = MOST_QUOTED) -> str:
    """Return the beginning of a text, which another program wrote and which may be of any length."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number of things: `1 topic`, `1,000 topics`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def short_duration(value: timedelta) -> str:
    """Return a duration in its two largest units: 45s, 3m 20s, 5h 0m, 12d 3h."""
    whole = max(0, int(value.total_seconds()))
    units = ((whole // 86_400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s"))
    first = next((index for index, (amount, _) in enumerate(units) if amount), 3)
    return " ".join(f"{amount}{unit}" for amount, unit in units[first : first + 2])


def can_be_stored(text: str) -> bool:
    """Return whether databases and Kafka take a text: it has no NUL and no lone surrogate."""
    return "\0" not in text and text.encode(errors="ignore").decode() == text


def is_unsigned(value: object) -> bool:
    """Return whether a value is an integer that the database can hold as an offset."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INT64


def parse_unsigned(text: str) -> int:
    """Parse an offset that a user wrote: digits only. "1_0" and "+1", which int() accepts, are mistakes.

    :raises ValueError: it is not an offset
    """
    if not (text.isascii() and text.isdigit()) or int(text) > MAX_INT64:
        raise ValueError(text)
    return int(text)
