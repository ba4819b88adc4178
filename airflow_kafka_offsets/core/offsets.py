"""Value types: partitions, positions, ranges and slices. Ranges are half open: start inclusive, end exclusive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

# Of a task: thousands of partitions are to be read by many executors.
_MOST_SLICES = 64


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True, slots=True)
class Position:
    """What is stored of a partition: the next offset to read, and the identity of the log it was read from.

    :param topic_id: None where the broker reported none (Kafka before 2.8)
    :param leader_epoch: of a leader whose log reached the offset (KIP-320); None where it is not known
    """

    offset: int
    topic_id: str | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """What the cluster says of a partition: [beginning, end) are the offsets that can be read now.

    :param leader_epoch: of the leader that told the end
    """

    beginning: int
    end: int
    topic_id: str | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition that a batch loads.

    :param start: the stored position, or where `how` decided to begin
    :param end: becomes the stored position when the batch is committed
    :param target: the offset that the task instance wants to reach; the range ends before it where the batch is capped
    :param how: how the start was decided: stored, earliest, latest, timestamp, group, new-partition, or skipped-gap
    :param leader_epoch: that of the stored position; None where there is none, or behind a gap
    :param end_epoch: of the leader that told the log's end, when the range was planned; stored with the position
    """

    topic: str
    partition: int
    start: int
    end: int
    target: int
    topic_id: str | None = None
    how: str = "stored"
    leader_epoch: int | None = None
    end_epoch: int | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def epoch_after(self) -> int | None:
        """The leader epoch of the position when the batch is committed.

        Where nothing is read, nobody asks whether the log was cut before the start: the older epoch can still tell.
        """
        return self.end_epoch if len(self) or self.leader_epoch is None else self.leader_epoch

    def __len__(self) -> int:
        """How many offsets are read."""
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
    """The part of a range that is read in one go, by one Spark task.

    :param leader_epoch: of a leader whose log reached the start; None where the broker is not to be asked about it
    """

    index: int
    topic: str
    partition: int
    start: int
    end: int
    leader_epoch: int | None = None

    def __len__(self) -> int:
        return self.end - self.start


def split(ranges: Iterable[OffsetRange], max_offsets: int) -> list[Slice]:
    """Split ranges into slices of nearly equal size, none longer than `max_offsets`; empty ranges give none.

    Parallelism would otherwise stop at the number of partitions, and a skewed partition would decide how long a batch
    takes.
    """
    if max_offsets < 1:
        raise ValueError(f"max_offsets must be at least 1, got {max_offsets}")
    slices: list[Slice] = []
    for one in ranges:
        for start, end in _pieces(one.start, one.end, max_offsets):
            slices.append(
                Slice(
                    len(slices),
                    one.topic,
                    one.partition,
                    start,
                    end,
                    one.leader_epoch if start == one.start else None,
                )
            )
    return slices


def pack(slices: Iterable[Slice], max_offsets: int) -> list[tuple[Slice, ...]]:
    """Share slices out to Spark tasks, in their order: small ones together, since a task costs more than a few records do.

    :param max_offsets: the most offsets of a task that reads several slices
    """
    tasks: list[list[Slice]] = []
    offsets = 0
    for one in slices:
        if not tasks or offsets + len(one) > max_offsets or len(tasks[-1]) == _MOST_SLICES:
            tasks.append([])
            offsets = 0
        tasks[-1].append(one)
        offsets += len(one)
    return [tuple(task) for task in tasks]


def _pieces(start: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    count = -(-(end - start) // most)
    return pairwise([start + (end - start) * i // count for i in range(count + 1)] if count else [])


# Kafka's offsets, and the numbers of batches, are signed numbers of 64 bits.
MAX_INT64 = 2**63 - 1
