"""What a verification found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from airflow_kafka_offsets.core.offsets import Slice, TopicPartition
from airflow_kafka_offsets.exceptions import Violation


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
