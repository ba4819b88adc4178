"""The size of records in the latest batches of a group, from which `max_bytes` is estimated."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.ledger.tables import Tables

_RECENT_BATCHES = 5


def bytes_per_offset(engine: Engine, tables: Tables, group_id: str) -> dict[str, float]:
    """Return the average bytes of keys and values for each offset, by topic, in the latest loads of a group.

    :return: topics of which at least one offset was read
    """
    batches, ranges = tables.offset_batches.c, tables.offset_ranges.c
    recent = (
        sa.select(batches.batch_id)
        .where(batches.consumer_group == group_id, batches.kind == "load", batches.state == "committed")
        .order_by(batches.batch_id.desc())
        .limit(_RECENT_BATCHES)
        .subquery()
    )
    offsets = sa.func.sum(ranges.end_offset - ranges.start_offset)
    query = (
        sa.select(ranges.topic, sa.func.sum(ranges.bytes), offsets)
        .join(recent, recent.c.batch_id == ranges.batch_id)
        .where(ranges.records.is_not(None))
        .group_by(ranges.topic)
        .having(offsets > 0)
    )
    with engine.connect() as conn:
        return {topic: float(size) / float(count) for topic, size, count in conn.execute(query)}
