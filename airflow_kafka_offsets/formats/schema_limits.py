"""How large a schema may be: who registers one must not be able to exhaust the worker or an executor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_kafka_offsets.formats.record_format import SchemaError

MOST_BYTES = 4_000_000
"""Of a schema and all that it refers to."""

MOST_CHARACTERS = 10_000
"""Of a text that a schema holds once and rows each: a default, or a name in an enum."""

_LONGEST_NAME = 1_000

MOST_TYPES = 10_000
"""Each counts as often as it is used: a few lines can use each other two, four, eight times."""

# Deeper than any schema that people write, and shallow enough for every reader.
_DEEPEST = 60


def check_size(count: int, depth: int, most: int = MOST_TYPES, what: str = "types, each counted as it is used") -> None:
    """Check what a schema has.

    :raises SchemaError: it is too much
    """
    if count > most:
        raise SchemaError(f"it has more than {most:,} {what}")
    if depth > _DEEPEST:
        raise SchemaError(f"it is nested deeper than {_DEEPEST}")


class Budget:
    """Counts what a schema has while it is resolved."""

    count = 0
    bytes = 0

    def take(self, depth: int, count: int = 1, **of: Any) -> None:
        """Count more; see `check_size`."""
        self.count += count
        check_size(self.count, depth, **of)

    def fetch(self, texts: Iterable[str]) -> None:
        """Count the bytes of texts that were fetched for the schema.

        :raises SchemaError: they are too many
        """
        self.bytes += sum(len(text.encode()) for text in texts)
        if self.bytes > MOST_BYTES:
            raise SchemaError(f"it has more than {MOST_BYTES:,} bytes, with all that it refers to")


def check_name(name: str) -> str:
    """Return the name of a type, a field or a property, which is copied as often as this is used; see `check_text`."""
    if len(name) > _LONGEST_NAME:
        raise SchemaError(f"the name {name[:40]!r}… has more than {_LONGEST_NAME:,} characters")
    return check_text(name)


def check_text(text: str) -> str:
    """Return a text.

    :raises SchemaError: it is too long, or has half of a surrogate pair
    """
    if any("\ud800" <= character <= "\udfff" for character in text[:MOST_CHARACTERS]):
        raise SchemaError("a name or a default has a character that Unicode does not have")
    if len(text) > MOST_CHARACTERS:
        raise SchemaError(f"a default, a reference, or a name has more than {MOST_CHARACTERS:,} characters")
    return text
