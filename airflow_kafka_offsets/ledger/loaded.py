"""What batches of a group loaded of offsets that its positions are moved over or before, and nobody replaced since."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.identity import differ
from airflow_kafka_offsets.ledger.batch_rows import as_range
from airflow_kafka_offsets.ledger.past import MOVING_KINDS
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.offsets import Position, TopicPartition
from airflow_kafka_offsets.rewinding import Span, without


def covered(
    engine: Engine,
    tables: Tables,
    group_id: str,
    partitions: Collection[TopicPartition],
    topic_ids: Mapping[str, str | None],
) -> dict[TopicPartition, list[Span]]:
    """The offsets that loads passed, and nobody took back since."""

    def passed(row: Any) -> Span | None:
        if row.kind != "load" or differ(row.topic_id, topic_ids.get(row.topic)):
            return None
        return row.start_offset, row.end_offset

    return _left(engine, tables, group_id, partitions, passed, topic_ids)


def loaded_beyond(
    engine: Engine, tables: Tables, group_id: str, positions: Mapping[TopicPartition, Position]
) -> dict[TopicPartition, int]:
    """How far offsets at positions or beyond were loaded into a table of the group's, and not taken back since.

    What a position knows to be loaded ahead of it is not read again. Of a topic without an id nothing is said: it may be another
    one than the topic that was loaded.
    """

    def read(row: Any) -> Span | None:
        position = positions[TopicPartition(row.topic, row.partition)]
        if row.kind not in ("load", "replay") or row.topic_id is None or row.topic_id != position.topic_id:
            return None
        one, known = as_range(row), position.ahead
        if one.ahead is None or (
            known is not None and one.ahead.offset <= known.offset and one.ahead.before_ms <= known.before_ms
        ):
            return one.start, one.end
        return one.start, one.read_to

    left = _left(engine, tables, group_id, positions, read, {tp.topic: one.topic_id for tp, one in positions.items()})
    reaches = {tp: max((end for _, end in spans), default=0) for tp, spans in left.items()}
    return {tp: reach for tp, reach in reaches.items() if reach > positions[tp].offset}


def _left(
    engine: Engine,
    tables: Tables,
    group_id: str,
    partitions: Collection[TopicPartition],
    loaded: Callable[[Any], Span | None],
    topic_ids: Mapping[str, str | None],
) -> dict[TopicPartition, list[Span]]:
    """What is left of the spans of committed batches, when what rewinds took back is taken out of those before them.

    :param loaded: the span of a range of a batch; None where it loaded nothing that matters
    """
    if not partitions:
        return {}
    batches, ranges = tables.offset_batches.c, tables.offset_ranges
    target = sa.select(batches.target_table).where(
        batches.consumer_group == group_id, batches.kind.in_(("load", "start"))
    )
    query = (
        sa.select(ranges, batches.kind)
        .join(tables.offset_batches, batches.batch_id == ranges.c.batch_id)
        .where(
            batches.consumer_group == group_id,
            batches.state == "committed",
            sa.or_(
                batches.kind.in_(MOVING_KINDS),
                # Of other tables, nothing is ever taken back.
                sa.and_(batches.kind == "replay", batches.target_table.in_(target)),
            ),
            ranges.c.topic.in_({tp.topic for tp in partitions}),
        )
        .order_by(ranges.c.batch_id)
    )
    spans: dict[TopicPartition, list[Span]] = {}
    with engine.connect() as conn:
        for row in conn.execute(query):
            tp = TopicPartition(row.topic, row.partition)
            if tp not in partitions or differ(row.topic_id, topic_ids.get(tp.topic)):
                continue
            known, span = spans.setdefault(tp, []), loaded(row)
            if span is not None and span[0] < span[1]:
                known.append(span)
            # What a replay takes back it has loaded again.
            elif row.kind != "replay" and row.replaced_from is not None:
                replaced = (row.replaced_from, row.replaced_to)
                spans[tp] = [piece for one in known for piece in without(one, [replaced])]
    return spans
