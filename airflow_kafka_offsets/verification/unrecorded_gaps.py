"""What loads left behind of each partition: a rewind may move a position over it without a gap in the history. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_kafka_offsets.core.log_identity import is_other_topic
from airflow_kafka_offsets.core.offsets import Gap, TopicPartition
from airflow_kafka_offsets.core.spans import Span, merge, subtract
from airflow_kafka_offsets.verification.facts import BatchRecord
from airflow_kafka_offsets.verification.position_moves import PositionMove


class UnrecordedGaps:
    """Follows the history of a group batch by batch; holds spans of every partition, and of no batch."""

    def __init__(self) -> None:
        # With the id of the topic. Also of partitions whose position was removed: what was loaded of them is still there.
        self._spans: dict[TopicPartition, tuple[str | None, list[Span]]] = {}

    def never_loaded(self, move: PositionMove, gaps: Sequence[Gap]) -> tuple[Span, ...]:
        """Offsets that a rewind moves a position over, which are neither there nor among its recorded gaps."""
        tp = move.topic_partition
        if move.begins or move.removed or move.end <= move.start:
            return ()
        recorded = [(gap.start, gap.end) for gap in gaps if (gap.topic, gap.partition) == tp]
        _, loaded = self._spans.get(tp, (None, []))
        return tuple(subtract([(move.start, move.end)], [*recorded, *loaded]))

    def follow(self, batch: BatchRecord) -> None:
        """Note what a committed batch loaded, or took back; what a replay takes back it has loaded again."""
        if batch.kind == "replay":
            return
        for loaded in batch.ranges:
            one = loaded.one
            topic_id, spans = self._spans.get(one.topic_partition, (one.topic_id, []))
            if is_other_topic(topic_id, one.topic_id):
                spans = []
            if batch.kind == "load" and one.end > one.start:
                spans = merge([*spans, (one.start, one.end)])
            elif loaded.replaced is not None:
                spans = subtract(spans, [loaded.replaced])
            self._spans[one.topic_partition] = (one.topic_id or topic_id, spans)
