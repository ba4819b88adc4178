"""Value types: partitions, positions, ranges and slices. Ranges are half open: start inclusive, end exclusive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True, slots=True)
class Position:
    """What is stored of a partition: the next offset to read, and the identity of the topic it was read from.

    `topic_id` is None where the broker reported none (Kafka before 2.8).
    """

    offset: int
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """What the cluster says of a partition: [beginning, end) are the offsets that can be read now."""

    beginning: int
    end: int
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition that a batch loads.

    :param start: the stored position, or where `how` decided to begin
    :param end: becomes the stored position when the batch is committed
    :param target: the end offset captured by the task instance; the range ends before it where the batch is capped
    :param how: how the start was decided: stored, earliest, latest, new-partition, or skipped-gap
    """

    topic: str
    partition: int
    start: int
    end: int
    target: int
    topic_id: str | None = None
    how: str = "stored"

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.start}..{self.end}"


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets [start, end) of a partition that no batch will ever load, and why."""

    topic: str
    partition: int
    start: int
    end: int
    cause: str
    decision: str


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of a range that one Spark task reads."""

    index: int
    topic: str
    partition: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


def split(ranges: Iterable[OffsetRange], max_offsets: int) -> list[Slice]:
    """Split ranges into slices of nearly equal size, none longer than `max_offsets`; empty ranges give none.

    Parallelism would otherwise stop at the number of partitions, and a skewed partition would decide how long a batch
    takes.
    """
    if max_offsets < 1:
        raise ValueError(f"max_offsets must be at least 1, got {max_offsets}")
    pieces = (piece for one in ranges if len(one) for piece in _pieces(one, max_offsets))
    return [Slice(index, *piece) for index, piece in enumerate(pieces)]


def _pieces(one: OffsetRange, max_offsets: int) -> Iterator[tuple[str, int, int, int]]:
    count = -(-len(one) // max_offsets)
    bounds = [one.start + len(one) * i // count for i in range(count + 1)]
    for start, end in pairwise(bounds):
        yield one.topic, one.partition, start, end
