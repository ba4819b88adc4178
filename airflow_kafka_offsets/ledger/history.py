"""What the history of batches says about the next one."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.exceptions import ForeignBatchError
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.ledger.target_names import spellings

_RECENT_BATCHES = 5


def bytes_per_offset(engine: Engine, tables: Tables, group_id: str) -> dict[str, float]:
    """The size of keys and values by offset, for each topic, in the latest batches of a group.

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


def refuse_other_table(engine: Engine, tables: Tables, group_id: str, topics: Sequence[str], target: str) -> None:
    """Make sure that a group loads into the table that it has loaded into: its positions say what is there.

    :param target: the name of the load's table
    :raises ForeignBatchError: that is another one; names the way to move on to a new table
    """
    batches = tables.offset_batches.c
    query = (
        sa.select(batches.batch_id, batches.target_table)
        .where(batches.consumer_group == group_id, batches.kind == "load", batches.state == "committed")
        .order_by(batches.batch_id.desc())
        .limit(1)
    )
    with engine.connect() as conn:
        last = conn.execute(query).one_or_none()
    if last is None or last.target_table in spellings(engine, target):
        return
    scope = " ".join(f"--topic {topic}" for topic in topics)
    raise ForeignBatchError(
        f"Group {group_id!r} loads into table {last.target_table!r}, last with batch {last.batch_id}; this load is into "
        f"{target!r}, and would get only what the other one leaves. Nothing was loaded. Give every load a group_id of its own. "
        f"To go on in {target!r} where this group stands, name a new group_id, and let it begin there: airflow kafka-offsets "
        f"rewind NEW_GROUP {scope} --to-group {group_id} --new-group --conn-id CONN_ID --execute."
    )
