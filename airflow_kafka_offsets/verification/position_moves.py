"""The history of a group as moves of its positions, in the order in which they were committed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.verification.facts import BatchRecord


@dataclass(frozen=True, slots=True)
class PositionMove:
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


# Starts that carry on from a stored position; the others choose where a partition begins.
_CONTINUED = frozenset({"stored", "skipped-gap", "rewind", "removed"})

REWINDS = frozenset({"rewind", "undo", "import"})


def as_committed(batches: Iterable[BatchRecord]) -> Iterator[BatchRecord]:
    """Batches in the order in which they were committed, as far as that matters.

    What moves positions is committed in the order of the ids. A replay is planned beside that: it may be committed after
    batches with higher ids, and matters to these where it removed output of theirs.

    :param batches: in the order of their ids
    """
    late: list[tuple[BatchRecord, set[int]]] = []
    for batch in batches:
        if batch.after:
            late.append((batch, set(batch.after)))
            continue
        done = [batch]
        for one in done:  # grows meanwhile: a replay may have been waited for by another one
            yield one
            for waiting, others in late:
                others.discard(one.batch_id)
                if not others:
                    done.append(waiting)
            late = [(waiting, others) for waiting, others in late if others]
    yield from (batch for batch, _ in late)


def moves(batch: BatchRecord) -> Iterator[PositionMove]:
    """The moves that a committed batch makes; a replay makes none."""
    if batch.kind == "replay":
        return
    for loaded in batch.ranges:
        one = loaded.one
        begins = one.how not in _CONTINUED
        if batch.kind in REWINDS:
            yield PositionMove(
                batch.batch_id,
                one.topic_partition,
                one.topic_id,
                one.start,
                one.end,
                begins,
                jump=True,
                removed=one.how == "removed",
            )
            continue
        for gap in sorted(batch.gaps, key=lambda gap: gap.start):
            if (gap.topic, gap.partition) == one.topic_partition:
                yield PositionMove(
                    batch.batch_id, one.topic_partition, one.topic_id, gap.start, gap.end, begins, gap=True
                )
        yield PositionMove(batch.batch_id, one.topic_partition, one.topic_id, one.start, one.end, begins)
