"""Whether history, positions, rows and dead letters of a group prove that every record was loaded exactly once. Pure.

A partition's history is a sequence of moves of its position. `moves.py` says which moves a batch makes, so that a batch of a
new kind is a new case there; `chains.py` asks only whether each move starts where the one before ended, and `tallies.py` whether
what batches wrote is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.verification.facts import BatchRecord, Detail
from airflow_kafka_offsets.verification.findings import Findings
from airflow_kafka_offsets.verification.position_history import PositionHistories
from airflow_kafka_offsets.verification.position_moves import REWINDS, PositionMove, as_committed, moves
from airflow_kafka_offsets.verification.replay_duplicates import ReplayDuplicates
from airflow_kafka_offsets.verification.row_counts import RowCounts
from airflow_kafka_offsets.verification.unrecorded_gaps import UnrecordedGaps


def prove(
    batches: Iterable[BatchRecord],
    positions: Mapping[TopicPartition, Position],
    *,
    target: str,
    detail: Detail,
    keyed: bool = False,
) -> Findings:
    """Prove that committed batches cover every partition up to its position without a hole and without an overlap, and that
    exactly their rows and dead letters are there.

    :param batches: every batch of the group, and every unknown one that the target has rows of, in the order of their ids;
        taken one by one
    :param positions: the stored positions of the group
    :param target: the target's name, for the words of a violation
    :param detail: what the target's columns let a row be known by
    :param keyed: whether a record that is loaded twice is there once, as a row is known by a key
    """
    proof = _Proof(target, detail, keyed)
    for batch in as_committed(batches):
        proof.add(batch)
    return proof.finish(positions)


class _Proof:
    """Goes through the batches once; holds something of every partition, and of no batch."""

    def __init__(self, target: str, detail: Detail, keyed: bool) -> None:
        self._target = target
        self._detail = detail
        self._found = Findings()
        self._chains = PositionHistories(self._found, target)
        self._tallies = RowCounts(self._found, target, detail)
        self._covered = UnrecordedGaps()
        self._appended = None if keyed else ReplayDuplicates(self._found, target)

    def add(self, batch: BatchRecord) -> None:
        if batch.state != "committed":
            if batch.kind == "load" and batch.state in ("planned", "staged"):
                self._found.open_batch = batch.batch_id
            self._tallies.refuse_leftovers(batch)
            return
        self._found.batches += 1
        for move in moves(batch):
            self._chains.follow(move)
            if batch.kind in REWINDS:
                self._refuse_passed_over(move, batch)
        self._covered.follow(batch)
        if self._appended is not None and batch.target_table in (None, self._target):
            self._appended.follow(batch)
        for gap in batch.gaps:
            self._found.gaps += gap.end - gap.start
        for loaded in batch.ranges:
            self._chains.cut(loaded)
        if batch.kind in REWINDS:
            self._tallies.refuse_leftovers(batch)
            return
        if batch.kind != "replay" or batch.target_table == self._target:
            self._add_rows(batch)
        else:
            self._tallies.refuse_leftovers(replace(batch, dead_letters=()))
        self._tallies.check_dead_letters(batch)

    def _refuse_passed_over(self, move: PositionMove, batch: BatchRecord) -> None:
        for start, end in self._covered.never_loaded(move, batch.gaps):
            self._found.violated(
                f"batch {move.batch_id} moved the position from offset {move.start} to {move.end}, and offsets {start}..{end}, "
                "which were never loaded, are in no recorded gap: the gap was removed",
                move.topic_partition,
                start,
                move.batch_id,
            )

    def _add_rows(self, batch: BatchRecord) -> None:
        for loaded in batch.ranges:
            self._found.records += loaded.records or 0
            self._chains.remember(batch, loaded)
        self._tallies.check_rows(batch)
        if self._detail == "offsets":
            self._chains.note_highest(batch)

    def finish(self, positions: Mapping[TopicPartition, Position]) -> Findings:
        self._chains.finish(positions)
        if self._appended is not None:
            self._appended.finish()
        return self._found
