"""Finds the items that fail a check, where a check of many items does not say which of them fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


def is_panic(error: BaseException) -> bool:
    """Return whether code in Rust panicked: its error is no Exception."""
    return type(error).__name__ == "PanicException"


class Run(NamedTuple, Generic[T]):
    """Items that pass together.

    :param result: what the check returned for them
    """

    result: T


class Failure(NamedTuple, Generic[E]):
    """An item that fails.

    :param error: what the check raised
    """

    position: int
    error: E


def split_at_failures(
    number: int, check: Callable[[int, int], T], error_type: type[E], *, few: int = 1
) -> Iterator[Run[T] | Failure[E]]:
    """Yield items as runs that pass and single items that fail, in their order.

    A range that fails is halved until its failures are alone. Each run and each failure is yielded before any later
    item is checked again.

    :param number: of the items
    :param check: checks the items in [first, end), which are at least one; raises an error of the type if one fails
    :param few: as many items, or fewer, that fail together are checked one at a time instead of in halves
    """
    pending = [(0, number)] if number else []
    while pending:
        start, stop = pending.pop()
        try:
            run = Run(check(start, stop))
        except error_type as raised:
            error = raised
            # Its frames have this function, which has the error: only the garbage collector would free the items.
            error.__traceback__ = None
        else:
            yield run
            continue
        # Outside of the handler: an error that the caller raises must not have this one in its context.
        if stop - start == 1:
            yield Failure(start, error)
        else:
            step = 1 if stop - start <= few else -(-(stop - start) // 2)
            pending += [(begin, min(begin + step, stop)) for begin in reversed(range(start, stop, step))]
