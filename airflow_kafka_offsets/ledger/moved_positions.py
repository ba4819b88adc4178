"""Positions that are set without loading, with a committed batch in the history: first ones, and those that a rewind
moves.

Nothing is decided or checked here: the caller has locked the group's row, and compared the stored positions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, Position, Span, TopicPartition
from airflow_kafka_offsets.database.transactions import database_now
from airflow_kafka_offsets.ledger.batch_rows import Batch, Recipe, TaskRun, as_batch, insert_batch
from airflow_kafka_offsets.ledger.groups import stored_generation
from airflow_kafka_offsets.ledger.positions import (
    bound_partition,
    is_bound_partition,
    positions_after,
    set_positions,
    stored_positions,
)
from airflow_kafka_offsets.ledger.publications import Publication
from airflow_kafka_offsets.ledger.replaced_output import replace_output
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.sinks.table import Table


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
    """Store the positions of partitions that have none, as a batch of kind `initialize`: a later load begins there.

    :param recipe: of the load; nothing is written to its table
    :param starts: empty ranges, at the positions
    :param reason: for the history
    """
    values = {"state": "committed", "reason": reason, "planned_at": now, "committed_at": now} | asdict(recipe)
    batch = insert_batch(conn, tables, group_id, owner, "initialize", generation, starts, **values)
    set_positions(conn, tables, group_id, batch.batch_id, positions_after(starts), now)


def first_ranges(batch: Batch, stored: Collection[TopicPartition]) -> list[OffsetRange]:
    """Return empty ranges at the offsets where a load began partitions without a position.

    :param stored: the partitions of its group that have a position
    """
    starts = batch.starts
    return [
        replace(range_, start=starts[tp], end=starts[tp], target=starts[tp])
        for range_ in batch.ranges
        if (tp := range_.topic_partition) not in stored
    ]


def keep_first_positions(
    conn: Connection, tables: Tables, group_id: str, batch_id: int, *, but: Collection[TopicPartition] = ()
) -> None:
    """Store the positions at which an abandoned load began partitions.

    Without them, and with a position of another partition, the next load would take these for new partitions and begin
    at their beginning offset.

    :param but: partitions whose position is set in the same transaction
    """
    batches = tables.offset_batches
    row = conn.execute(sa.select(batches).where(batches.c.batch_id == batch_id)).one()
    stored = stored_positions(conn, tables, group_id)
    starts = first_ranges(as_batch(conn, tables, row), {*stored, *but})
    if starts:
        owner = TaskRun(row.run_id, row.dag_id, row.task_id, row.map_index, row.try_number, row.triggered_by)
        recipe = Recipe(row.target_table, row.transform, row.fingerprint)
        generation, now = stored_generation(conn, tables, group_id), database_now(conn)
        reason = f"where batch {batch_id} began"
        store_first_positions(conn, tables, group_id, owner, generation, recipe, starts, now, reason)


def move_positions(
    conn: Connection,
    ledger: Ledger,
    group_id: str,
    moves: Sequence[OffsetRange],
    gaps: Sequence[Gap],
    *,
    owner: TaskRun,
    kind: str,
    generation: int,
    cluster_id: str,
    target: Table | None = None,
    replaced: Mapping[TopicPartition, Span] | None = None,
    **of_batch: Any,
) -> int:
    """Move positions of a group: a rewind, an undo or an import.

    :param moves: from `start`, the stored position, to `end`; `how` is "chosen" if none is stored, "removed" if none
        remains
    :param gaps: the offsets that are skipped
    :param kind: rewind, undo or import
    :param generation: of the group from now on
    :param cluster_id: of the Kafka cluster that the group belongs to from now on
    :param target: whose rows of `replaced` are deleted, with their dead letters; where it commits externally, by
        `run_pending_cleanups`
    :param replaced: the offsets whose output is deleted
    :param of_batch: values of other columns of the batch
    :return: the id of the batch
    :raises ConfigurationError: the rows of the target do not say where they are from, or the group loads into another
        table
    """
    now, tables = database_now(conn), ledger.tables
    values = of_batch | {"state": "committed", "planned_at": now, "committed_at": now}
    name = target.sink.name if target is not None else None
    batch = insert_batch(
        conn, tables, group_id, owner, kind, generation, moves, gaps, replaced, target_table=name, **values
    )
    batch_id = batch.batch_id
    if target is not None:
        publication = Publication.of(ledger, target, batch, kind, conn=conn)
        replace_output(conn, tables, group_id, batch_id, target.sink.name, partial(publication.remove_replaced, conn))
        if publication.is_external:
            of_rewind = tables.offset_batches.c.batch_id == batch_id
            conn.execute(tables.offset_batches.update().where(of_rewind).values(publish_started_at=now))
    offsets, groups = tables.consumed_offsets, tables.consumer_groups
    stored = [bound_partition(move.topic_partition) for move in moves if move.how != "chosen"]
    if stored:
        of_group = offsets.c.consumer_group == group_id
        conn.execute(offsets.delete().where(of_group, is_bound_partition(offsets)), stored)
    # Deleted and inserted: the timestamp of the last record loaded is not that of the record before the new position.
    positions = {
        move.topic_partition: Position(move.end, move.topic_id, move.end_epoch)
        for move in moves
        if move.how != "removed"
    }
    set_positions(conn, tables, group_id, batch_id, positions, now)
    conn.execute(
        groups.update().where(groups.c.group_id == group_id).values(generation=generation, cluster_id=cluster_id)
    )
    return batch_id
