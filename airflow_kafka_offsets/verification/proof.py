"""Whether history, positions, rows and dead letters of a group prove that every record was loaded exactly once. Pure.

A partition's history is a sequence of moves of its position. `position_history` says whether each move starts where the
one before ended, `loaded_offsets` whether gaps are recorded and nothing is appended twice, and `row_counts` whether the
rows that batches wrote are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from airflow_kafka_offsets.core.history import OPEN_STATES
from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.sinks.target_rows import Detail
from airflow_kafka_offsets.verification.facts import BatchFacts, Findings
from airflow_kafka_offsets.verification.loaded_offsets import LoadedOffsets
from airflow_kafka_offsets.verification.position_history import PositionHistories
from airflow_kafka_offsets.verification.row_counts import RowCounts


def prove(
    batches: Iterable[BatchFacts],
    positions: Mapping[TopicPartition, Position],
    *,
    target: str,
    detail: Detail,
    replaces_rows: bool = False,
) -> Findings:
    """Prove that committed batches cover every partition up to its position without a hole and without an overlap, and
    that exactly their rows and dead letters are there.

    :param batches: every batch of the group, and every unknown one that the target has rows of, in the order of their
        ids; iterated once
    :param positions: the stored positions of the group
    :param target: the target's name, for violations
    :param detail: what the rows say of their origin
    :param replaces_rows: whether a record that is written again replaces its row, as with an upsert key
    """
    findings = Findings()
    histories = PositionHistories(findings, target)
    offsets = LoadedOffsets(findings, target, replaces_rows)
    counts = RowCounts(findings, target, detail)
    for batch in _as_committed(batches):
        if batch.state != "committed":
            if batch.kind == "load" and batch.state in OPEN_STATES:
                findings.open_batch = batch.batch_id
            counts.refuse_leftovers(batch)
            continue
        findings.batches += 1
        findings.gaps += sum(gap.end - gap.start for gap in batch.gaps)
        for loaded in batch.ranges:
            if not batch.is_replay:
                histories.follow(batch, loaded.range)
            if batch.is_rewind:
                offsets.check_gaps(batch, loaded.range)
        if not batch.replays_dead_letters:
            offsets.follow(batch)
        wrote_rows = not batch.is_rewind and (not batch.is_replay or batch.target_table == target)
        histories.note_output(batch, wrote_rows)
        if batch.is_rewind:
            counts.refuse_leftovers(batch)
            continue
        if wrote_rows:
            if not batch.replays_dead_letters:  # the batch that dead-lettered them has counted them
                findings.records += sum(loaded.records or 0 for loaded in batch.ranges)
            counts.check_rows(batch)
        else:
            counts.refuse_leftovers(replace(batch, dead_letters=()))
        counts.check_dead_letters(batch)
    histories.finish(positions)
    offsets.finish()
    return findings


def _as_committed(batches: Iterable[BatchFacts]) -> Iterator[BatchFacts]:
    """Return batches in the order in which they were committed, as far as that matters.

    Batches that move positions are committed in the order of their ids. A replay may be committed after batches with
    higher ids, and has to follow those whose output it removed.

    :param batches: in the order of their ids
    """
    waiting: list[tuple[BatchFacts, set[int]]] = []
    for batch in batches:
        if batch.after:
            waiting.append((batch, set(batch.after)))
            continue
        ready = [batch]
        for committed in ready:  # grows meanwhile: a replay may be what another one waits for
            yield committed
            for _, others in waiting:
                others.discard(committed.batch_id)
            ready += [replay for replay, others in waiting if not others]
            waiting = [(replay, others) for replay, others in waiting if others]
    yield from (batch for batch, _ in waiting)
