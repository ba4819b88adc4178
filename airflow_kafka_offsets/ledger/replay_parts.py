"""The parts of a replay that were given up: which of them nobody planned again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.offsets import TopicPartition
from airflow_kafka_offsets.spans import Span, intersect


def missing_parts(planned: Iterable[Batch], given_up: Iterable[Batch]) -> list[Batch]:
    """The parts whose offsets are in no other one.

    A part that was planned anew, without what had expired, is among those that were given up, and so may its successor be.

    :param planned: the parts that are open or committed
    :param given_up: in the order of their ids
    :return: in the order of their ids
    """
    covered = [one for batch in planned for one in _offsets(batch)]
    missing: list[Batch] = []
    for batch in sorted(given_up, key=lambda batch: batch.batch_id, reverse=True):
        mine = list(_offsets(batch))
        if not any(tp == other and intersect(span, planned_for) for tp, span in mine for other, planned_for in covered):
            missing.append(batch)
            covered += mine
    return missing[::-1]


def _offsets(batch: Batch) -> Iterator[tuple[TopicPartition, Span]]:
    """What a part was planned for, gaps included."""
    yield from ((one.topic_partition, (one.start, one.end)) for one in batch.ranges)
    yield from ((TopicPartition(gap.topic, gap.partition), (gap.start, gap.end)) for gap in batch.gaps)
