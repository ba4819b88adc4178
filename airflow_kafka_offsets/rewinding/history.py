"""What the state tables say of a group's positions: now, before a batch, and around its last rewind. Reads only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.offsets import OffsetRange, Position, TopicPartition
from airflow_kafka_offsets.core.scope import Scope, in_scope
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.ledger.batch_rows import as_range
from airflow_kafka_offsets.ledger.batches import open_batch_of
from airflow_kafka_offsets.ledger.positions import stored_positions
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.rewinding.decision import PartitionRewind
from airflow_kafka_offsets.rewinding.preview import RewindPreview

REWIND_KINDS = ("rewind", "undo", "import")

MOVING_KINDS = ("load", "start", *REWIND_KINDS)


@dataclass(frozen=True, slots=True)
class CurrentState:
    """The positions of a group, and what a rewind has to respect.

    :param open_batch: the load that is planned or staged, or None
    """

    cluster_id: str | None
    generation: int
    positions: Mapping[TopicPartition, Position]
    open_batch: int | None


@dataclass(frozen=True, slots=True)
class LastRewind:
    """The rewind that an undo takes back.

    :param before: the old positions of the partitions that it moved; None where there was none
    :param other_topic: partitions whose old position belongs to an earlier topic of the same name
    :param replaced: whether it deleted output, which moving positions cannot bring back
    :param moved_since: partitions that a later batch has moved
    """

    batch_id: int
    scenario: str
    before: Mapping[TopicPartition, Position | None]
    other_topic: tuple[TopicPartition, ...]
    replaced: bool
    moved_since: tuple[TopicPartition, ...]


def current_state(engine: Engine, tables: Tables, group_id: str) -> CurrentState | None:
    """Return the current state of a group; None if nothing is stored of it.

    The generation is read first: if the positions are rewound meanwhile, it is too old, and nothing is executed on them.
    """
    groups = tables.consumer_groups.c
    with engine.connect() as conn:
        row = conn.execute(
            sa.select(groups.cluster_id, groups.generation).where(groups.group_id == group_id)
        ).one_or_none()
        if row is None:
            return None
        positions = stored_positions(conn, tables, group_id)
        return CurrentState(row.cluster_id, row.generation, positions, open_batch_of(conn, tables, group_id))


def state_before(engine: Engine, tables: Tables, group_id: str, batch_id: int) -> dict[TopicPartition, Position]:
    """Return the positions of a group before a batch of its history.

    A partition that no earlier batch moved is where the first later batch found it, or chose to begin.

    :raises ConfigurationError: the group has no such batch
    """
    batch = tables.offset_batches.c.batch_id
    gaps = tables.offset_gaps.c
    with engine.connect() as conn:
        _check_batch(conn, tables, group_id, batch_id)
        later = _first_moves(conn, tables, group_id, batch >= batch_id, batch)
        earlier = _first_moves(conn, tables, group_id, batch < batch_id, batch.desc())
        skipping = {later_id for later_id, _, move in later.values() if move.how == "skipped-gap"}
        rows = conn.execute(sa.select(tables.offset_gaps).where(gaps.batch_id.in_(skipping)))
        skipped = {(row.batch_id, row.topic, row.partition): row.start_offset for row in rows}
    # The old position of a topic that was recreated means nothing in the new one.
    positions = {
        tp: Position(skipped.get((later_id, *tp), move.start), move.topic_id, move.leader_epoch)
        for tp, (later_id, _, move) in later.items()
        if move.how not in ("recreated", "removed")
    }
    for tp, (_, kind, move) in earlier.items():
        if move.how == "removed":
            positions.pop(tp, None)
        else:
            epoch = move.end_epoch if kind in REWIND_KINDS else move.epoch_after
            positions[tp] = Position(move.end, move.topic_id, epoch)
    return positions


def last_rewind(engine: Engine, tables: Tables, group_id: str, scope: Scope | None = None) -> LastRewind | None:
    """Return the latest rewind of a group, which may be an undo or an import; None if there is none.

    :param scope: leaves out other partitions; None is all
    """
    batches, offsets = tables.offset_batches.c, tables.consumed_offsets.c
    with engine.connect() as conn:
        batch = conn.execute(
            sa.select(batches.batch_id, batches.scenario)
            .where(batches.consumer_group == group_id, batches.kind.in_(REWIND_KINDS), batches.state == "committed")
            .order_by(batches.batch_id.desc())
            .limit(1)
        ).one_or_none()
        if batch is None:
            return None
        rows = _ranges_of(conn, tables, batch.batch_id)
        stored = conn.execute(
            sa.select(offsets.topic, offsets.partition, offsets.batch_id).where(offsets.consumer_group == group_id)
        )
        moved_by = {TopicPartition(row.topic, row.partition): row.batch_id for row in stored}
    rows = [row for row in rows if in_scope(scope or {}, TopicPartition(row.topic, row.partition))]
    moves = {move.topic_partition: move for move in map(as_range, rows)}
    return LastRewind(
        batch.batch_id,
        batch.scenario,
        {tp: PartitionRewind.from_range(move).old for tp, move in moves.items()},
        # The topic of a position that was removed is known: it may be the current one.
        tuple(tp for tp, move in moves.items() if move.how == "recreated"),
        any(row.replaced_from is not None for row in rows),
        tuple(
            tp for tp, move in moves.items() if moved_by.get(tp) != (batch.batch_id if move.how != "removed" else None)
        ),
    )


def executed_preview(engine: Engine, tables: Tables, batch_id: int) -> RewindPreview:
    """Return the preview of a rewind in the history, without what is not recorded: the ends of the logs."""
    batches, groups = tables.offset_batches.c, tables.consumer_groups.c
    with engine.connect() as conn:
        row = conn.execute(
            sa.select(tables.offset_batches, groups.cluster_id)
            .join(tables.consumer_groups, groups.group_id == batches.consumer_group)
            .where(batches.batch_id == batch_id)
        ).one()
        moves = tuple(PartitionRewind.from_range(as_range(moved)) for moved in _ranges_of(conn, tables, batch_id))
    return RewindPreview(row.consumer_group, row.cluster_id or "", row.generation - 1, row.scenario, row.kind, moves)


def count_removed(engine: Engine, tables: Tables, batch_id: int) -> tuple[int, int]:
    """Return how many rows and dead letters of earlier batches a batch deleted."""
    replaced = tables.replaced_output.c
    query = sa.select(sa.func.sum(replaced.row_count), sa.func.sum(replaced.dead_letters))
    with engine.connect() as conn:
        rows, dead_letters = conn.execute(query.where(replaced.batch_id == batch_id)).one()
    return int(rows or 0), int(dead_letters or 0)


def _ranges_of(conn: Connection, tables: Tables, batch_id: int) -> Sequence[sa.Row[Any]]:
    """Return the ranges of a batch, in the order of their partitions."""
    ranges = tables.offset_ranges
    return conn.execute(
        sa.select(ranges).where(ranges.c.batch_id == batch_id).order_by(ranges.c.topic, ranges.c.partition)
    ).all()


def _check_batch(conn: Connection, tables: Tables, group_id: str, batch_id: int) -> None:
    batches = tables.offset_batches.c
    mine = batches.consumer_group == group_id
    if conn.scalar(sa.select(batches.batch_id).where(mine, batches.batch_id == batch_id)) is not None:
        return
    first, last = conn.execute(
        sa.select(sa.func.min(batches.batch_id), sa.func.max(batches.batch_id)).where(mine)
    ).one()
    has = f"its batches are numbered {first} to {last}" if first is not None else "it has no batches"
    raise ConfigurationError(f"Group {group_id!r} has no batch {batch_id}: {has}")


def _first_moves(
    conn: Connection,
    tables: Tables,
    group_id: str,
    condition: sa.ColumnElement[bool],
    order: sa.ColumnElement[int],
) -> dict[TopicPartition, tuple[int, str, OffsetRange]]:
    """Return the first move of each partition among some batches, in an order: the batch, its kind, and the range."""
    batches, ranges = tables.offset_batches, tables.offset_ranges
    nth = sa.func.row_number().over(partition_by=(ranges.c.topic, ranges.c.partition), order_by=order)
    moves = (
        sa.select(ranges, batches.c.kind, nth.label("nth"))
        .join(batches, batches.c.batch_id == ranges.c.batch_id)
        .where(
            batches.c.consumer_group == group_id,
            batches.c.kind.in_(MOVING_KINDS),
            batches.c.state == "committed",
            condition,
        )
        .subquery()
    )
    rows = conn.execute(sa.select(moves).where(moves.c.nth == 1))
    return {TopicPartition(row.topic, row.partition): (row.batch_id, row.kind, as_range(row)) for row in rows}
