"""Refuse a load of offsets that a replay has already appended to the load's table.

The other direction, replays of what loads write, is in `replaying.double_loads`.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.log_identity import is_other_topic
from airflow_kafka_offsets.core.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.core.spans import subtract
from airflow_kafka_offsets.exceptions import DoubleLoadError
from airflow_kafka_offsets.ledger.group_table import same_table_names
from airflow_kafka_offsets.ledger.tables import Tables


def refuse_replayed(
    conn: Connection, tables: Tables, group_id: str, target: str, ranges: Sequence[OffsetRange]
) -> None:
    """Check that no replay has appended offsets to a load's table, before the group's first load into it, that it would load.

    :param ranges: of the load; every offset from their starts on will be loaded, by this batch or a later one
    :raises DoubleLoadError: a replay has appended such offsets, and they were not replaced since
    """
    batches, range_rows = tables.offset_batches.c, tables.offset_ranges
    rows = conn.execute(
        sa.select(range_rows, batches.committed_at)
        .join(tables.offset_batches, range_rows.c.batch_id == batches.batch_id)
        .where(
            batches.consumer_group == group_id,
            batches.state == "committed",
            batches.target_table.in_(same_table_names(conn, target)),
            range_rows.c.topic.in_({range_.topic for range_ in ranges}),
            sa.or_(
                range_rows.c.replaced_from.is_not(None), sa.and_(batches.kind == "replay", range_rows.c.records > 0)
            ),
        )
        .order_by(range_rows.c.batch_id)
    ).all()
    starts = {range_.topic_partition: range_ for range_ in ranges}
    for row in rows:
        tp = TopicPartition(row.topic, row.partition)
        planned = starts.get(tp)
        if row.replaced_from is not None or planned is None or is_other_topic(row.topic_id, planned.topic_id):
            continue
        replaced = [
            (later.replaced_from, later.replaced_to)
            for later in rows
            if later.replaced_from is not None
            and (later.topic, later.partition) == tp
            and later.committed_at >= row.committed_at
            and not is_other_topic(later.topic_id, row.topic_id)
        ]
        appended = subtract([(max(row.start_offset, planned.start), row.end_offset)], replaced)
        for start, end in appended:
            if start < end:
                raise DoubleLoadError(
                    f"Batch {row.batch_id}, a replay of group {group_id!r}, has appended {tp} {start}..{end} to table "
                    f"{target!r}. The group begins at offset {planned.start}, and would load these records into the same table "
                    "again. Nothing was loaded. Load into another table, or into a sink with an upsert_key; or let the group "
                    f"begin after them: airflow kafka-offsets rewind {group_id} --topic {tp.topic}:{tp.partition} "
                    f"--to-offset {row.end_offset} --conn-id CONN_ID --execute."
                )
