"""The history of each partition: whether each move of its position starts where the one before ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from airflow_kafka_offsets.core.log_identity import is_other_topic
from airflow_kafka_offsets.core.offsets import OffsetRange, Position, TopicPartition
from airflow_kafka_offsets.verification.facts import CONTINUED, BatchFacts, Findings, LoadedRange, Span


@dataclass(slots=True)
class _PositionHistory:
    """The history of a partition so far.

    :param at: where its position should be
    :param batch_id: the batch that moved it there
    :param highest: the highest offset of a row
    :param spans: the offsets that can be read again; the last span may still grow
    """

    topic_id: str | None
    at: int
    batch_id: int
    highest: int = -1
    spans: list[Span] = field(default_factory=list)

    def note_output(self, batch: BatchFacts, loaded: LoadedRange, wrote_rows: bool) -> None:
        """Note which offsets can be read again after a batch."""
        if loaded.replaced is not None and batch.takes_span and batch.names_offsets:
            # The records that it replaced are among its rows; the others are still those of the earlier batches.
            self.spans = [span.replaced_in_part(batch.batch_id, *loaded.replaced) for span in self.spans]
        elif loaded.replaced is not None:
            self.spans = [piece for span in self.spans for piece in span.without(*loaded.replaced)]
        if wrote_rows and batch.names_offsets and not batch.takes_span and loaded.range.start < loaded.range.end:
            self._extend(batch.batch_id, loaded.range)

    def note_dead_letters(self, batch: BatchFacts, range_: OffsetRange) -> None:
        """Note that some offsets of a range are rows of a batch that replayed dead letters."""
        if is_other_topic(self.topic_id, range_.topic_id):
            return
        if batch.names_offsets:
            self.spans = [span.replaced_in_part(batch.batch_id, range_.start, range_.end) for span in self.spans]
        else:
            self.spans = [piece for span in self.spans for piece in span.without(range_.start, range_.end)]

    def _extend(self, batch_id: int, range_: OffsetRange) -> None:
        last = self.spans[-1] if self.spans else None
        if last is not None and last.end == range_.start and last.last_batch < batch_id:
            self.spans[-1] = replace(last, end=range_.end, last_batch=batch_id)
        else:
            self.spans.append(Span(*range_.topic_partition, range_.start, range_.end, batch_id, batch_id))


@dataclass(slots=True)
class PositionHistories:
    """The histories of all partitions, followed move by move.

    :param target: the target's name, for violations
    """

    findings: Findings
    target: str
    _histories: dict[TopicPartition, _PositionHistory] = field(default_factory=dict, init=False)

    def follow(self, batch: BatchFacts, range_: OffsetRange) -> None:
        """Check that the moves that a committed batch makes in a partition start where the one before ended."""
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
            # A recreated topic begins a history of its own, once its old position was deleted on purpose.
            history = self._histories[tp] = _PositionHistory(move.topic_id, move.start, batch.batch_id)
            if not begins:
                wrong = (
                    f"the history begins with batch {batch.batch_id} at offset {move.start}, which was a stored "
                    "position by then: the batches that moved it there were removed"
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

    def note_output(self, batch: BatchFacts, wrote_rows: bool) -> None:
        """Note what a committed batch removed from the target, and what it left there, for the comparison with Kafka.

        :param wrote_rows: whether it wrote rows into the target
        """
        for loaded in batch.ranges:
            if (history := self._histories.get(loaded.range.topic_partition)) is None:
                continue
            if not batch.replays_dead_letters:
                history.note_output(batch, loaded, wrote_rows)
            elif wrote_rows:
                history.note_dead_letters(batch, loaded.range)
        # Dead letters after a position that was moved back may be replayed: their records will be loaded again.
        for count in batch.rows if wrote_rows and not batch.replays_dead_letters else ():
            history = self._histories.get(count.topic_partition) if count.topic_partition is not None else None
            if history is not None and count.last is not None:
                history.highest = max(history.highest, count.last)

    def finish(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Compare the ends of the histories with the stored positions."""
        for tp in sorted(self._histories.keys() | positions.keys()):
            history, position = self._histories.get(tp), positions.get(tp)
            if history is not None and position is not None:
                self._check_position(tp, history, position)
                self.findings.partitions += 1
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
                    "stored: the next load would begin anew, and load records again. Put the position back"
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
