"""Arithmetic of half-open spans of offsets."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]


def subtract(spans: Iterable[Span], removed: Iterable[Span]) -> list[Span]:
    """Return what is left of each span without the offsets of others; spans that touch stay apart."""
    left = list(spans)
    for start, end in removed:
        if start >= end:
            continue  # would cut a span in two, and remove nothing
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


def intersect(one: Span, other: Span) -> Span | None:
    """Return the offsets that two spans have in common, or None."""
    start, end = max(one[0], other[0]), min(one[1], other[1])
    return (start, end) if start < end else None


def first_common(spans: Iterable[Span], others: Iterable[Span]) -> Span | None:
    """Return the first offsets that two collections of spans have in common, or None.

    Both are sorted and then walked once, side by side: neither has to be short.
    """
    left, right = merge(spans), merge(others)
    at = beside = 0
    while at < len(left) and beside < len(right):
        common = intersect(left[at], right[beside])
        if common is not None:
            return common
        if left[at][1] <= right[beside][1]:
            at += 1
        else:
            beside += 1
    return None
