"""Parts of what is too much at once, by number or by size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

_RECORDS = 500

# Above that a record is alone. Arrow's arrays of values end at 2 GiB, and the queue of a producer at 1 GiB.
_BYTES = 32 << 20


def portions(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Yield items in order, as many at once as a statement, or a look, can take."""
    for first in range(0, len(items), most):
        yield items[first : first + most]


def chunks(records: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield records in lists, none of which is empty, has many of them, or is large but for its last record.

    :param size: returns the bytes of a record, about
    """
    some: list[T] = []
    held = 0
    for record in records:
        some.append(record)
        held += size(record)
        if len(some) == _RECORDS or held >= _BYTES:
            yield some
            some, held = [], 0
    if some:
        yield some
