"""Lists in messages: of what may be thousands of partitions, the first are told."""

from __future__ import annotations

from collections.abc import Iterable


def listed(items: Iterable[object], *, between: str = ", ", most: int = 10) -> str:
    """The first items, and how many more there are."""
    every = list(items)
    told = [str(one) for one in every[:most]]
    if len(every) > most:
        told.append(f"and {len(every) - most} more")
    return between.join(told)
