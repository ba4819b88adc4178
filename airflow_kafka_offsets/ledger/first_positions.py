"""First positions of partitions, stored without loading a record, so that a later load begins there."""

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
    """Store the positions of partitions that have none, as a batch of kind `start`.

    :param recipe: of the load; nothing is written to its table
    :param starts: empty ranges, at the positions
    :param reason: for the history
    """
    values = {"state": "committed", "reason": reason, "planned_at": now, "committed_at": now} | asdict(recipe)
    batch_id = insert_batch(conn, tables, group_id, owner, "start", generation, **values)
    insert_ranges(conn, tables, batch_id, starts)
    set_positions(conn, tables, group_id, batch_id, starts, {}, {}, now)


def first_ranges(batch: Batch, stored: Mapping[TopicPartition, Position]) -> tuple[OffsetRange, ...]:
    """Return empty ranges at the offsets where a load began partitions without a position.

    :param stored: the positions of its group
    """
    gaps = {TopicPartition(gap.topic, gap.partition): gap.start for gap in batch.gaps}
    starts = [
        (range_, gaps.get(range_.topic_partition, range_.start))
        for range_ in batch.ranges
        if range_.topic_partition not in stored
    ]
    return tuple(replace(range_, start=start, end=start, target=start) for range_, start in starts)


def first_positions(batch: Batch, stored: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Position]:
    """Return the positions that abandoning a batch will store.

    :param stored: the positions of its group
    """
    return {
        range_.topic_partition: Position(range_.end, range_.topic_id, range_.epoch_after)
        for range_ in first_ranges(batch, stored)
    }


def keep_first_positions(
    conn: Connection, tables: Tables, group_id: str, batch_id: int, *, but: Collection[TopicPartition] = ()
) -> None:
    """Store the positions at which an abandoned load began partitions.

    Without them, and with a position of another partition, the next load would take these for new partitions and begin at their
    beginning offset.

    :param but: partitions whose position is set in the same transaction
    """
    batches = tables.offset_batches
    row = conn.execute(sa.select(batches).where(batches.c.batch_id == batch_id)).one()
    ranges = first_ranges(as_batch(conn, tables, row), stored_positions(conn, tables, group_id))
    starts = [range_ for range_ in ranges if range_.topic_partition not in but]
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
