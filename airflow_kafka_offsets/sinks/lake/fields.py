"""The columns of Arrow as OpenLineage has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def fields_of(columns: Iterable[Any]) -> list[tuple[str, str]]:
    """Return the names and the types of columns."""
    return [(column.name, str(column.type)) for column in columns]
