"""Where a group stands, and where it stood before: what rewinds are decided from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

# Their old positions mean nothing in the topic that is there now.
_OTHER_TOPIC = ("recreated", "removed")


@dataclass(frozen=True, slots=True)
class CurrentState:
    """Where a group stands.

    :param open_batch: the load that is planned or staged, or None
    """

    cluster_id: str | None
    generation: int
    positions: Mapping[TopicPartition, Position]
    open_batch: int | None


@dataclass(frozen=True, slots=True)
class LastRewind:
    """The rewind that an undo takes back.

    :param before: the positions that it moved, as they were; None where there was none
    :param after: the same, as it left them
    :param other_topic: partitions whose old position belongs to an earlier topic of the same name
    :param replaced: whether it removed output, which moving positions cannot bring back
    :param moved_since: partitions whose position is not as it left them
    """

    batch_id: int
    scenario: str
    before: Mapping[TopicPartition, Position | None]
    other_topic: tuple[TopicPartition, ...]
    replaced: bool
    moved_since: tuple[TopicPartition, ...]


def current_state(engine: Engine, tables: Tables, group_id: str) -> CurrentState | None:
    """Where a group stands; None where it is not known.

    The generation is read first: positions that are rewound meanwhile are then of a later one, and nothing is executed on them.
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
    """The positions of a group before a batch of its history.

    A partition that no batch before that one touched is where the first later one found it, or chose to begin.

    :raises ConfigurationError: the group has no such batch
    """
    with engine.connect() as conn:
        _check_batch(conn, tables, group_id, batch_id)
        earlier = _moves(conn, tables, group_id, sa.func.max, tables.offset_batches.c.batch_id < batch_id)
        later = _moves(conn, tables, group_id, sa.func.min, tables.offset_batches.c.batch_id >= batch_id)
        gaps = tables.offset_gaps.c
        skipped = {
            (row.batch_id, TopicPartition(row.topic, row.partition)): row.start_offset
            for row in conn.execute(
                sa.select(tables.offset_gaps).where(
                    gaps.batch_id.in_({one for one, _, moved in later.values() if moved.how == "skipped-gap"})
                )
            )
        }
    found: dict[TopicPartition, Position] = {}
    for tp, (one, _, moved) in later.items():
        if moved.how not in _OTHER_TOPIC:
            start = skipped.get((one, tp), moved.start)
            found[tp] = Position(start, moved.topic_id, moved.leader_epoch)
    for tp, (_, kind, moved) in earlier.items():
        if moved.how == "removed":
            found.pop(tp, None)
        else:
            found[tp] = _after(kind, moved)
    return found


def last_rewind(engine: Engine, tables: Tables, group_id: str, scope: Scope | None = None) -> LastRewind | None:
    """The latest rewind of a group, be it an undo or an import; None where there was none.

    :param scope: leaves other partitions out; None is all
    """
    batches, ranges = tables.offset_batches.c, tables.offset_ranges.c
    with engine.connect() as conn:
        row = conn.execute(
            sa.select(batches.batch_id, batches.scenario)
            .where(batches.consumer_group == group_id, batches.kind.in_(REWIND_KINDS), batches.state == "committed")
            .order_by(batches.batch_id.desc())
            .limit(1)
        ).one_or_none()
        if row is None:
            return None
        moved = conn.execute(sa.select(tables.offset_ranges).where(ranges.batch_id == row.batch_id)).all()
        stored = stored_positions(conn, tables, group_id)
        moved_by = _moved_by(conn, tables, group_id)
    rows = [one for one in moved if in_scope(scope or {}, TopicPartition(one.topic, one.partition))]
    before: dict[TopicPartition, Position | None] = {}
    other_topic: list[TopicPartition] = []
    moved_since: list[TopicPartition] = []
    for one in sorted(map(as_range, rows), key=lambda one: one.topic_partition):
        tp = one.topic_partition
        # Of a position that was removed, the topic is known: it may be the one that is there now.
        if one.how == "recreated":
            other_topic.append(tp)
        had_one = one.how != "chosen"
        before[tp] = Position(one.start, one.topic_id, one.leader_epoch) if had_one else None
        if (tp in stored) != (one.how != "removed") or moved_by.get(tp, row.batch_id) != row.batch_id:
            moved_since.append(tp)
    replaced = any(one.replaced_from is not None for one in rows)
    return LastRewind(row.batch_id, row.scenario, before, tuple(other_topic), replaced, tuple(moved_since))


def executed(engine: Engine, tables: Tables, batch_id: int) -> RewindPreview:
    """A rewind of the history, as its preview; what the logs were then is not known any more."""
    batches, ranges, groups = tables.offset_batches.c, tables.offset_ranges.c, tables.consumer_groups.c
    with engine.connect() as conn:
        row = conn.execute(
            sa.select(tables.offset_batches, groups.cluster_id)
            .join(tables.consumer_groups, groups.group_id == batches.consumer_group)
            .where(batches.batch_id == batch_id)
        ).one()
        rows = conn.execute(
            sa.select(tables.offset_ranges).where(ranges.batch_id == batch_id).order_by(ranges.topic, ranges.partition)
        )
        moved = tuple(map(_rewound, map(as_range, rows)))
    return RewindPreview(row.consumer_group, row.cluster_id or "", row.generation - 1, row.scenario, row.kind, moved)


def _rewound(one: OffsetRange) -> PartitionRewind:
    old = Position(one.start, one.topic_id, one.leader_epoch) if one.how != "chosen" else None
    new = Position(one.end, one.topic_id, one.end_epoch) if one.how != "removed" else None
    return PartitionRewind(one.topic, one.partition, None, None, old, new)


def removed_by(engine: Engine, tables: Tables, batch_id: int) -> tuple[int, int]:
    """How many rows and dead letters of others a batch removed."""
    replaced = tables.replaced_output.c
    query = sa.select(sa.func.sum(replaced.row_count), sa.func.sum(replaced.dead_letters))
    with engine.connect() as conn:
        rows, dead_letters = conn.execute(query.where(replaced.batch_id == batch_id)).one()
    return int(rows or 0), int(dead_letters or 0)


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


def _moves(
    conn: Connection, tables: Tables, group_id: str, which: Callable[[Any], Any], condition: sa.ColumnElement[bool]
) -> dict[TopicPartition, tuple[int, str, OffsetRange]]:
    """The first or the last move of each partition among some batches: the batch, its kind, and its range."""
    batches, ranges = tables.offset_batches, tables.offset_ranges
    chosen = (
        sa.select(ranges.c.topic, ranges.c.partition, which(ranges.c.batch_id).label("batch_id"))
        .join(batches, batches.c.batch_id == ranges.c.batch_id)
        .where(
            batches.c.consumer_group == group_id,
            batches.c.kind.in_(MOVING_KINDS),
            batches.c.state == "committed",
            condition,
        )
        .group_by(ranges.c.topic, ranges.c.partition)
        .subquery()
    )
    query = (
        sa.select(ranges, batches.c.kind)
        .join(
            chosen,
            sa.and_(
                chosen.c.batch_id == ranges.c.batch_id,
                chosen.c.topic == ranges.c.topic,
                chosen.c.partition == ranges.c.partition,
            ),
        )
        .join(batches, batches.c.batch_id == ranges.c.batch_id)
    )
    return {
        TopicPartition(row.topic, row.partition): (row.batch_id, row.kind, as_range(row)) for row in conn.execute(query)
    }


def _after(kind: str, moved: OffsetRange) -> Position:
    if kind in REWIND_KINDS:
        return Position(moved.end, moved.topic_id, moved.end_epoch)
    return Position(moved.end, moved.topic_id, moved.epoch_after)


def _moved_by(conn: Connection, tables: Tables, group_id: str) -> dict[TopicPartition, int]:
    offsets = tables.consumed_offsets.c
    rows = conn.execute(
        sa.select(offsets.topic, offsets.partition, offsets.batch_id).where(offsets.consumer_group == group_id)
    )
    return {TopicPartition(row.topic, row.partition): row.batch_id for row in rows}
