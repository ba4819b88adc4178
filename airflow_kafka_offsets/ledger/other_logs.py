"""Batches of another topic of the same name: the offsets of their records say nothing of which record is newer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.chunks import portions
from airflow_kafka_offsets.core.history import DEAD_LETTERS
from airflow_kafka_offsets.core.log_identity import is_other_topic
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.compaction import Compacted
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.sinks.target_rows import OtherLogs

# Numbers in a query: databases have a limit.
_AT_ONCE = 1_000


def of_other_logs(tables: Tables, batch: Batch, kind: str, conn: Connection, batch_ids: Collection[int]) -> OtherLogs:
    """Return those of some batches that read another topic of a name that a batch reads.

    Of two topics, the later one is that of the batch with the higher number, of dead letters that of the batch that
    left them.

    :param kind: of the batch
    :param batch_ids: of any group
    """
    others = OtherLogs(defaultdict(list), defaultdict(list))
    ids, own = {each.topic: each.topic_id for each in batch.ranges}, batch.batch_id
    if kind == DEAD_LETTERS:
        letters = tables.dead_letters.c
        of_batch = (letters.consumer_group == batch.group_id) & (letters.replayed_by == own)
        own = conn.scalar(sa.select(sa.func.min(letters.batch_id)).where(of_batch)) or own
    # The last batch of those that were compacted together has the ranges of all.
    batches, replaced = tables.offset_batches.c, tables.replaced_output.c
    left_by = sa.select(sa.func.min(replaced.replaced_batch_id)).where(replaced.batch_id == batches.batch_id)
    since = sa.case((batches.kind == DEAD_LETTERS, left_by.scalar_subquery()))
    query = sa.select(batches.batch_id, batches.consumer_group, since)
    groups, read_by = dict[str, Compacted](), defaultdict[int, list[int]](list)
    numbers = dict[int, int]()
    for some in portions(sorted(batch_ids), _AT_ONCE):
        for number, group, source in conn.execute(query.where(batches.batch_id.in_(some))).all():
            if group not in groups:
                groups[group] = Compacted.of(conn, tables, group)
            span = groups[group].span_of(number)
            read_by[number if span is None else span[1]].append(number)
            numbers[number] = source or number
    read = tables.offset_ranges.c
    of_topics = sa.select(read.batch_id, read.topic, read.topic_id).where(read.topic.in_(ids)).distinct()
    for some in portions(sorted(read_by), _AT_ONCE):
        for row in conn.execute(of_topics.where(read.batch_id.in_(some))):
            if is_other_topic(row.topic_id, ids[row.topic]):
                for number in read_by[row.batch_id]:
                    (others.older if numbers[number] < own else others.newer)[row.topic].append(number)
    return others
