"""The history of a group as moves of its positions, in the order in which they were committed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.verification.facts import BatchRecord


@dataclass(frozen=True, slots=True)
class PositionMove:
    """A step in the history of a partition: a batch moves the position from `start` to `end`.

    :param begins: whether the start was chosen, and is not a stored position
    :param gap: whether the offsets were skipped
    :param jump: whether no offset was loaded: a rewind, forward or back
    :param removed: whether no position is left
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


# Starts that continue from a stored position; the others choose where a partition begins.
_CONTINUED = frozenset({"stored", "skipped-gap", "rewind", "removed"})

REWINDS = frozenset({"rewind", "undo", "import"})


def as_committed(batches: Iterable[BatchRecord]) -> Iterator[BatchRecord]:
    """Return batches in the order in which they were committed, as far as that matters.

    Batches that move positions are committed in the order of their ids. A replay may be committed after batches with higher
    ids, and has to follow those whose output it removed.

    :param batches: in the order of their ids
    """
    waiting: list[tuple[BatchRecord, set[int]]] = []
    for batch in batches:
        if batch.after:
            waiting.append((batch, set(batch.after)))
            continue
        ready = [batch]
        for committed in ready:  # grows meanwhile: a replay may be what another one waits for
            yield committed
            for _, others in waiting:
                others.discard(committed.batch_id)
            ready += [replay for replay, others in waiting if not others]
            waiting = [(replay, others) for replay, others in waiting if others]
    yield from (batch for batch, _ in waiting)


def moves(batch: BatchRecord) -> Iterator[PositionMove]:
    """Return the moves that a committed batch makes; a replay makes none."""
    if batch.kind == "replay":
        return
    for loaded in batch.ranges:
        range_, tp = loaded.range, loaded.range.topic_partition
        begins, removed = range_.how not in _CONTINUED, range_.how == "removed"
        move = PositionMove(batch.batch_id, tp, range_.topic_id, range_.start, range_.end, begins, removed=removed)
        if batch.kind in REWINDS:
            yield replace(move, jump=True)
            continue
        for gap in sorted(batch.gaps, key=lambda gap: gap.start):
            if (gap.topic, gap.partition) == tp:
                yield replace(move, start=gap.start, end=gap.end, gap=True)
        yield move
