"""Whether history, positions, rows and dead letters of a group prove that every record was loaded exactly once. Pure.

A partition's history is a sequence of moves of its position. `position_moves` says which moves a batch makes,
`position_history` whether each move starts where the one before ended, and `row_counts` whether the rows that batches wrote are
there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.sinks.sink import Detail
from airflow_kafka_offsets.verification.facts import BatchRecord
from airflow_kafka_offsets.verification.findings import Findings
from airflow_kafka_offsets.verification.position_history import PositionHistories
from airflow_kafka_offsets.verification.position_moves import REWINDS, as_committed, moves
from airflow_kafka_offsets.verification.replay_duplicates import ReplayDuplicates
from airflow_kafka_offsets.verification.row_counts import RowCounts
from airflow_kafka_offsets.verification.unrecorded_gaps import UnrecordedGaps


def prove(
    batches: Iterable[BatchRecord],
    positions: Mapping[TopicPartition, Position],
    *,
    target: str,
    detail: Detail,
    replaces_rows: bool = False,
) -> Findings:
    """Prove that committed batches cover every partition up to its position without a hole and without an overlap, and that
    exactly their rows and dead letters are there.

    :param batches: every batch of the group, and every unknown one that the target has rows of, in the order of their ids;
        iterated once
    :param positions: the stored positions of the group
    :param target: the target's name, for violations
    :param detail: what the rows say of their origin
    :param replaces_rows: whether a record that is written again replaces its row, as with an upsert key
    """
    proof = _Proof(target, detail, replaces_rows)
    for batch in as_committed(batches):
        proof.add(batch)
    return proof.finish(positions)


class _Proof:
    """Goes through the batches once; holds state of every partition, and of no batch."""

    def __init__(self, target: str, detail: Detail, replaces_rows: bool) -> None:
        self._target = target
        self._detail = detail
        self._findings = Findings()
        self._histories = PositionHistories(self._findings, target)
        self._counts = RowCounts(self._findings, target, detail)
        self._gaps = UnrecordedGaps()
        self._duplicates = None if replaces_rows else ReplayDuplicates(self._findings, target)

    def add(self, batch: BatchRecord) -> None:
        if batch.state != "committed":
            if batch.kind == "load" and batch.state in ("planned", "staged"):
                self._findings.open_batch = batch.batch_id
            self._counts.refuse_leftovers(batch)
            return
        self._findings.batches += 1
        self._follow_positions(batch)
        self._gaps.follow(batch)
        if self._duplicates is not None and batch.target_table in (None, self._target):
            self._duplicates.follow(batch)
        self._findings.gaps += sum(gap.end - gap.start for gap in batch.gaps)
        for loaded in batch.ranges:
            self._histories.cut(loaded)
        if batch.kind in REWINDS:
            self._counts.refuse_leftovers(batch)
            return
        if batch.kind == "replay" and batch.target_table != self._target:
            self._counts.refuse_leftovers(replace(batch, dead_letters=()))
        else:
            self._add_rows(batch)
        self._counts.check_dead_letters(batch)

    def _follow_positions(self, batch: BatchRecord) -> None:
        for move in moves(batch):
            self._histories.follow(move)
            for start, end in self._gaps.find(move, batch.gaps) if batch.kind in REWINDS else ():
                self._findings.add_violation(
                    f"batch {move.batch_id} moved the position from offset {move.start} to {move.end}, and offsets "
                    f"{start}..{end}, which were never loaded, are in no recorded gap: the gap was removed",
                    move.topic_partition,
                    start,
                    move.batch_id,
                )

    def _add_rows(self, batch: BatchRecord) -> None:
        for loaded in batch.ranges:
            self._findings.records += loaded.records or 0
            self._histories.remember(batch, loaded)
        self._counts.check_rows(batch)
        if self._detail == "offsets":
            self._histories.note_highest(batch)

    def finish(self, positions: Mapping[TopicPartition, Position]) -> Findings:
        self._histories.finish(positions)
        if self._duplicates is not None:
            self._duplicates.finish()
        return self._findings
