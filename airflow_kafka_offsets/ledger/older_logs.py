"""Batches of an earlier topic of the same name: the offsets of their records say nothing of which record is newer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.chunks import portions
from airflow_kafka_offsets.core.log_identity import is_other_topic
from airflow_kafka_offsets.core.offsets import OffsetRange
from airflow_kafka_offsets.ledger.compaction import Compacted
from airflow_kafka_offsets.ledger.tables import Tables

# Numbers in a query: databases have a limit.
_AT_ONCE = 1_000


def of_older_logs(
    tables: Tables, group_id: str, ranges: Sequence[OffsetRange], conn: Connection, batch_ids: Collection[int]
) -> Mapping[str, Collection[int]]:
    """Return for each topic those of some batches that read an earlier topic of its name.

    :param ranges: of a batch of the group; of a topic that was recreated since, nothing is earlier
    :param batch_ids: of any group
    """
    stored = tables.consumed_offsets.c
    query = sa.select(stored.topic, stored.topic_id).where(stored.consumer_group == group_id)
    current = {row.topic: row.topic_id for row in conn.execute(query)}
    ids = {each.topic: each.topic_id for each in ranges if not is_other_topic(current.get(each.topic), each.topic_id)}
    # The last batch of those that were compacted together has the ranges of all.
    batches = tables.offset_batches.c
    found, read_by = defaultdict[str, list[int]](list), defaultdict[int, list[int]](list)
    groups: dict[str, Compacted] = {}
    group_of = sa.select(batches.batch_id, batches.consumer_group)
    for some in portions(sorted(batch_ids), _AT_ONCE):
        for number, group in conn.execute(group_of.where(batches.batch_id.in_(some))).all():
            if group not in groups:
                groups[group] = Compacted.of(conn, tables, group)
            span = groups[group].span_of(number)
            read_by[number if span is None else span[1]].append(number)
    read = tables.offset_ranges.c
    of_topics = sa.select(read.batch_id, read.topic, read.topic_id).where(read.topic.in_(ids)).distinct()
    for some in portions(sorted(read_by), _AT_ONCE):
        for row in conn.execute(of_topics.where(read.batch_id.in_(some))):
            if is_other_topic(row.topic_id, ids[row.topic]):
                found[row.topic] += read_by[row.batch_id]
    return found
