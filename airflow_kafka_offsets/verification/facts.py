"""What a verification reads of a group's batches, and what it finds, as values. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from airflow_kafka_offsets.core.history import DEAD_LETTERS, REPLAY_KINDS, REWIND_KINDS
from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, OfPartition, Slice, TopicPartition, subtract
from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.exceptions import Violation
from airflow_kafka_offsets.sinks.target_rows import BranchOutput, RowCount

CONTINUED = frozenset({"stored", "skipped-gap", "rewind", "removed"})
"""How ranges start that continue from a stored position; the others choose where a partition begins."""


@dataclass(frozen=True, slots=True)
class LoadedRange:
    """A range of a batch, and what the history says was in it.

    :param records: dead letters among them; None where they were not all read
    :param replaced: the offsets whose earlier output the batch removed, or None
    :param is_replaced: whether a later batch replaced the rows of all its offsets: none of them is there, also where
        the target had lost them before
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
class RemovedOutput:
    """What later batches removed of a batch's output."""

    rows: int = 0
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """All that is stored of a batch, and what it left in the target.

    :param state: None where the state tables do not know the batch
    :param row_count: the number of rows that it wrote, by the history
    :param takes_span: whether it took, and replaced, only the records of a span of time, and not all of its ranges
    :param replaced: what was removed of its output since, by partition
    :param is_publishing: whether a target that commits externally may have its rows: those of an abandoned batch are to
        be taken back
    :param outputs: of several targets, the rows that it has in each of them by now
    :param after: later batches whose output it removed: a replay may be committed after them
    :param compacted_from: the first of the batches whose ranges it has, and with them their rows
    :param is_compacted: whether its ranges are those of a later batch; its rows are of any of them
    """

    batch_id: int
    kind: str = "load"
    state: str | None = None
    target_table: str | None = None
    has_transform: bool = False
    row_count: int | None = None
    takes_span: bool = False
    is_publishing: bool = False
    ranges: tuple[LoadedRange, ...] = ()
    gaps: tuple[Gap, ...] = ()
    rows: tuple[RowCount, ...] = ()
    dead_letters: tuple[RowCount, ...] = ()
    replaced: Mapping[TopicPartition, RemovedOutput] = field(default_factory=dict)
    after: frozenset[int] = frozenset()
    outputs: Mapping[str, BranchOutput] = field(default_factory=dict)
    compacted_from: int | None = None
    is_compacted: bool = False

    def of_branch(self, fan_out: str, branch: str) -> BatchFacts:
        """Return it as a batch of one of several targets.

        :param fan_out: the name of all of them
        """
        if self.target_table != fan_out:
            return self
        written = self.outputs.get(branch, BranchOutput(0, False))
        return replace(
            self,
            target_table=branch,
            row_count=None if self.row_count is None else written.rows,
            # What was removed is known of each branch by batch, and by partition of all branches only.
            has_transform=True,
            replaced={tp: RemovedOutput(0, removed.dead_letters) for tp, removed in self.replaced.items()},
        )

    @property
    def name(self) -> str:
        """Its name in a sentence about its ranges."""
        first = self.compacted_from or self.batch_id
        return f"batch {self.batch_id}" if first == self.batch_id else f"batches {first} to {self.batch_id}"

    def replaced_of(self, tp: TopicPartition) -> RemovedOutput:
        """Return what was removed of its output of a partition."""
        return self.replaced.get(tp, RemovedOutput())

    @property
    def is_rewind(self) -> bool:
        """Whether it moved positions and loaded nothing."""
        return self.kind in REWIND_KINDS

    @property
    def is_replay(self) -> bool:
        """Whether it wrote rows, of records or of dead letters, and moved no position."""
        return self.kind in REPLAY_KINDS

    @property
    def replays_dead_letters(self) -> bool:
        """Whether its rows are of dead letters of an earlier batch."""
        return self.kind == DEAD_LETTERS

    def wrote_into(self, target: str) -> bool:
        """Whether a target should have rows of it: those of a replay are in the target that it names."""
        return not self.is_rewind and (not self.is_replay or self.target_table == target)

    @property
    def names_offsets(self) -> bool:
        """Whether its rows are one for each record, and say which: not so where their columns were added later."""
        named = not self.rows or any(count.topic_partition is not None for count in self.rows)
        return named and not self.has_transform


@dataclass(frozen=True, slots=True)
class Coverage:
    """What was proved of a group.

    :param partitions: the number of partitions with a position
    :param batches: the number of committed batches
    :param records: the number of records that these loaded, dead letters among them, as far as a transform let it be
        known
    :param rows: the number of rows that they left in the target; where that could not be checked, as the history has it
    :param dead_letters: the number of dead-lettered records
    :param gaps: the number of offsets that were skipped by decision
    :param open_batch: the batch that is planned or staged, and proves nothing yet
    :param output_checked: False where the rows of the target do not say which batch they are of, and were not looked at
    :param reread: the number of records in Kafka that were compared with the target; None where Kafka was not read
    :param rows_after: the number of rows, at most, of offsets that are not before the positions, because a rewind moved
        these back and left the rows: the next load duplicates them
    :param by_number: the number of batches of whose rows only the number was compared, as after a transform
    :param published: batches of the group that a target which commits externally has, and that are not committed in the
        state tables; their rows are not counted
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
    rows_after: int = 0
    by_number: int = 0
    published: list[int] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return the numbers in words, for the log."""
        numbers = (
            (self.partitions, "partition", ""),
            (self.batches, "committed batch", "committed batches"),
            (self.records, "record", ""),
            # Of rows that were not checked, later ones may have replaced some.
            (self.rows, "row", "") if self.output_checked else (self.rows, "row written", "rows written"),
            (self.dead_letters, "dead letter", ""),
            (self.gaps, "skipped offset", ""),
        )
        texts = [count(number, noun, plural) for number, noun, plural in numbers]
        if self.reread is not None:
            texts.append(f"{count(self.reread, 'record')} read again from Kafka")
        if self.by_number:
            texts.append(
                f"of {count(self.by_number, 'batch', 'batches')} only the number of rows was compared, because a "
                "transform or missing columns _kafka_… hide which records they are of"
            )
        if self.rows_after:
            texts.append(
                f"{count(self.rows_after, 'row')} not before the positions, which a rewind moved back: the next load "
                "duplicates them, unless 'rewind --to-current --replace' removes them before"
            )
        if self.open_batch is not None:
            texts.append(f"batch {self.open_batch} is open")
        if self.published:
            batches = f"batch{'es' if len(self.published) > 1 else ''} {', '.join(map(str, self.published))}"
            texts.append(f"the target has the rows of {batches} already, which the load commits, or its next run")
        return ", ".join(texts)


@dataclass(frozen=True, slots=True)
class Span(OfPartition):
    """Offsets of a partition that batches without a transform loaded: each of their records left a row or a dead
    letter.

    :param replays: the later batches that replaced rows or dead letters of some of the records
    """

    start: int
    end: int
    first_batch: int
    last_batch: int
    replays: tuple[int, ...] = ()

    def without(self, start: int, end: int) -> Iterator[Span]:
        """Return what is left of it when another batch replaced the output of the offsets from `start` to `end`."""
        return (
            replace(self, start=first, end=last) for first, last in subtract([(self.start, self.end)], [(start, end)])
        )

    def replaced_in_part(self, batch_id: int, start: int, end: int) -> Span:
        """Return it when another batch wrote rows of some of the offsets from `start` to `end`, in the place of earlier
        output.
        """
        return replace(self, replays=(*self.replays, batch_id)) if max(start, self.start) < min(end, self.end) else self

    def slice_within(self, beginning: int, end: int) -> Slice | None:
        """Return what to read of the log to see the records that the batches loaded; None where the log has none of
        them.

        :param beginning: of the log: what is before it cannot be read any more
        :param end: of the log
        """
        first, last = max(self.start, beginning), min(self.end, end)
        return Slice(0, self.topic, self.partition, first, last) if first < last else None


MOST_VIOLATIONS = 1_000
"""How many violations are kept: a target that lost its rows has one for each partition of each batch."""


@dataclass(slots=True)
class Findings:
    """What the history, the positions and the counted rows of the target show.

    :param violations: the first ones, in the order of the history
    :param count: of all violations; 0 where everything is as it has to be
    :param spans: what can be compared with Kafka record by record
    :param uncommitted: the violations among them that are rows of batches which are not committed, by batch
    """

    violations: list[Violation] = field(default_factory=list)
    count: int = 0
    partitions: int = 0
    batches: int = 0
    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    gaps: int = 0
    rows_after: int = 0
    by_number: int = 0
    open_batch: int | None = None
    spans: list[Span] = field(default_factory=list)
    uncommitted: dict[int, Violation] = field(default_factory=dict)

    def add(self, violation: Violation) -> None:
        """Count a violation, and keep it if it is one of the first."""
        self.count += 1
        # Those that may be left out take no place of others.
        if len(self.violations) - len(self.uncommitted) < MOST_VIOLATIONS:
            self.violations.append(violation)

    def add_violation(
        self, text: str, tp: TopicPartition | None = None, offset: int | None = None, batch_id: int | None = None
    ) -> Violation:
        """Add a violation, and return it; its text begins with the partition."""
        topic, partition = tp or (None, None)
        violation = Violation(f"{tp}: {text}" if tp else text, topic, partition, offset, batch_id)
        self.add(violation)
        return violation

    def leave_out(self, published: Collection[int]) -> None:
        """Leave out the violations that are rows of some batches."""
        left_out = {violation for batch_id, violation in self.uncommitted.items() if batch_id in published}
        self.violations = [violation for violation in self.violations if violation not in left_out]
        self.count -= len(left_out)
