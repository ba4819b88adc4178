"""What batches of a group loaded of offsets that its positions are moved over or before, and nobody replaced since."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.log_identity import is_other_topic
from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.core.spans import Span, subtract
from airflow_kafka_offsets.ledger.group_table import group_table, same_table_names
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.rewinding.history import MOVING_KINDS


def loaded_within(
    engine: Engine,
    tables: Tables,
    group_id: str,
    partitions: Collection[TopicPartition],
    topic_ids: Mapping[str, str | None],
) -> dict[TopicPartition, list[Span]]:
    """The offsets that loads passed, and nobody took back since."""

    def passed(row: Any) -> Span | None:
        return (row.start_offset, row.end_offset) if row.kind == "load" else None

    return _left(engine, tables, group_id, partitions, passed, topic_ids)


def loaded_beyond(
    engine: Engine, tables: Tables, group_id: str, positions: Mapping[TopicPartition, Position]
) -> dict[TopicPartition, int]:
    """How far offsets at positions or beyond were loaded into a table of the group's, and not taken back since.

    Of a topic without an id nothing is said: it may be another one than the topic that was loaded.
    """

    def read(row: Any) -> Span | None:
        position = positions[TopicPartition(row.topic, row.partition)]
        if row.kind not in ("load", "replay") or row.topic_id is None or row.topic_id != position.topic_id:
            return None
        return row.start_offset, row.end_offset

    ids = {tp.topic: one.topic_id for tp, one in positions.items()}
    batches, ranges = tables.offset_batches.c, tables.offset_ranges.c
    with engine.connect() as conn:
        taken_back = conn.scalar(
            _moves(conn, tables, group_id, ids)
            .with_only_columns(sa.func.max(batches.batch_id))
            .where(batches.kind != "replay", ranges.replaced_from.is_not(None))
        )
        # Most of a long history: nobody took it back, and how far each partition was loaded is all there is to know of it.
        plain = batches.batch_id > (taken_back or 0)
        furthest = conn.execute(
            _moves(conn, tables, group_id, ids)
            .with_only_columns(ranges.topic, ranges.partition, ranges.topic_id, sa.func.max(ranges.end_offset))
            .where(plain, batches.kind.in_(("load", "replay")), ranges.end_offset > ranges.start_offset)
            .group_by(ranges.topic, ranges.partition, ranges.topic_id)
        ).all()
    left = _left(engine, tables, group_id, positions, read, ids, sa.not_(plain))
    reaches = {tp: max((end for _, end in spans), default=0) for tp, spans in left.items()}
    for topic, partition, topic_id, reach in furthest:
        tp = TopicPartition(topic, partition)
        if tp in positions and topic_id is not None and topic_id == positions[tp].topic_id:
            reaches[tp] = max(reaches.get(tp, 0), reach)
    return {tp: reach for tp, reach in reaches.items() if reach > positions[tp].offset}


def _left(
    engine: Engine,
    tables: Tables,
    group_id: str,
    partitions: Collection[TopicPartition],
    loaded: Callable[[Any], Span | None],
    topic_ids: Mapping[str, str | None],
    only: sa.ColumnElement[bool] | None = None,
) -> dict[TopicPartition, list[Span]]:
    """What is left of the spans of committed batches, when what rewinds took back is taken out of those before them.

    :param loaded: the span of a range of a batch; None where it loaded nothing that matters
    :param only: the ranges that are looked at; None is all
    """
    if not partitions:
        return {}
    spans: dict[TopicPartition, list[Span]] = {}
    with engine.connect() as conn:
        query = (
            _moves(conn, tables, group_id, {tp.topic for tp in partitions})
            .where(only if only is not None else sa.true())
            .order_by(tables.offset_ranges.c.batch_id)
        )
        for row in conn.execute(query):
            tp = TopicPartition(row.topic, row.partition)
            if tp not in partitions or is_other_topic(row.topic_id, topic_ids.get(tp.topic)):
                continue
            known, span = spans.setdefault(tp, []), loaded(row)
            if span is not None and span[0] < span[1]:
                known.append(span)
            # What a replay takes back it has loaded again.
            elif row.kind != "replay" and row.replaced_from is not None:
                replaced = (row.replaced_from, row.replaced_to)
                spans[tp] = subtract(known, [replaced])
    return spans


def _moves(conn: Connection, tables: Tables, group_id: str, topics: Collection[str]) -> sa.Select[Any]:
    """The ranges of committed batches that moved positions of a group, or replayed into a table of its own; with their kinds."""
    batches, ranges = tables.offset_batches.c, tables.offset_ranges
    known = group_table(conn, tables, group_id)
    names = same_table_names(conn, known.name) if known is not None else ()
    return (
        sa.select(ranges, batches.kind)
        .join(tables.offset_batches, batches.batch_id == ranges.c.batch_id)
        .where(
            batches.consumer_group == group_id,
            batches.state == "committed",
            sa.or_(
                batches.kind.in_(MOVING_KINDS),
                # Of other tables, nothing is ever taken back.
                sa.and_(batches.kind == "replay", batches.target_table.in_(names)),
            ),
            ranges.c.topic.in_(topics),
        )
    )
