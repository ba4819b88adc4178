"""What the history says of a group's positions: before a batch, around the last rewind, and which offsets were loaded.
Reads only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.history import REWIND_KINDS
from airflow_kafka_offsets.core.log_identity import is_other_topic
from airflow_kafka_offsets.core.offsets import Position, Scope, Span, TopicPartition, in_scope, subtract
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    NoPositionError,
    RewindConflictError,
    TopicRecreatedError,
)
from airflow_kafka_offsets.ledger.batch_rows import as_batch, as_range
from airflow_kafka_offsets.ledger.compaction import Compacted, describe_compacted
from airflow_kafka_offsets.ledger.double_loads import loaded_by_others
from airflow_kafka_offsets.ledger.group_table import group_table, names_of
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.tables import Ledger, Tables, sum_of
from airflow_kafka_offsets.rewinding.preview import Logs, PartitionRewind, RewindPreview

TopicIds = Mapping[TopicPartition, str | None]

_MOVING_KINDS = ("load", "initialize", *REWIND_KINDS)


def state_before(ledger: Ledger, group_id: str, batch_id: int) -> dict[TopicPartition, Position]:
    """Return the positions of a group before a batch of its history.

    A partition that no earlier batch moved is where the first later batch found it, or chose to begin.

    :raises ConfigurationError: the group has no such batch
    """
    tables = ledger.tables
    batch = tables.offset_batches.c.batch_id
    gaps = tables.offset_gaps.c
    with ledger.connect() as conn:
        _check_batch(conn, tables, group_id, batch_id)
        later = _first_moves(conn, tables, group_id, batch >= batch_id, batch)
        earlier = _first_moves(conn, tables, group_id, batch < batch_id, batch.desc())
        skipping = {row.batch_id for row in later.values() if row.how == "skipped-gap"}
        rows = conn.execute(sa.select(tables.offset_gaps).where(gaps.batch_id.in_(skipping)))
        skipped = {(row.batch_id, row.topic, row.partition): row.start_offset for row in rows}
    # The old position of a topic that was recreated means nothing in the new one.
    positions = {
        tp: Position(skipped.get((row.batch_id, *tp), row.start_offset), row.topic_id, row.leader_epoch)
        for tp, row in later.items()
        if row.how not in ("recreated", "removed")
    }
    for tp, row in earlier.items():
        if row.how == "removed":
            positions.pop(tp, None)
        else:
            epoch = row.end_epoch if row.kind in REWIND_KINDS else as_range(row).epoch_after
            positions[tp] = Position(row.end_offset, row.topic_id, epoch)
    return positions


def last_rewind(conn: Connection, tables: Tables, group_id: str) -> Any | None:
    """Return the id and the scenario of the latest rewind of a group; None where there is none."""
    batches = tables.offset_batches.c
    return conn.execute(
        sa.select(batches.batch_id, batches.scenario)
        .where(batches.consumer_group == group_id, batches.kind.in_(REWIND_KINDS), batches.state == "committed")
        .order_by(batches.batch_id.desc())
        .limit(1)
    ).one_or_none()


def state_before_last_rewind(ledger: Ledger, group_id: str, scope: Scope) -> dict[TopicPartition, Position | None]:
    """Return the positions before the latest rewind of a group, which may be an undo or an import; None where there was
    none.

    :param scope: leaves out other partitions
    :raises NoPositionError: there is no rewind to undo
    :raises RewindConflictError: it removed output, which moving positions cannot bring back, or later batches moved on
    :raises TopicRecreatedError: it moved positions of an earlier topic of the same name
    """
    tables = ledger.tables
    ranges, offsets = tables.offset_ranges, tables.consumed_offsets.c
    with ledger.connect() as conn:
        batch = last_rewind(conn, tables, group_id)
        if batch is None:
            raise NoPositionError(f"The history of group {group_id!r} has no rewind that could be undone")
        of_batch = sa.select(ranges).where(ranges.c.batch_id == batch.batch_id)
        rows = conn.execute(of_batch.order_by(ranges.c.topic, ranges.c.partition)).all()
        stored = conn.execute(
            sa.select(offsets.topic, offsets.partition, offsets.batch_id).where(offsets.consumer_group == group_id)
        )
        moved_by = {TopicPartition(row.topic, row.partition): row.batch_id for row in stored}
    rows = [row for row in rows if in_scope(scope, TopicPartition(row.topic, row.partition))]
    moves = {move.topic_partition: move for move in map(as_range, rows)}
    rewind = f"Rewind {batch.batch_id} of group {group_id!r} ({batch.scenario})"
    # The topic of a position that was removed is known: it may be the current one.
    recreated = [tp for tp, move in moves.items() if move.how == "recreated"]
    if recreated:
        raise TopicRecreatedError(
            f"{rewind} left positions of an earlier topic of the same name, which are not valid in the current one: "
            f"{first_few(recreated)}. Nothing was changed; name an offset or a time instead."
        )
    moved_since = [
        tp for tp, move in moves.items() if moved_by.get(tp) != (batch.batch_id if move.how != "removed" else None)
    ]
    if moved_since:
        raise RewindConflictError(
            f"{rewind} cannot be undone any more: batches have moved {first_few(moved_since)} since. "
            f"Nothing was changed; to go back to the state before it anyway, rewind to-batch {batch.batch_id}."
        )
    if any(row.replaced_start_offset is not None for row in rows):
        raise RewindConflictError(
            f"{rewind} removed the rows of the offsets to load again: with the positions moved back, they would be "
            "lost. Run the load, which loads them again."
        )
    return {tp: PartitionRewind.from_range(move).old for tp, move in moves.items()}


def executed_preview(ledger: Ledger, batch_id: int) -> RewindPreview:
    """Return the preview of a rewind in the history, without what is not recorded: the ends of the logs."""
    tables = ledger.tables
    batches = tables.offset_batches.c
    with ledger.connect() as conn:
        row = conn.execute(sa.select(tables.offset_batches).where(batches.batch_id == batch_id)).one()
        cluster_id = cluster_of(conn, tables, row.consumer_group) or ""
        moves = tuple(map(PartitionRewind.from_range, as_batch(conn, tables, row).ranges))
    return RewindPreview(row.consumer_group, cluster_id, row.generation - 1, row.scenario, row.kind, moves)


def count_removed(ledger: Ledger, batch_id: int) -> tuple[int, int]:
    """Return how many rows and dead letters of earlier batches a batch deleted."""
    replaced = ledger.tables.replaced_output.c
    query = sa.select(sum_of(replaced.row_count), sum_of(replaced.dead_letters))
    with ledger.connect() as conn:
        rows, dead_letters = conn.execute(query.where(replaced.batch_id == batch_id)).one()
    return int(rows or 0), int(dead_letters or 0)


def with_loaded_ranges(
    ledger: Ledger, group_id: str, partitions: Iterable[PartitionRewind], logs: Logs
) -> tuple[PartitionRewind, ...]:
    """Return moves with what only the history knows: after a rewind, offsets beyond the old position may be loaded.

    Offsets that were loaded before are not skipped, and those loaded at the new position or after it are read again.
    """
    moves = {partition.topic_partition: partition for partition in partitions}
    with ledger.connect() as conn:
        skipping = {tp: logs[tp].topic_id for tp, move in moves.items() if move.skipped}
        loaded = loaded_within(conn, ledger.tables, group_id, skipping)
        # A position of another topic is removed or left as it is: its offsets say nothing.
        staying = {
            tp: move.new.topic_id
            for tp, move in moves.items()
            if move.new is not None and tp in logs and move.new.topic_id == logs[tp].topic_id
        }
        ends = _loaded_ends(conn, ledger.tables, group_id, staying)
    return tuple(
        replace(
            move,
            skipped=tuple(subtract(move.skipped, loaded.get(tp, ()))),
            loaded_to=end if move.new is not None and (end := ends.get(tp, 0)) > move.new.offset else None,
        )
        for tp, move in moves.items()
    )


def with_other_groups(
    ledger: Ledger, group_id: str, partitions: Sequence[PartitionRewind], may_name: Callable[[str], bool]
) -> tuple[PartitionRewind, ...]:
    """Return moves with a note where another group has loaded the offsets after them into the group's table.

    :param may_name: whether the note may name a group
    """
    starts = {move.topic_partition: move.new.offset for move in partitions if move.new is not None and move.changes}
    with ledger.connect() as conn:
        known = group_table(conn, ledger.tables, group_id)
        others = loaded_by_others(conn, ledger.tables, group_id, known.name, starts) if known is not None else []
    notes = {
        other.topic_partition: str(other if may_name(str(other.group_id)) else other._replace(group_id=None))
        for other in others
    }
    return tuple(
        replace(move, note="; ".join(filter(None, [move.note, notes.get(move.topic_partition)]))) for move in partitions
    )


def loaded_within(
    conn: Connection, tables: Tables, group_id: str, topic_ids: TopicIds
) -> dict[TopicPartition, list[Span]]:
    """Return the offsets of partitions that loads passed, and that no rewind removed since.

    :param topic_ids: of the partitions: ranges of an earlier topic of the same name do not count
    """
    query = _loading_ranges(conn, tables, group_id, topic_ids)
    return _remaining(conn, query, topic_ids, lambda row: bool(row.kind == "load"))


def _loaded_ends(conn: Connection, tables: Tables, group_id: str, topic_ids: TopicIds) -> dict[TopicPartition, int]:
    """Return the end of the offsets that were loaded into the group's table, and not removed since.

    Ranges without a topic id are left out: they may belong to an earlier topic of the same name.
    """

    def same_topic(row: Any) -> bool:
        return row.topic_id is not None and topic_ids.get(TopicPartition(row.topic, row.partition)) == row.topic_id

    batches, ranges = tables.offset_batches.c, tables.offset_ranges.c
    loads = batches.kind.in_(("load", "replay"))
    query = _loading_ranges(conn, tables, group_id, topic_ids)
    removals = query.where(batches.kind != "replay", ranges.replaced_start_offset.is_not(None))
    last_removal = conn.scalar(removals.with_only_columns(sa.func.max(batches.batch_id)))
    # Of the batches after the last removal, most of a long history, only the furthest offsets matter.
    later = batches.batch_id > (last_removal or 0)
    of_topic = (ranges.topic, ranges.partition, ranges.topic_id)
    furthest = query.with_only_columns(*of_topic, sa.func.max(ranges.end_offset).label("end_offset"))
    remaining = _remaining(
        conn, query.where(sa.not_(later)), topic_ids, lambda row: row.kind in ("load", "replay") and same_topic(row)
    )
    ends = {tp: max((end for _, end in spans), default=0) for tp, spans in remaining.items()}
    nonempty = ranges.end_offset > ranges.start_offset
    for row in filter(same_topic, conn.execute(furthest.where(later, loads, nonempty).group_by(*of_topic))):
        tp = TopicPartition(row.topic, row.partition)
        ends[tp] = max(ends.get(tp, 0), row.end_offset)
    return ends


def _remaining(
    conn: Connection, query: sa.Select[Any], topic_ids: TopicIds, is_load: Callable[[Any], bool]
) -> dict[TopicPartition, list[Span]]:
    """Return the spans of ranges, less what later rewinds removed.

    :param is_load: whether a range counts as loaded
    """
    spans: dict[TopicPartition, list[Span]] = {}
    for row in conn.execute(query.order_by("batch_id")):
        tp = TopicPartition(row.topic, row.partition)
        if tp not in topic_ids or is_other_topic(row.topic_id, topic_ids[tp]):
            continue
        known = spans.setdefault(tp, [])
        if is_load(row) and row.start_offset < row.end_offset:
            known.append((row.start_offset, row.end_offset))
        # A replay has loaded again what it removed.
        elif row.kind != "replay" and row.replaced_start_offset is not None:
            spans[tp] = subtract(known, [(row.replaced_start_offset, row.replaced_end_offset)])
    return spans


def _loading_ranges(
    conn: Connection, tables: Tables, group_id: str, partitions: Iterable[TopicPartition]
) -> sa.Select[Any]:
    """Select the ranges of the batches that moved positions of a group, or were replayed into its table."""
    batches = tables.offset_batches.c
    known = group_table(conn, tables, group_id)
    names = names_of(conn, tables, known.name, batches.consumer_group == group_id) if known is not None else ()
    # A rewind removes nothing from other tables.
    of_kind = batches.kind.in_(_MOVING_KINDS) | ((batches.kind == "replay") & batches.target_table.in_(names))
    return _committed_ranges(tables, group_id).where(
        of_kind, tables.offset_ranges.c.topic.in_({tp.topic for tp in partitions})
    )


def _committed_ranges(tables: Tables, group_id: str) -> sa.Select[Any]:
    """Select the ranges of the committed batches of a group, with their kind."""
    batches, ranges = tables.offset_batches.c, tables.offset_ranges
    return (
        sa.select(ranges, batches.kind)
        .join(tables.offset_batches, batches.batch_id == ranges.c.batch_id)
        .where(batches.consumer_group == group_id, batches.state == "committed")
    )


def _check_batch(conn: Connection, tables: Tables, group_id: str, batch_id: int) -> None:
    batches = tables.offset_batches.c
    owner = conn.scalar(sa.select(batches.consumer_group).where(batches.batch_id == batch_id))
    if owner == group_id:
        compacted = Compacted.of(conn, tables, group_id).span_of(batch_id)
        if compacted is None or compacted[0] == batch_id:
            return
        raise ConfigurationError(
            f"{describe_compacted(group_id, compacted)}. Rewind to batch {compacted[0]}, to a time or to offsets"
        )
    numbers = sa.select(sa.func.min(batches.batch_id), sa.func.max(batches.batch_id))
    first, last = conn.execute(numbers.where(batches.consumer_group == group_id)).one()
    has = f"its batches are numbered {first} to {last}" if first is not None else "it has no batches"
    if owner is not None:
        has = "it is a batch of another group"
    raise ConfigurationError(f"Group {group_id!r} has no batch {batch_id}: {has}")


def _first_moves(
    conn: Connection, tables: Tables, group_id: str, condition: sa.ColumnElement[bool], order: sa.ColumnElement[int]
) -> dict[TopicPartition, sa.Row[Any]]:
    """Return the range of each partition's first move among some batches, in an order, with the kind of its batch."""
    batches, ranges = tables.offset_batches.c, tables.offset_ranges.c
    nth = sa.func.row_number().over(partition_by=(ranges.topic, ranges.partition), order_by=order)
    moves = (
        _committed_ranges(tables, group_id)
        .add_columns(nth.label("nth"))
        .where(batches.kind.in_(_MOVING_KINDS), condition)
        .subquery()
    )
    rows = conn.execute(sa.select(moves).where(moves.c.nth == 1))
    return {TopicPartition(row.topic, row.partition): row for row in rows}
