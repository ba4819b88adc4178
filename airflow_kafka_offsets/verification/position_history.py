"""The history of each partition: whether each move of its position starts where the one before ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from airflow_kafka_offsets.core.log_identity import is_other_topic
from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.verification.facts import BatchRecord, LoadedRange
from airflow_kafka_offsets.verification.findings import Findings, Span
from airflow_kafka_offsets.verification.position_moves import PositionMove


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


class PositionHistories:
    """The histories of all partitions, followed move by move.

    :param target: the target's name, for violations
    """

    def __init__(self, findings: Findings, target: str) -> None:
        self._findings = findings
        self._target = target
        self._histories: dict[TopicPartition, _PositionHistory] = {}

    def follow(self, move: PositionMove) -> None:
        """Check that a move starts where the one before ended."""
        tp, add_violation = move.topic_partition, self._findings.add_violation
        history = self._histories.get(tp)
        other_topic = history is not None and is_other_topic(history.topic_id, move.topic_id)
        if history is None or (other_topic and move.begins):
            # A recreated topic begins a history of its own, once its old position was deleted on purpose.
            history = self._histories[tp] = _PositionHistory(move.topic_id, move.start, move.batch_id)
            if not move.begins:
                add_violation(
                    f"the history begins with batch {move.batch_id} at offset {move.start}, which was a stored position by "
                    "then: the batches that moved it there were removed",
                    tp,
                    move.start,
                    move.batch_id,
                )
        elif other_topic:
            add_violation(
                f"batch {move.batch_id} carries on at offset {move.start} in topic id {move.topic_id}, where batch "
                f"{history.batch_id} stopped in topic id {history.topic_id}: another topic of the same name",
                tp,
                move.start,
                move.batch_id,
            )
        elif move.start != history.at:
            add_violation(_describe_break(history, move), tp, min(move.start, history.at), move.batch_id)
        if move.removed:
            del self._histories[tp]
            return
        if move.jump and move.end < history.at:
            # The rewind decided about the rows after the position: they stay, or were removed.
            history.highest = -1
        elif move.end < move.start and not move.jump:
            add_violation(
                f"batch {move.batch_id} goes from offset {move.start} back to {move.end}", tp, move.end, move.batch_id
            )
        history.at, history.batch_id = move.end, move.batch_id
        history.topic_id = move.topic_id or history.topic_id

    def cut(self, loaded: LoadedRange) -> None:
        """Leave out of the comparison with Kafka what a batch removed from the target."""
        history = self._histories.get(loaded.range.topic_partition)
        if loaded.replaced is not None and history is not None:
            history.spans = [piece for span in history.spans for piece in span.without(*loaded.replaced)]

    def remember(self, batch: BatchRecord, loaded: LoadedRange) -> None:
        """Note a range for the comparison with Kafka."""
        range_ = loaded.range
        history = self._histories.get(range_.topic_partition)
        if not batch.names_offsets or range_.end <= range_.start or history is None:
            return
        last = history.spans[-1] if history.spans else None
        if last is not None and last.end == range_.start and last.last_batch < batch.batch_id:
            history.spans[-1] = replace(last, end=range_.end, last_batch=batch.batch_id)
        else:
            history.spans.append(
                Span(*range_.topic_partition, range_.start, range_.end, batch.batch_id, batch.batch_id)
            )

    def note_highest(self, batch: BatchRecord) -> None:
        """Note the highest offsets of a batch's rows."""
        for count in batch.rows:
            history = self._histories.get(count.topic_partition) if count.topic_partition is not None else None
            if history is not None and count.last is not None:
                history.highest = max(history.highest, count.last)

    def finish(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Compare the ends of the histories with the stored positions."""
        for tp in sorted(self._histories.keys() | positions.keys()):
            history, position = self._histories.get(tp), positions.get(tp)
            if history is not None and position is not None:
                self._check_position(tp, history, position)
                self._findings.partitions += 1
                self._findings.spans += history.spans
            elif position is not None:
                self._findings.add_violation(
                    f"position {position.offset} is stored, but no committed batch ever moved it there: the history was "
                    "removed, or the position was stored without this package",
                    tp,
                    position.offset,
                )
            elif history is not None:
                self._findings.add_violation(
                    f"the history ends at offset {history.at} with batch {history.batch_id}, but no position is stored: the "
                    "next load would begin anew, and load records again. Put the position back",
                    tp,
                    history.at,
                    history.batch_id,
                )

    def _check_position(self, tp: TopicPartition, history: _PositionHistory, position: Position) -> None:
        if position.offset != history.at:
            effect = (
                "the records before it would be loaded again"
                if position.offset < history.at
                else "the records in between were never loaded"
            )
            self._findings.add_violation(
                f"position {position.offset} is stored, but the history ends at offset {history.at} with batch "
                f"{history.batch_id}: {effect}. The position was changed without this package",
                tp,
                min(position.offset, history.at),
                history.batch_id,
            )
        elif is_other_topic(position.topic_id, history.topic_id):
            self._findings.add_violation(
                f"the position belongs to topic id {position.topic_id}, the history to topic id {history.topic_id}",
                tp,
                position.offset,
                history.batch_id,
            )
        if history.highest >= position.offset:
            self._findings.add_violation(
                f"table {self._target!r} holds a row of offset {history.highest}, which is not before position "
                f"{position.offset}: its record would be loaded again",
                tp,
                history.highest,
            )


def _describe_break(history: _PositionHistory, move: PositionMove) -> str:
    start = f"skips offsets {move.start}..{move.end}" if move.gap else f"begins at offset {move.start}"
    text = f"batch {move.batch_id} {start}, but the history is at offset {history.at} with batch {history.batch_id}"
    if move.start > history.at:
        return f"{text}: offsets {history.at}..{move.start} are in no batch and in no recorded gap"
    return f"{text}: offsets {move.start}..{history.at} were loaded already"
