"""Offset ranges that a group has loaded and not removed again.

A rewind asks which of the offsets that it skips, or will reread, were loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.log_identity import is_other_topic
from airflow_kafka_offsets.core.offsets import PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.core.spans import Span, subtract
from airflow_kafka_offsets.ledger.group_table import group_table, same_table_names
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.rewinding.decision import PartitionRewind
from airflow_kafka_offsets.rewinding.history import MOVING_KINDS


def with_loaded_ranges(
    engine: Engine,
    tables: Tables,
    group_id: str,
    partitions: Collection[PartitionRewind],
    logs: Mapping[TopicPartition, PartitionLog],
) -> tuple[PartitionRewind, ...]:
    """Return moves with what only the history knows: after a rewind, offsets beyond the old position may be loaded.

    Offsets that were loaded before are not skipped, and those loaded at the new position or after it are read again.
    """
    skipping = [partition.topic_partition for partition in partitions if partition.skipped]
    loaded = loaded_within(engine, tables, group_id, skipping, {tp.topic: logs[tp].topic_id for tp in skipping})
    # A position of another topic is removed or left as it is: its offsets say nothing.
    positions = {
        partition.topic_partition: partition.new
        for partition in partitions
        if partition.new is not None
        and (log := logs.get(partition.topic_partition)) is not None
        and partition.new.topic_id == log.topic_id
    }
    ends = loaded_beyond(engine, tables, group_id, positions)
    return tuple(
        replace(
            partition,
            skipped=tuple(subtract(partition.skipped, loaded.get(partition.topic_partition, ()))),
            loaded_to=ends.get(partition.topic_partition),
        )
        for partition in partitions
    )


def loaded_within(
    engine: Engine,
    tables: Tables,
    group_id: str,
    partitions: Collection[TopicPartition],
    topic_ids: Mapping[str, str | None],
) -> dict[TopicPartition, list[Span]]:
    """Return the offsets that loads passed, and that no rewind removed since."""
    with engine.connect() as conn:
        query = _ranges(conn, tables, group_id, {tp.topic for tp in partitions})
        return _remaining(conn, query, partitions, topic_ids, lambda row: bool(row.kind == "load"))


def loaded_beyond(
    engine: Engine, tables: Tables, group_id: str, positions: Mapping[TopicPartition, Position]
) -> dict[TopicPartition, int]:
    """Return the end of the offsets after each position that were loaded into the group's table, and not removed since.

    Ranges without a topic id are left out: they may belong to an earlier topic of the same name.
    """

    def same_topic(row: Any) -> bool:
        position = positions.get(TopicPartition(row.topic, row.partition))
        return position is not None and row.topic_id is not None and row.topic_id == position.topic_id

    ids = {tp.topic: position.topic_id for tp, position in positions.items()}
    batches, ranges = tables.offset_batches.c, tables.offset_ranges.c
    loading = batches.kind.in_(("load", "replay"))
    with engine.connect() as conn:
        query = _ranges(conn, tables, group_id, ids)
        last_removal = conn.scalar(
            query.with_only_columns(sa.func.max(batches.batch_id)).where(
                batches.kind != "replay", ranges.replaced_from.is_not(None)
            )
        )
        # Of the batches after the last removal, most of a long history, only the furthest offsets matter.
        later = batches.batch_id > (last_removal or 0)
        furthest = conn.execute(
            query.with_only_columns(
                ranges.topic, ranges.partition, ranges.topic_id, sa.func.max(ranges.end_offset).label("end_offset")
            )
            .where(later, loading, ranges.end_offset > ranges.start_offset)
            .group_by(ranges.topic, ranges.partition, ranges.topic_id)
        ).all()
        remaining = _remaining(
            conn,
            query.where(sa.not_(later)),
            positions,
            ids,
            lambda row: row.kind in ("load", "replay") and same_topic(row),
        )
    ends = {tp: max((end for _, end in spans), default=0) for tp, spans in remaining.items()}
    for row in filter(same_topic, furthest):
        tp = TopicPartition(row.topic, row.partition)
        ends[tp] = max(ends.get(tp, 0), row.end_offset)
    return {tp: end for tp, end in ends.items() if end > positions[tp].offset}


def _remaining(
    conn: Connection,
    query: sa.Select[Any],
    partitions: Collection[TopicPartition],
    topic_ids: Mapping[str, str | None],
    loads: Callable[[Any], bool],
) -> dict[TopicPartition, list[Span]]:
    """Return the spans of ranges, less what later rewinds removed.

    :param loads: whether a range counts as loaded
    """
    spans: dict[TopicPartition, list[Span]] = {}
    for row in conn.execute(query.order_by("batch_id")):
        tp = TopicPartition(row.topic, row.partition)
        if tp not in partitions or is_other_topic(row.topic_id, topic_ids.get(tp.topic)):
            continue
        known = spans.setdefault(tp, [])
        if loads(row) and row.start_offset < row.end_offset:
            known.append((row.start_offset, row.end_offset))
        # A replay has loaded again what it removed.
        elif row.kind != "replay" and row.replaced_from is not None:
            spans[tp] = subtract(known, [(row.replaced_from, row.replaced_to)])
    return spans


def _ranges(conn: Connection, tables: Tables, group_id: str, topics: Collection[str]) -> sa.Select[Any]:
    """Select the ranges of committed batches that moved positions of a group, or were replayed into its table, with their kind."""
    batches, ranges = tables.offset_batches.c, tables.offset_ranges
    known = group_table(conn, tables, group_id)
    names = same_table_names(conn, known.name) if known is not None else ()
    return (
        sa.select(ranges, batches.kind)
        .join(tables.offset_batches, batches.batch_id == ranges.c.batch_id)
        .where(
            batches.consumer_group == group_id,
            batches.state == "committed",
            # A rewind removes nothing from other tables.
            sa.or_(batches.kind.in_(MOVING_KINDS), sa.and_(batches.kind == "replay", batches.target_table.in_(names))),
            ranges.c.topic.in_(topics),
        )
    )
