"""Arithmetic of spans of offsets: start inclusive, end exclusive. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

Span = tuple[int, int]


def subtract(spans: Iterable[Span], removed: Iterable[Span]) -> list[Span]:
    """Return what is left of each span without the offsets of others; spans that touch stay apart."""
    left = list(spans)
    for start, end in removed:
        if start >= end:
            continue  # an empty span would split another in two
        left = [
            piece
            for first, last in left
            for piece in ((first, min(last, start)), (max(first, end), last))
            if piece[0] < piece[1]
        ]
    return left


def merge(spans: Iterable[Span]) -> list[Span]:
    """Return the same offsets in the fewest spans, in ascending order; none of them is empty."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif start < end:
            merged.append((start, end))
    return merged


def intersect(left: Span, right: Span) -> Span | None:
    """Return the offsets that two spans have in common, or None."""
    start, end = max(left[0], right[0]), min(left[1], right[1])
    return (start, end) if start < end else None


def first_common(spans: Iterable[Span], others: Iterable[Span]) -> Span | None:
    """Return the first offsets that two collections of spans have in common, or None.

    The spans of one collection do not overlap once they are merged. Of both together in ascending order, the first two that overlap
    are therefore neighbours, and long collections are compared in n log n.
    """
    neighbours = pairwise(sorted([*merge(spans), *merge(others)]))
    return next(filter(None, (intersect(before, after) for before, after in neighbours)), None)
