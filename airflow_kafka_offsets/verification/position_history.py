"""The history of each partition as a chain: whether each move of its position starts where the one before ended. Pure."""

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
    """The history of a partition so far: where its position should stand.

    :param highest: the highest offset of a row
    :param spans: of the offsets that can be read again; the last one is open where the position stands at its end
    """

    topic_id: str | None
    at: int
    batch_id: int
    highest: int = -1
    spans: list[Span] = field(default_factory=list)


class PositionHistories:
    """The histories of all partitions; told move by move.

    :param found: where violations go, and what was proved
    :param target: the target's name, for the words of a violation
    """

    def __init__(self, found: Findings, target: str) -> None:
        self._found = found
        self._target = target
        self._chains: dict[TopicPartition, _PositionHistory] = {}

    def follow(self, move: PositionMove) -> None:
        """Make sure that a move starts where the one before ended."""
        tp = move.topic_partition
        chain = self._chains.get(tp)
        another = chain is not None and is_other_topic(chain.topic_id, move.topic_id)
        if chain is None or (another and move.begins):
            # A topic that was made anew begins a history of its own, once its old position was deleted on purpose.
            chain = self._chains[tp] = _PositionHistory(move.topic_id, move.start, move.batch_id)
            if not move.begins:
                self._found.violated(
                    f"the history begins with batch {move.batch_id} at offset {move.start}, which was a stored position by "
                    "then: the batches that moved it there were removed",
                    tp,
                    move.start,
                    move.batch_id,
                )
        elif another:
            self._found.violated(
                f"batch {move.batch_id} carries on at offset {move.start} in topic id {move.topic_id}, where batch "
                f"{chain.batch_id} stopped in topic id {chain.topic_id}: another topic of the same name",
                tp,
                move.start,
                move.batch_id,
            )
        elif move.start != chain.at:
            self._found.violated(_break(chain, move), tp, min(move.start, chain.at), move.batch_id)
        if move.removed:
            del self._chains[tp]
            return
        if move.jump and move.end < chain.at:
            # Rows behind the position are there by decision, or were removed.
            chain.highest = -1
        elif move.end < move.start and not move.jump:
            self._found.violated(
                f"batch {move.batch_id} goes from offset {move.start} back to {move.end}", tp, move.end, move.batch_id
            )
        chain.at, chain.batch_id = move.end, move.batch_id
        chain.topic_id = move.topic_id or chain.topic_id

    def cut(self, loaded: LoadedRange) -> None:
        """Leave out of what is compared with Kafka what a batch took out of the target."""
        chain = self._chains.get(loaded.one.topic_partition)
        if loaded.replaced is not None and chain is not None:
            chain.spans = [piece for span in chain.spans for piece in span.without(*loaded.replaced)]

    def remember(self, batch: BatchRecord, loaded: LoadedRange) -> None:
        """Note a range for comparing with Kafka."""
        one = loaded.one
        if not batch.names_offsets or one.end <= one.start or one.topic_partition not in self._chains:
            return
        spans = self._chains[one.topic_partition].spans
        last = spans[-1] if spans else None
        if last is not None and last.end == one.start and last.last_batch < batch.batch_id:
            spans[-1] = replace(last, end=one.end, last_batch=batch.batch_id)
        else:
            spans.append(Span(*one.topic_partition, one.start, one.end, batch.batch_id, batch.batch_id))

    def note_highest(self, batch: BatchRecord) -> None:
        """Remember how far the rows of a batch go, which say where they are from."""
        for tally in batch.rows:
            tp = tally.topic_partition
            if tp is not None and tp in self._chains and tally.last is not None:
                self._chains[tp].highest = max(self._chains[tp].highest, tally.last)

    def finish(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Compare the ends of the histories with the stored positions."""
        for tp in sorted(self._chains.keys() | positions.keys()):
            chain, position = self._chains.get(tp), positions.get(tp)
            if chain is not None and position is not None:
                self._check_position(tp, chain, position)
                self._found.partitions += 1
                self._found.spans += chain.spans
            elif position is not None:
                self._found.violated(
                    f"position {position.offset} is stored, but no committed batch ever moved it there: the history was "
                    "removed, or the position was stored without this package",
                    tp,
                    position.offset,
                )
            elif chain is not None:
                self._found.violated(
                    f"the history ends at offset {chain.at} with batch {chain.batch_id}, but no position is stored: the next "
                    "load would begin anew, and load records again. Put the position back",
                    tp,
                    chain.at,
                    chain.batch_id,
                )

    def _check_position(self, tp: TopicPartition, chain: _PositionHistory, position: Position) -> None:
        if position.offset != chain.at:
            effect = (
                "the records before it would be loaded again"
                if position.offset < chain.at
                else "the records in between were never loaded"
            )
            self._found.violated(
                f"position {position.offset} is stored, but the history ends at offset {chain.at} with batch "
                f"{chain.batch_id}: {effect}. The position was changed without this package",
                tp,
                min(position.offset, chain.at),
                chain.batch_id,
            )
        elif is_other_topic(position.topic_id, chain.topic_id):
            self._found.violated(
                f"the position belongs to topic id {position.topic_id}, the history to topic id {chain.topic_id}",
                tp,
                position.offset,
                chain.batch_id,
            )
        if chain.highest >= position.offset:
            self._found.violated(
                f"table {self._target!r} holds a row of offset {chain.highest}, which position {position.offset} has not "
                "passed: its record would be loaded again",
                tp,
                chain.highest,
            )


def _break(chain: _PositionHistory, move: PositionMove) -> str:
    before = f"batch {move.batch_id} {'skips offsets' if move.gap else 'begins at offset'} {move.start}"
    if move.gap:
        before += f"..{move.end}"
    told = f"{before}, but the history had come to offset {chain.at} with batch {chain.batch_id}"
    if move.start > chain.at:
        return f"{told}: offsets {chain.at}..{move.start} are in no batch and in no recorded gap"
    return f"{told}: offsets {move.start}..{chain.at} were loaded already"
