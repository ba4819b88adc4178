"""Positions that are stored without loading anything: where partitions begin that the group has no position of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import OffsetRange, Position, TopicPartition
from airflow_kafka_offsets.database.transactions import database_now
from airflow_kafka_offsets.ledger.batch_rows import Batch, Recipe, as_batch, insert_batch, insert_ranges
from airflow_kafka_offsets.ledger.groups import stored_generation
from airflow_kafka_offsets.ledger.positions import set_positions, stored_positions
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.ledger.task_run import TaskRun


def store_first_positions(
    conn: Connection,
    tables: Tables,
    group_id: str,
    owner: TaskRun,
    generation: int,
    recipe: Recipe,
    starts: Sequence[OffsetRange],
    now: datetime,
    reason: str | None = None,
) -> None:
    """Store positions of partitions that have none, as a batch of kind `start`.

    :param starts: empty ranges
    :param reason: for the history
    """
    # The table named in the history is only a name here: nothing is written to it.
    batch_id = insert_batch(
        conn,
        tables,
        group_id,
        owner,
        "start",
        generation,
        state="committed",
        reason=reason,
        planned_at=now,
        committed_at=now,
        **asdict(recipe),
    )
    insert_ranges(conn, tables, batch_id, starts)
    set_positions(conn, tables, group_id, batch_id, starts, {}, {}, now)


def first_ranges(batch: Batch, stored: Mapping[TopicPartition, Position]) -> tuple[OffsetRange, ...]:
    """Where a load began the partitions that have no position.

    :param stored: the positions of its group
    """
    gaps = {TopicPartition(gap.topic, gap.partition): gap.start for gap in batch.gaps}
    found: list[OffsetRange] = []
    for one in batch.ranges:
        if one.topic_partition not in stored:
            at = gaps.get(one.topic_partition, one.start)
            found.append(replace(one, start=at, end=at, target=at))
    return tuple(found)


def first_positions(batch: Batch, stored: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Position]:
    """The same, as the positions that are stored when the batch is given up."""
    return {
        one.topic_partition: Position(one.end, one.topic_id, one.epoch_after) for one in first_ranges(batch, stored)
    }


def keep_first_positions(
    conn: Connection, tables: Tables, group_id: str, batch_id: int, *, but: Collection[TopicPartition] = ()
) -> None:
    """Store where a load that is given up began partitions: once a position of another partition is stored, these would
    count as new partitions, and begin at their beginning.

    :param but: partitions whose position is chosen in the same transaction
    """
    batches = tables.offset_batches
    row = conn.execute(sa.select(batches).where(batches.c.batch_id == batch_id)).one()
    begun = first_ranges(as_batch(conn, tables, row), stored_positions(conn, tables, group_id))
    starts = [one for one in begun if one.topic_partition not in but]
    if starts:
        store_first_positions(
            conn,
            tables,
            group_id,
            TaskRun(row.run_id, row.dag_id, row.task_id, row.map_index, row.try_number),
            stored_generation(conn, tables, group_id),
            Recipe(row.target_table, row.transform, row.fingerprint),
            starts,
            database_now(conn),
            f"where batch {batch_id} began",
        )
