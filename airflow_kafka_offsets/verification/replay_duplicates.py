"""Replays that appended to a group's table what its loads load too. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_kafka_offsets.core.log_identity import is_other_topic
from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.spans import Span, intersect, merge, subtract
from airflow_kafka_offsets.verification.facts import BatchRecord
from airflow_kafka_offsets.verification.findings import Findings


@dataclass(slots=True)
class _Partition:
    """What the table holds of a partition.

    :param loaded: by loads, and by replays that replaced what was there
    :param appended: by other replays, each with its batch
    """

    topic_id: str | None
    loaded: list[Span] = field(default_factory=list)
    appended: list[tuple[Span, int]] = field(default_factory=list)


class ReplayDuplicates:
    """Follows the committed batches of a group that wrote into one table.

    Users ask for duplicates when they load again after a rewind without replacing, or append by two replays. A replay that
    appends what a load loads is a mistake.

    :param target: the table's name, for violations
    """

    def __init__(self, findings: Findings, target: str) -> None:
        self._findings = findings
        self._target = target
        self._partitions: dict[TopicPartition, _Partition] = {}

    def follow(self, batch: BatchRecord) -> None:
        """Note what a batch wrote into the table, and what it removed."""
        for loaded in batch.ranges:
            range_, tp = loaded.range, loaded.range.topic_partition
            partition = self._partitions.setdefault(tp, _Partition(range_.topic_id))
            if is_other_topic(partition.topic_id, range_.topic_id):
                self._compare(tp, partition)
                partition = self._partitions[tp] = _Partition(range_.topic_id)
            partition.topic_id = range_.topic_id or partition.topic_id
            if loaded.replaced is not None:
                removed = [loaded.replaced]
                partition.loaded = subtract(partition.loaded, removed)
                partition.appended = [
                    (piece, batch_id) for span, batch_id in partition.appended for piece in subtract([span], removed)
                ]
            if batch.kind not in ("load", "replay") or loaded.records == 0:
                continue
            span = (range_.start, range_.end)
            if batch.kind == "replay" and loaded.replaced is None:
                partition.appended.append((span, batch.batch_id))
            else:
                partition.loaded = merge([*partition.loaded, span])

    def finish(self) -> None:
        """Compare what the table holds at the end of the history."""
        for tp, partition in sorted(self._partitions.items()):
            self._compare(tp, partition)

    def _compare(self, tp: TopicPartition, partition: _Partition) -> None:
        for appended, batch_id in partition.appended:
            for loaded in partition.loaded:
                common = intersect(appended, loaded)
                if common is not None:
                    self._findings.add_violation(
                        f"offsets {common[0]}..{common[1]} were appended to table {self._target!r} by batch {batch_id}, a "
                        "replay, and loaded by the group itself: their records are duplicated. Replay them with replace=True",
                        tp,
                        common[0],
                        batch_id,
                    )
