"""How many offsets of a backlog one batch takes: rule 9 of planning in `docs/semantics.md`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_kafka_offsets.core.offsets import OffsetRange

UNKNOWN_RECORD_BYTES = 1024.0
"""Assumed size of a record of a topic of which no batch was loaded yet."""


def cap(ranges: Sequence[OffsetRange], most: int | None) -> list[OffsetRange]:
    """Shorten ranges so that together they move the positions by no more than `most` offsets; None leaves them.

    A partition with lag whose share is 0 keeps an empty range, so that its target is stored.
    """
    if most is None:
        return list(ranges)
    shares = share(list(map(len, ranges)), most)
    return [replace(range_, end=range_.start + size) for range_, size in zip(ranges, shares, strict=True)]


def most_offsets(
    ranges: Sequence[OffsetRange],
    max_records: int | None,
    max_bytes: int | None,
    bytes_per_offset: Mapping[str, float],
) -> int | None:
    """Return the most offsets of one batch by both limits; None without a limit.

    :param bytes_per_offset: by topic, measured in the last batches
    """
    if max_bytes is None:
        return max_records
    offsets = sum(map(len, ranges))
    expected = sum(len(range_) * (bytes_per_offset.get(range_.topic) or UNKNOWN_RECORD_BYTES) for range_ in ranges)
    if expected <= max_bytes:
        return max_records
    # Shares are in proportion to lag: the mean size of a record in a batch is that in the whole backlog.
    by_bytes = max(1, int(max_bytes / (expected / offsets)))
    return by_bytes if max_records is None else min(max_records, by_bytes)


def share(lags: Sequence[int], most: int) -> list[int]:
    """Share `most` offsets over partitions in proportion to their lag (P19).

    Every partition with lag gets at least one while the cap lasts, so that a small partition next to a huge one moves
    in every batch. The sum is exactly min(most, sum of lags), and the same input gives the same answer.
    """
    total = sum(lags)
    if total <= most:
        return list(lags)
    waiting = [i for i, lag in enumerate(lags) if lag > 0]
    shares = [0] * len(lags)
    if len(waiting) >= most:
        for i in sorted(waiting, key=lambda i: (-lags[i], i))[:most]:
            shares[i] = 1
        return shares
    spare = most - len(waiting)
    rest = total - len(waiting)
    remainders: dict[int, int] = {}
    for i in waiting:
        extra, remainders[i] = divmod(spare * (lags[i] - 1), rest)
        shares[i] = 1 + extra
    left = most - sum(shares)
    for i in sorted(waiting, key=lambda i: (-remainders[i], i))[:left]:
        shares[i] += 1
    return shares
