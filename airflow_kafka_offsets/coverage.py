"""What a group's coverage is proved from, and what is found: value types. The proof itself is `proof.py`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from airflow_kafka_offsets.offsets import Gap, OffsetRange, Slice, TopicPartition

Detail = Literal["offsets", "batches", "nothing"]
"""What the rows of a target say of their origin: topic, partition, offset and batch; the batch alone; nothing."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be if every record was loaded exactly once.

    :param words: what, where, and what it means
    :param offset: the first that is concerned
    """

    words: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    batch_id: int | None = None


@dataclass(frozen=True, slots=True)
class Coverage:
    """What was proved of a group.

    :param partitions: how many have a position
    :param batches: how many are committed
    :param records: how many these loaded, dead letters among them, as far as a transform let it be known
    :param rows: how many they left in the target; where that could not be checked, how many the history says
    :param dead_letters: how many records were set aside
    :param gaps: how many offsets were skipped by decision
    :param open_batch: the batch that is planned or staged, and proves nothing yet
    :param output_checked: False where the rows of the target do not say which batch they are of, and were not looked at
    :param reread: how many records of Kafka were compared with the target; None where Kafka was not asked
    """

    group_id: str
    partitions: int
    batches: int
    records: int
    rows: int
    dead_letters: int
    gaps: int
    open_batch: int | None
    output_checked: bool
    reread: int | None = None


@dataclass(frozen=True, slots=True)
class Tally:
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
    rows: tuple[Tally, ...] = ()
    dead_letters: tuple[Tally, ...] = ()
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


@dataclass(frozen=True, slots=True)
class Move:
    """A step in the history of a partition: a batch moves the position from `start` to `end`.

    :param begins: whether the start was chosen, and not where a position stood
    :param jump: whether nothing was loaded on the way: a rewind, in whichever direction
    :param removed: whether there is no position afterwards
    :param gap: whether the offsets were skipped
    """

    batch_id: int
    topic_partition: TopicPartition
    topic_id: str | None
    start: int
    end: int
    begins: bool
    gap: bool = False
    jump: bool = False
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of a partition that batches without a transform loaded: each of their records left a row or a dead letter."""

    topic: str
    partition: int
    start: int
    end: int
    first_batch: int
    last_batch: int

    def without(self, start: int, end: int) -> Iterator[Span]:
        """What is left of it when the output of the offsets from `start` to `end` was replaced by that of another batch."""
        if end <= self.start or start >= self.end:
            yield self
            return
        if self.start < start:
            yield replace(self, end=start)
        if end < self.end:
            yield replace(self, start=end)

    def slice_within(self, beginning: int, end: int) -> Slice | None:
        """Return what to read of the log to see the records that the batches loaded; None where the log has none of them.

        :param beginning: of the log: what is before it cannot be read any more
        :param end: of the log
        """
        first, last = max(self.start, beginning), min(self.end, end)
        return Slice(0, self.topic, self.partition, first, last) if first < last else None


@dataclass(slots=True)
class Findings:
    """What the history, the positions and the tallies of the target show.

    :param violations: in the order of the history; empty where everything is as it has to be
    :param spans: what can be compared with Kafka record by record
    """

    violations: list[Violation] = field(default_factory=list)
    partitions: int = 0
    batches: int = 0
    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    gaps: int = 0
    open_batch: int | None = None
    spans: list[Span] = field(default_factory=list)

    def violated(
        self, words: str, tp: TopicPartition | None = None, offset: int | None = None, batch_id: int | None = None
    ) -> None:
        """Note a violation; its words begin with the partition."""
        topic, partition = tp or (None, None)
        self.violations.append(Violation(f"{tp}: {words}" if tp else words, topic, partition, offset, batch_id))
