"""Offsets that a rewind skipped, which no load has loaded and no gap in the history names. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_kafka_offsets.core.log_identity import is_other_topic
from airflow_kafka_offsets.core.offsets import Gap, TopicPartition
from airflow_kafka_offsets.core.spans import Span, merge, subtract
from airflow_kafka_offsets.verification.facts import BatchRecord
from airflow_kafka_offsets.verification.position_moves import PositionMove


class UnrecordedGaps:
    """Follows the history of a group batch by batch, and holds what loads left behind of each partition."""

    def __init__(self) -> None:
        # With the id of the topic. Also of partitions whose position was removed: what was loaded of them is still there.
        self._loaded: dict[TopicPartition, tuple[str | None, list[Span]]] = {}

    def find(self, move: PositionMove, gaps: Sequence[Gap]) -> list[Span]:
        """Return the offsets that a rewind skips, and that were neither loaded nor recorded as a gap.

        :param gaps: that the rewind recorded
        """
        tp = move.topic_partition
        if move.begins or move.removed:
            return []
        recorded = [(gap.start, gap.end) for gap in gaps if (gap.topic, gap.partition) == tp]
        _, loaded = self._loaded.get(tp, (None, []))
        return subtract(merge([(move.start, move.end)]), [*recorded, *loaded])

    def follow(self, batch: BatchRecord) -> None:
        """Note what a committed batch loaded or removed; a replay has loaded again what it removed."""
        if batch.kind == "replay":
            return
        for loaded in batch.ranges:
            range_, tp = loaded.range, loaded.range.topic_partition
            topic_id, spans = self._loaded.get(tp, (range_.topic_id, []))
            if is_other_topic(topic_id, range_.topic_id):
                spans = []
            if batch.kind == "load":
                spans = merge([*spans, (range_.start, range_.end)])
            elif loaded.replaced is not None:
                spans = subtract(spans, [loaded.replaced])
            self._loaded[tp] = (range_.topic_id or topic_id, spans)
