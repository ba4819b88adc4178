"""The results of a verification, as values. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from airflow_kafka_offsets.core.offsets import Slice, TopicPartition
from airflow_kafka_offsets.core.spans import subtract
from airflow_kafka_offsets.exceptions import Violation


@dataclass(frozen=True, slots=True)
class Coverage:
    """What was proved of a group.

    :param partitions: the number of partitions with a position
    :param batches: the number of committed batches
    :param records: the number of records that these loaded, dead letters among them, as far as a transform let it be known
    :param rows: the number of rows that they left in the target; where that could not be checked, as the history has it
    :param dead_letters: the number of dead-lettered records
    :param gaps: the number of offsets that were skipped by decision
    :param open_batch: the batch that is planned or staged, and proves nothing yet
    :param output_checked: False where the rows of the target do not say which batch they are of, and were not looked at
    :param reread: the number of records in Kafka that were compared with the target; None where Kafka was not read
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
        """Return what is left of it when another batch replaced the output of the offsets from `start` to `end`."""
        return (
            replace(self, start=first, end=last) for first, last in subtract([(self.start, self.end)], [(start, end)])
        )

    def slice_within(self, beginning: int, end: int) -> Slice | None:
        """Return what to read of the log to see the records that the batches loaded; None where the log has none of them.

        :param beginning: of the log: what is before it cannot be read any more
        :param end: of the log
        """
        first, last = max(self.start, beginning), min(self.end, end)
        return Slice(0, self.topic, self.partition, first, last) if first < last else None


@dataclass(slots=True)
class Findings:
    """What the history, the positions and the counted rows of the target show.

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

    def add_violation(
        self, text: str, tp: TopicPartition | None = None, offset: int | None = None, batch_id: int | None = None
    ) -> None:
        """Add a violation; its text begins with the partition."""
        topic, partition = tp or (None, None)
        self.violations.append(Violation(f"{tp}: {text}" if tp else text, topic, partition, offset, batch_id))
