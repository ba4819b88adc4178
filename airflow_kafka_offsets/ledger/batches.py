"""The life of a batch until it is committed: planned, written ahead, staged.

Every function that writes is one transaction, begins by locking the group's row, and writes nothing under an older epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.ledger.connection import database_now, transaction
from airflow_kafka_offsets.ledger.groups import Claim, lock_claimed
from airflow_kafka_offsets.ledger.positions import set_positions
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.offsets import Gap, OffsetRange, TopicPartition
from airflow_kafka_offsets.planning import Plan

OPEN_STATES = ("planned", "staged")


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as the ledger knows it.

    :param state: planned, staged, committed or abandoned
    :param target_table: the table that it was planned for
    :param staging_uri: where the current attempt's files are, or None before the first
    """

    batch_id: int
    group_id: str
    state: str
    ranges: tuple[OffsetRange, ...]
    gaps: tuple[Gap, ...] = ()
    target_table: str | None = None
    staging_uri: str | None = None

    @property
    def offsets(self) -> int:
        """How many offsets the ranges span."""
        return sum(map(len, self.ranges))


def open_batch(engine: Engine, tables: Tables, group_id: str) -> Batch | None:
    """The group's planned or staged load, whoever began it: it is finished before anything new is planned."""
    batches = tables.offset_batches.c
    with engine.connect() as conn:
        row = conn.execute(
            sa.select(tables.offset_batches).where(
                batches.consumer_group == group_id, batches.kind == "load", batches.state.in_(OPEN_STATES)
            )
        ).one_or_none()
        return None if row is None else _batch(conn, tables, row)


def captured_targets(engine: Engine, tables: Tables, claim: Claim) -> dict[TopicPartition, int] | None:
    """The end offsets that this task instance captured with its first batch, or None where it has none yet."""
    batches, ranges, owner = tables.offset_batches.c, tables.offset_ranges.c, claim.owner
    same = [
        batches.consumer_group == claim.group_id,
        batches.kind == "load",
        batches.run_id == owner.run_id,
        batches.task_id.is_not_distinct_from(owner.task_id),
        batches.dag_id.is_not_distinct_from(owner.dag_id),
        batches.map_index.is_not_distinct_from(owner.map_index),
    ]
    with engine.connect() as conn:
        first = conn.scalar(sa.select(sa.func.min(batches.batch_id)).where(*same))
        if first is None:
            return None
        rows = conn.execute(
            sa.select(ranges.topic, ranges.partition, ranges.target_offset).where(ranges.batch_id == first)
        )
        return {TopicPartition(row.topic, row.partition): row.target_offset for row in rows}


def record_plan(engine: Engine, tables: Tables, claim: Claim, plan: Plan, *, target_table: str) -> Batch | None:
    """Write a plan ahead of any work: from now on a retry, or the next run, replays exactly these ranges.

    Positions of topics that start at the end of their log are stored in the same transaction, as a batch of kind
    `start`, because nothing else will be done for them.

    :return: the open batch; None where the plan loads nothing
    """
    with transaction(engine) as conn:
        lock_claimed(conn, tables, claim)
        now = database_now(conn)
        if plan.initial:
            # The table named in the history is only a name here: nothing is written to it.
            start_id = _insert_batch(conn, tables, claim, "start", "committed", now, target_table, committed_at=now)
            _insert_ranges(conn, tables, start_id, plan.initial)
            set_positions(conn, tables, claim.group_id, start_id, plan.initial, {}, {}, now)
        if not plan.ranges:
            return None
        batch_id = _insert_batch(conn, tables, claim, "load", "planned", now, target_table)
        _insert_ranges(conn, tables, batch_id, plan.ranges)
        if plan.gaps:
            columns = ("topic", "partition", "start", "end", "cause", "decision")
            names = ("topic", "partition", "start_offset", "end_offset", "cause", "decision")
            conn.execute(
                tables.offset_gaps.insert(),
                [
                    {"batch_id": batch_id} | {n: getattr(gap, c) for n, c in zip(names, columns, strict=True)}
                    for gap in plan.gaps
                ],
            )
    return Batch(batch_id, claim.group_id, "planned", plan.ranges, plan.gaps, target_table)


def abandon(engine: Engine, tables: Tables, claim: Claim, batch: Batch, reason: str) -> None:
    """Give a batch up, with the reason: its positions stay where they are, and its attempts can never commit."""
    batches = tables.offset_batches
    with transaction(engine) as conn:
        lock_claimed(conn, tables, claim)
        conn.execute(
            batches.update()
            .where(batches.c.batch_id == batch.batch_id, batches.c.state.in_(OPEN_STATES))
            .values(state="abandoned", reason=reason)
        )


def begin_staging(engine: Engine, tables: Tables, claim: Claim, batch: Batch, staging_uri: str) -> None:
    """Record where this attempt stages, before it does: whoever comes next can remove what it leaves behind."""
    batches = tables.offset_batches
    with transaction(engine) as conn:
        lock_claimed(conn, tables, claim)
        conn.execute(
            batches.update()
            .where(batches.c.batch_id == batch.batch_id, batches.c.state.in_(OPEN_STATES))
            .values(state="planned", staging_uri=staging_uri, attempt=batches.c.attempt + 1)
        )


def mark_staged(engine: Engine, tables: Tables, claim: Claim, batch: Batch, records: int) -> None:
    """Record that the manifest is complete: a later try commits it without reading Kafka again."""
    batches = tables.offset_batches
    with transaction(engine) as conn:
        lock_claimed(conn, tables, claim)
        conn.execute(
            batches.update()
            .where(batches.c.batch_id == batch.batch_id, batches.c.state == "planned")
            .values(state="staged", records=records, staged_at=database_now(conn))
        )


def _insert_batch(
    conn: Connection,
    tables: Tables,
    claim: Claim,
    kind: str,
    state: str,
    now: datetime,
    target_table: str,
    committed_at: datetime | None = None,
) -> int:
    owner = claim.owner
    result = conn.execute(
        tables.offset_batches.insert().values(
            consumer_group=claim.group_id,
            generation=claim.generation,
            kind=kind,
            state=state,
            attempt=0,
            dag_id=owner.dag_id,
            task_id=owner.task_id,
            run_id=owner.run_id,
            map_index=owner.map_index,
            try_number=owner.try_number,
            target_table=target_table,
            planned_at=now,
            committed_at=committed_at,
        )
    )
    key = result.inserted_primary_key
    assert key is not None  # every supported database returns the number it gave
    return int(key[0])


def _insert_ranges(conn: Connection, tables: Tables, batch_id: int, ranges: Sequence[OffsetRange]) -> None:
    conn.execute(
        tables.offset_ranges.insert(),
        [
            {
                "batch_id": batch_id,
                "topic": one.topic,
                "partition": one.partition,
                "topic_id": one.topic_id,
                "start_offset": one.start,
                "end_offset": one.end,
                "target_offset": one.target,
                "how": one.how,
            }
            for one in ranges
        ],
    )


def _batch(conn: Connection, tables: Tables, row: sa.Row[tuple[object, ...]]) -> Batch:
    ranges, gaps = tables.offset_ranges.c, tables.offset_gaps.c
    range_rows = conn.execute(
        sa.select(tables.offset_ranges).where(ranges.batch_id == row.batch_id).order_by(ranges.topic, ranges.partition)
    )
    gap_rows = conn.execute(
        sa.select(tables.offset_gaps).where(gaps.batch_id == row.batch_id).order_by(gaps.topic, gaps.partition)
    )
    return Batch(
        row.batch_id,
        row.consumer_group,
        row.state,
        tuple(
            OffsetRange(r.topic, r.partition, r.start_offset, r.end_offset, r.target_offset, r.topic_id, r.how)
            for r in range_rows
        ),
        tuple(Gap(g.topic, g.partition, g.start_offset, g.end_offset, g.cause, g.decision) for g in gap_rows),
        row.target_table,
        row.staging_uri,
    )
