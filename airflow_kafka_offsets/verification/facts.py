"""What a group's coverage is proved from, and what is found: value types. The proof itself is `proof.py`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, TopicPartition

Detail = Literal["offsets", "batches", "nothing"]
"""What the rows of a target say of their origin: topic, partition, offset and batch; the batch alone; nothing."""


@dataclass(frozen=True, slots=True)
class RowCount:
    """The rows, or the dead letters, that a batch left of one partition.

    :param topic: None, like the partition, where the rows do not say
    :param distinct: how many different offsets they have
    :param first: the lowest offset
    :param last: the highest offset
    """

    topic: str | None
    partition: int | None
    count: int
    distinct: int = 0
    first: int | None = None
    last: int | None = None

    @property
    def topic_partition(self) -> TopicPartition | None:
        """None where the rows do not say where they come from."""
        if self.topic is None or self.partition is None or self.first is None:
            return None
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class LoadedRange:
    """A range, and what the history says was in it.

    :param records: dead letters among them; None where they were not all read
    :param replaced: the offsets whose earlier output the batch removed, or None
    :param is_replaced: whether a later batch replaced the rows of all its offsets: none of them is there, also where the target
        had lost them before
    """

    one: OffsetRange
    records: int | None = None
    dead_letters: int = 0
    replaced: tuple[int, int] | None = None
    is_replaced: bool = False

    @property
    def rows(self) -> int | None:
        """How many rows that makes without a transform; None where not all records were read."""
        if self.records is None:
            return None if self.one.end > self.one.start else 0
        return self.records - self.dead_letters


@dataclass(frozen=True, slots=True)
class Replaced:
    """What later batches removed of a batch's output, by decision."""

    rows: int = 0
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """All that is stored of a batch, and what it left in the target.

    :param state: None where the state tables do not know the batch
    :param row_count: how many rows the history says it wrote
    :param replaced: what was removed of its output since, by partition
    :param after: later batches whose output it removed: a replay may be committed after them
    """

    batch_id: int
    kind: str = "load"
    state: str | None = None
    target_table: str | None = None
    has_transform: bool = False
    row_count: int | None = None
    ranges: tuple[LoadedRange, ...] = ()
    gaps: tuple[Gap, ...] = ()
    rows: tuple[RowCount, ...] = ()
    dead_letters: tuple[RowCount, ...] = ()
    replaced: Mapping[TopicPartition, Replaced] = field(default_factory=dict)
    after: frozenset[int] = frozenset()

    def replaced_of(self, tp: TopicPartition) -> Replaced:
        """What was removed of its output of a partition."""
        return self.replaced.get(tp, Replaced())

    @property
    def names_offsets(self) -> bool:
        """Whether its rows are one for each record, and say which: not so where their columns were added later."""
        named = not self.rows or any(tally.topic_partition is not None for tally in self.rows)
        return named and not self.has_transform
