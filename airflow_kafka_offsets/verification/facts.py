"""What a verification reads of a group's batches, as values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, TopicPartition
from airflow_kafka_offsets.sinks.sink import RowCount

CONTINUED = frozenset({"stored", "skipped-gap", "rewind", "removed"})
"""How ranges start that continue from a stored position; the others choose where a partition begins."""


@dataclass(frozen=True, slots=True)
class LoadedRange:
    """A range of a batch, and what the history says was in it.

    :param records: dead letters among them; None where they were not all read
    :param replaced: the offsets whose earlier output the batch removed, or None
    :param is_replaced: whether a later batch replaced the rows of all its offsets: none of them is there, also where the target
        had lost them before
    """

    range: OffsetRange
    records: int | None = None
    dead_letters: int = 0
    replaced: tuple[int, int] | None = None
    is_replaced: bool = False

    @property
    def rows(self) -> int | None:
        """The number of rows that a load without a transform makes of it; None where not all records were read."""
        if self.records is None:
            return None if self.range.end > self.range.start else 0
        return self.records - self.dead_letters


@dataclass(frozen=True, slots=True)
class Replaced:
    """What later batches removed of a batch's output."""

    rows: int = 0
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """All that is stored of a batch, and what it left in the target.

    :param state: None where the state tables do not know the batch
    :param row_count: the number of rows that it wrote, by the history
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
        """Return what was removed of its output of a partition."""
        return self.replaced.get(tp, Replaced())

    @property
    def is_rewind(self) -> bool:
        """Whether it moved positions and loaded nothing."""
        return self.kind in ("rewind", "undo", "import")

    @property
    def names_offsets(self) -> bool:
        """Whether its rows are one for each record, and say which: not so where their columns were added later."""
        named = not self.rows or any(count.topic_partition is not None for count in self.rows)
        return named and not self.has_transform
