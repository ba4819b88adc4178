"""Replays that appended to a group's own table what its loads load too: they may where nothing was loaded yet. Pure."""

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
    """Follows the committed batches of a group that are of one table.

    That offsets are loaded again after a rewind, or appended by two replays, was asked for; that a replay appends what a load
    loads was not.

    :param found: where violations go
    :param target: the table's name, for the words of a violation
    """

    def __init__(self, found: Findings, target: str) -> None:
        self._found = found
        self._target = target
        self._partitions: dict[TopicPartition, _Partition] = {}

    def follow(self, batch: BatchRecord) -> None:
        """Note what a batch put into the table, and what it took out."""
        for loaded in batch.ranges:
            one, tp = loaded.one, loaded.one.topic_partition
            there = self._partitions.get(tp)
            if there is not None and is_other_topic(there.topic_id, one.topic_id):
                self._compare(tp, there)
                there = None
            if there is None:
                there = self._partitions[tp] = _Partition(one.topic_id)
            there.topic_id = one.topic_id or there.topic_id
            if loaded.replaced is not None:
                cut = [loaded.replaced]
                there.loaded = subtract(there.loaded, cut)
                there.appended = [(piece, by) for span, by in there.appended for piece in subtract([span], cut)]
            if batch.kind not in ("load", "replay") or one.end <= one.start or loaded.records == 0:
                continue
            if batch.kind == "replay" and loaded.replaced is None:
                there.appended.append(((one.start, one.end), batch.batch_id))
            else:
                there.loaded = merge([*there.loaded, (one.start, one.end)])

    def finish(self) -> None:
        """Compare what is there: what was replaced meanwhile is not."""
        for tp, there in sorted(self._partitions.items()):
            self._compare(tp, there)

    def _compare(self, tp: TopicPartition, there: _Partition) -> None:
        for appended, batch_id in there.appended:
            for loaded in there.loaded:
                common = intersect(appended, loaded)
                if common is not None:
                    start, end = common
                    self._found.violated(
                        f"offsets {start}..{end} were appended to table {self._target!r} by batch "
                        f"{batch_id}, a replay, and loaded by the group itself: their records are there twice. Replay them "
                        "with replace=True",
                        tp,
                        start,
                        batch_id,
                    )
