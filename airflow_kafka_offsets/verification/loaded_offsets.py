"""What the batches of a group loaded of each partition. A rewind records what it skips of the rest, and a replay does
not append what a load loads. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_kafka_offsets.core.log_identity import is_other_topic
from airflow_kafka_offsets.core.offsets import OffsetRange, Span, TopicPartition, intersect, merge, subtract
from airflow_kafka_offsets.verification.facts import CONTINUED, BatchFacts, Findings


@dataclass(slots=True)
class _Loaded:
    """What was loaded of a partition.

    :param spans: by loads, and by replays that replaced what was there
    :param appended: by other replays, each with its batch
    """

    topic_id: str | None
    spans: list[Span] = field(default_factory=list)
    appended: list[tuple[Span, int]] = field(default_factory=list)

    def remove(self, removed: Span | None) -> None:
        """Leave out what a batch removed."""
        if removed is not None:
            self.spans = subtract(self.spans, [removed])
            self.appended = [
                (piece, batch_id) for span, batch_id in self.appended for piece in subtract([span], [removed])
            ]


@dataclass(slots=True)
class LoadedOffsets:
    """Follows the history of a group batch by batch.

    :param target: the target's name
    :param replaces_rows: whether a record that is written again replaces its row: no replay duplicates any then
    """

    findings: Findings
    target: str
    replaces_rows: bool
    # Also of partitions whose position was removed: what was loaded of them is still there.
    _anywhere: dict[TopicPartition, _Loaded] = field(default_factory=dict, init=False)
    _in_target: dict[TopicPartition, _Loaded] = field(default_factory=dict, init=False)

    def check_gaps(self, batch: BatchFacts, range_: OffsetRange) -> None:
        """Check that what a rewind skips of a partition was loaded, or is a gap that it recorded."""
        if range_.how == "removed" or range_.how not in CONTINUED:
            return
        tp = range_.topic_partition
        recorded = [(gap.start, gap.end) for gap in batch.gaps if gap.topic_partition == tp]
        loaded = self._anywhere[tp].spans if tp in self._anywhere else []
        for start, end in subtract(merge([(range_.start, range_.end)]), [*recorded, *loaded]):
            wrong = (
                f"batch {batch.batch_id} moved the position from offset {range_.start} to {range_.end}, and offsets "
                f"{start}..{end}, which were never loaded, are in no recorded gap: the gap was removed"
            )
            self.findings.add_violation(wrong, tp, start, batch.batch_id)

    def follow(self, batch: BatchFacts) -> None:
        """Note what a committed batch loaded, and what it removed."""
        in_target = batch.target_table in (None, self.target) and not self.replaces_rows
        is_replay = batch.kind == "replay"
        for loaded in batch.ranges:
            span = (loaded.range.start, loaded.range.end)
            for partitions, concerned, wrote in (
                (self._anywhere, not is_replay, batch.kind == "load"),  # a replay has loaded again what it removed
                (self._in_target, in_target, batch.kind in ("load", "replay") and loaded.records != 0),
            ):
                if not concerned:
                    continue
                partition = self._of_topic(partitions, loaded.range)
                if batch.takes_span and loaded.replaced is not None:
                    # It has written again what it removed. Which offsets of the range these are is not known here.
                    continue
                partition.remove(loaded.replaced)
                if wrote and is_replay and loaded.replaced is None:
                    partition.appended.append((span, batch.batch_id))
                elif wrote:
                    partition.spans = merge([*partition.spans, span])

    def finish(self) -> None:
        """Check what the target holds at the end of the history."""
        for tp, loaded in sorted(self._in_target.items()):
            self._check_appended(tp, loaded)

    def _of_topic(self, partitions: dict[TopicPartition, _Loaded], range_: OffsetRange) -> _Loaded:
        """Return what was loaded of the partition of a range; nothing yet where its topic was recreated."""
        tp = range_.topic_partition
        loaded = partitions.setdefault(tp, _Loaded(range_.topic_id))
        if is_other_topic(loaded.topic_id, range_.topic_id):
            self._check_appended(tp, loaded)
            loaded = partitions[tp] = _Loaded(range_.topic_id)
        loaded.topic_id = range_.topic_id or loaded.topic_id
        return loaded

    def _check_appended(self, tp: TopicPartition, loaded: _Loaded) -> None:
        """Check that no replay appended what loads load: users who ask for duplicates load after a rewind, or append
        twice.
        """
        for appended, batch_id in loaded.appended:
            for start, end in filter(None, (intersect(appended, span) for span in loaded.spans)):
                wrong = (
                    f"offsets {start}..{end} were appended to table {self.target!r} by batch {batch_id}, a replay, and "
                    "loaded by the group itself: their records are duplicated. Replay them with replace=True"
                )
                self.findings.add_violation(wrong, tp, start, batch_id)
