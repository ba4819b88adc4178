"""How many slices and Spark tasks a batch has.

A slice is what one consumer reads of a partition; a task reads one slice after another. Staging, the preview of a plan
and replays of dead letters ask here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from airflow_kafka_offsets.core.offsets import OffsetRange, Slice

# Slices share a task up to this fraction of `slice_offsets`: a task costs more than a few records do.
_SHARED_FRACTION = 8

# Of a task: thousands of quiet partitions are to be read by many executors.
_MOST_SLICES = 64

# A large batch of tasks that write the target's files has so many tasks, or up to twice as many where partitions do
# not divide well, until a task reads so many times `slice_offsets`: its files are larger, rather than more.
_FILE_TASKS, _MOST_OF_FILE = 24, 8


def split(ranges: Sequence[OffsetRange], slice_offsets: int, *, writes_files: bool = False) -> list[Slice]:
    """Split the ranges of a batch into slices of nearly equal size; empty ranges give none.

    Parallelism would otherwise stop at the number of partitions, and a skewed partition would decide how long a batch
    takes. The first slices of all ranges come first, then the second ones: retention takes the oldest records.

    :param slice_offsets: the most offsets of a slice, at least 1; a large batch that writes files has up to eight times
        as many
    :param writes_files: whether tasks write the files of the target, as for a lake table
    """
    most = max(slice_offsets, _file_offsets(ranges, slice_offsets) if writes_files else 0)
    pieces = [(range_, start, end) for range_ in ranges for start, end in _pieces(range_.start, range_.end, most)]
    pieces.sort(key=lambda piece: piece[1] - piece[0].start)
    return [
        Slice(index, *range_.topic_partition, start, end, range_.leader_epoch if start == range_.start else None)
        for index, (range_, start, end) in enumerate(pieces)
    ]


def assign(slices: Sequence[Slice], slice_offsets: int, *, writes_files: bool = False) -> tuple[tuple[Slice, ...], ...]:
    """Assign the slices of a batch to Spark tasks, in their order: small ones share a task.

    :param slice_offsets: what `split` got
    :param writes_files: what `split` got
    """
    most = max(slice_offsets // _SHARED_FRACTION, _file_offsets(slices, slice_offsets) if writes_files else 0)
    tasks: list[list[Slice]] = []
    offsets = 0
    for slice_ in slices:
        if not tasks or offsets + len(slice_) > most or len(tasks[-1]) == _MOST_SLICES:
            tasks.append([])
            offsets = 0
        tasks[-1].append(slice_)
        offsets += len(slice_)
    return tuple(map(tuple, tasks))


def _file_offsets(parts: Sequence[OffsetRange | Slice], slice_offsets: int) -> int:
    """Return how many offsets a task reads that writes a file of the target."""
    return min(sum(map(len, parts)) // _FILE_TASKS, slice_offsets * _MOST_OF_FILE)


def _pieces(start: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    count = -(-(end - start) // most)
    return pairwise([start + (end - start) * i // count for i in range(count + 1)] if count else [])
