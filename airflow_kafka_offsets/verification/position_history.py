"""The history of each partition, followed batch by batch. Pure.

`PositionHistories` says whether each move of a position starts where the one before ended, and ends at the stored
position; `LoadedOffsets` whether a rewind recorded what it skipped of the rest, and no replay appended what loads load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from airflow_kafka_offsets.core.log_identity import is_other_topic
from airflow_kafka_offsets.core.offsets import OffsetRange, Position, TopicPartition, intersect, merge, subtract
from airflow_kafka_offsets.verification.facts import CONTINUED, BatchFacts, Findings, LoadedRange, Span


@dataclass(slots=True)
class _PositionHistory:
    """The history of a partition so far.

    :param at: where its position should be
    :param batch_id: the batch that moved it there
    :param highest: the highest offset of a row
    :param rows_after: the rows of offsets that are not before the stored position
    :param spans: the offsets that can be read again; the last span may still grow
    """

    topic_id: str | None
    at: int
    batch_id: int
    highest: int = -1
    rows_after: int = 0
    spans: list[Span] = field(default_factory=list)

    def note_output(self, batch: BatchFacts, loaded: LoadedRange, wrote_rows: bool) -> None:
        """Note which offsets can be read again after a batch."""
        range_ = loaded.range
        if batch.replays_dead_letters:
            if wrote_rows and not is_other_topic(self.topic_id, range_.topic_id):
                self._replace(batch.batch_id, (range_.start, range_.end), in_part=batch.names_offsets)
            return
        if loaded.replaced is not None:
            # The records of a span of time are among its rows; the others are still those of the earlier batches.
            self._replace(batch.batch_id, loaded.replaced, in_part=batch.takes_span and batch.names_offsets)
        if wrote_rows and batch.names_offsets and not batch.takes_span and range_.start < range_.end:
            self._extend(batch, range_)

    def _replace(self, batch_id: int, replaced: tuple[int, int], *, in_part: bool) -> None:
        """Note that a batch replaced all output of some offsets, or wrote some of it anew."""
        if in_part:
            self.spans = [span.replaced_in_part(batch_id, *replaced) for span in self.spans]
        else:
            self.spans = [piece for span in self.spans for piece in span.without(*replaced)]

    def _extend(self, batch: BatchFacts, range_: OffsetRange) -> None:
        last, first_batch = self.spans[-1] if self.spans else None, batch.compacted_from or batch.batch_id
        if last is not None and last.end == range_.start and last.last_batch < first_batch:
            self.spans[-1] = replace(last, end=range_.end, last_batch=batch.batch_id)
        else:
            self.spans.append(Span(*range_.topic_partition, range_.start, range_.end, first_batch, batch.batch_id))


@dataclass(slots=True)
class PositionHistories:
    """The histories of all partitions, followed move by move.

    :param target: the target's name, for violations
    :param positions: the stored positions of the group
    """

    findings: Findings
    target: str
    positions: Mapping[TopicPartition, Position]
    _histories: dict[TopicPartition, _PositionHistory] = field(default_factory=dict, init=False)

    def follow(self, batch: BatchFacts) -> None:
        """Check that the moves that a committed batch makes in partitions start where the ones before ended, and note
        what it left in the target, for the comparison with Kafka.
        """
        for loaded in () if batch.is_replay else batch.ranges:
            self._follow(batch, loaded.range)
        wrote_rows = batch.wrote_into(self.target)
        for loaded in batch.ranges:
            if (history := self._histories.get(loaded.range.topic_partition)) is not None:
                history.note_output(batch, loaded, wrote_rows)
        for count in batch.rows if wrote_rows else ():
            tp = count.topic_partition
            if tp is None or count.last is None or (history := self._histories.get(tp)) is None:
                continue
            if tp in self.positions:
                history.rows_after += count.rows_from(self.positions[tp].offset)
            # Dead letters after a position that was moved back may be replayed: their records will be loaded again.
            if not batch.replays_dead_letters:
                history.highest = max(history.highest, count.last)

    def _follow(self, batch: BatchFacts, range_: OffsetRange) -> None:
        tp = range_.topic_partition
        if not batch.is_rewind:
            for gap in sorted(batch.gaps, key=lambda gap: gap.start):
                if gap.topic_partition == tp:
                    skipped = replace(range_, start=gap.start, end=gap.end)
                    self._move(batch, skipped, f"skips offsets {gap.start}..{gap.end}")
        self._move(batch, range_, f"begins at offset {range_.start}")
        if range_.how == "removed":
            del self._histories[tp]

    def _move(self, batch: BatchFacts, move: OffsetRange, does: str) -> None:
        tp, begins = move.topic_partition, move.how not in CONTINUED
        history = self._histories.get(tp)
        if history is None or (begins and is_other_topic(history.topic_id, move.topic_id)):
            # A recreated topic begins a new history, once its old position was deleted on purpose.
            history = self._histories[tp] = _PositionHistory(move.topic_id, move.start, batch.batch_id)
            if not begins:
                wrong = (
                    f"the history begins with batch {batch.batch_id} at offset {move.start}, which was a stored "
                    "position before: the batches that moved it there were removed"
                )
                self.findings.add_violation(wrong, tp, move.start, batch.batch_id)
        else:
            self._check_start(history, batch, move, does)
        if not batch.is_rewind and move.end < move.start:
            wrong = f"batch {batch.batch_id} goes from offset {move.start} back to {move.end}"
            self.findings.add_violation(wrong, tp, move.end, batch.batch_id)
        if batch.is_rewind and move.end < history.at:
            # The rewind decided about the rows after the position: they stay, or were removed.
            history.highest = -1
        history.at, history.batch_id = move.end, batch.batch_id
        history.topic_id = move.topic_id or history.topic_id

    def _check_start(self, history: _PositionHistory, batch: BatchFacts, move: OffsetRange, does: str) -> None:
        """Check that a move starts where the one before ended."""
        if is_other_topic(history.topic_id, move.topic_id):
            offset = move.start
            wrong = (
                f"batch {batch.batch_id} carries on at offset {move.start} in topic id {move.topic_id}, where batch "
                f"{history.batch_id} stopped in topic id {history.topic_id}: another topic of the same name"
            )
        elif move.start != history.at:
            offset, last = sorted((move.start, history.at))
            why = "are in no batch and in no recorded gap" if offset == history.at else "were loaded already"
            wrong = (
                f"batch {batch.batch_id} {does}, but the history is at offset {history.at} with batch "
                f"{history.batch_id}: offsets {offset}..{last} {why}"
            )
        else:
            return
        self.findings.add_violation(wrong, move.topic_partition, offset, batch.batch_id)

    def finish(self) -> None:
        """Compare the ends of the histories with the stored positions."""
        for tp in sorted(self._histories.keys() | self.positions.keys()):
            history, position = self._histories.get(tp), self.positions.get(tp)
            if history is not None and position is not None:
                self._check_position(tp, history, position)
                self.findings.partitions += 1
                self.findings.rows_after += history.rows_after
                self.findings.spans += history.spans
            elif position is not None:
                wrong = (
                    f"position {position.offset} is stored, but no committed batch ever moved it there: the history "
                    "was removed, or the position was stored without this package"
                )
                self.findings.add_violation(wrong, tp, position.offset)
            elif history is not None:
                wrong = (
                    f"the history ends at offset {history.at} with batch {history.batch_id}, but no position is "
                    "stored: the next load would begin at its start, and load records again. Restore the position"
                )
                self.findings.add_violation(wrong, tp, history.at, history.batch_id)

    def _check_position(self, tp: TopicPartition, history: _PositionHistory, position: Position) -> None:
        offset, wrong = min(position.offset, history.at), ""
        if position.offset != history.at:
            effect = "before it would be loaded again" if offset < history.at else "in between were never loaded"
            wrong = (
                f"position {position.offset} is stored, but the history ends at offset {history.at} with batch "
                f"{history.batch_id}: the records {effect}. The position was changed without this package"
            )
        elif is_other_topic(position.topic_id, history.topic_id):
            wrong = f"the position belongs to topic id {position.topic_id}, the history to topic id {history.topic_id}"
        if wrong:
            self.findings.add_violation(wrong, tp, offset, history.batch_id)
        if history.highest >= position.offset:
            wrong = (
                f"table {self.target!r} holds a row of offset {history.highest}, which is not before position "
                f"{position.offset}: its record would be loaded again"
            )
            self.findings.add_violation(wrong, tp, history.highest)


@dataclass(slots=True)
class _Loaded:
    """What was loaded of a partition.

    :param spans: by loads, and by replays that replaced what was there
    :param appended: by other replays, each with its batch
    """

    topic_id: str | None
    spans: list[tuple[int, int]] = field(default_factory=list)
    appended: list[tuple[tuple[int, int], int]] = field(default_factory=list)

    def remove(self, removed: tuple[int, int] | None) -> None:
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

    def follow(self, batch: BatchFacts) -> None:
        """Note what a committed batch loaded, and what it removed."""
        if batch.replays_dead_letters:
            return
        in_target = batch.target_table in (None, self.target) and not self.replaces_rows
        for loaded in batch.ranges:
            if batch.is_rewind:
                self._check_gaps(batch, loaded.range)
            if not batch.is_replay:  # a replay has loaded again what it removed
                self._note(self._anywhere, batch, loaded, wrote=batch.kind == "load")
            if in_target:
                wrote = batch.kind in ("load", "replay") and loaded.records != 0
                self._note(self._in_target, batch, loaded, wrote=wrote)

    def _note(
        self, partitions: dict[TopicPartition, _Loaded], batch: BatchFacts, loaded: LoadedRange, *, wrote: bool
    ) -> None:
        partition = self._of_topic(partitions, loaded.range)
        if batch.takes_span and loaded.replaced is not None:
            # It has written again what it removed. Which offsets of the range these are is not known here.
            return
        partition.remove(loaded.replaced)
        span = (loaded.range.start, loaded.range.end)
        if wrote and batch.is_replay and loaded.replaced is None:
            partition.appended.append((span, batch.batch_id))
        elif wrote:
            partition.spans = merge([*partition.spans, span])

    def _check_gaps(self, batch: BatchFacts, range_: OffsetRange) -> None:
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
