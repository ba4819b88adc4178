"""Positions that are moved without loading: a rewind, an undo or an import, as rows of the state tables.

Nothing is decided or checked here: the caller has locked the group's row, and compared the stored positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, TopicPartition
from airflow_kafka_offsets.core.spans import Span
from airflow_kafka_offsets.database.transactions import database_now
from airflow_kafka_offsets.ledger.batch_rows import insert_batch, insert_gaps, insert_ranges
from airflow_kafka_offsets.ledger.replaced_output import replace_output
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.ledger.task_run import TaskRun
from airflow_kafka_offsets.sinks.sink import Sink


def move_positions(
    conn: Connection,
    tables: Tables,
    group_id: str,
    moves: Sequence[OffsetRange],
    gaps: Sequence[Gap],
    *,
    owner: TaskRun,
    kind: str,
    generation: int,
    cluster_id: str,
    target: Sink | None = None,
    replaced: Mapping[TopicPartition, Span] | None = None,
    **of_batch: object,
) -> int:
    """Move positions of a group, with a committed batch in its history.

    :param moves: from `start`, the stored position, to `end`; `how` is "chosen" if none is stored, "removed" if none remains
    :param gaps: the offsets that are skipped
    :param kind: rewind, undo or import
    :param generation: of the group from now on
    :param cluster_id: of the Kafka cluster that the group belongs to from now on
    :param target: the table whose rows of `replaced` are deleted, with their dead letters
    :param replaced: the offsets whose output is deleted
    :param of_batch: values of other columns of the batch
    :return: the id of the batch
    :raises ConfigurationError: the rows of the target do not say where they are from, or the group loads into another table
    """
    now = database_now(conn)
    batch_id = insert_batch(
        conn,
        tables,
        group_id,
        owner,
        kind,
        generation,
        state="committed",
        planned_at=now,
        committed_at=now,
        target_table=target.name if target is not None else None,
        **of_batch,
    )
    insert_ranges(conn, tables, batch_id, moves, replaced)
    insert_gaps(conn, tables, batch_id, gaps)
    if target is not None:
        replace_output(conn, tables, group_id, batch_id, target)
    offsets, groups = tables.consumed_offsets, tables.consumer_groups
    stored = [{"of_topic": move.topic, "of_partition": move.partition} for move in moves if move.how != "chosen"]
    if stored:
        conn.execute(
            offsets.delete().where(
                offsets.c.consumer_group == group_id,
                offsets.c.topic == sa.bindparam("of_topic"),
                offsets.c.partition == sa.bindparam("of_partition"),
            ),
            stored,
        )
    rows = [
        {
            "consumer_group": group_id,
            "topic": move.topic,
            "partition": move.partition,
            "offset_value": move.end,
            "topic_id": move.topic_id,
            "leader_epoch": move.end_epoch,
            # The timestamp is that of the last record loaded, which is not the one before this position.
            "record_timestamp": None,
            "batch_id": batch_id,
            "updated_at": now,
        }
        for move in moves
        if move.how != "removed"
    ]
    if rows:
        conn.execute(offsets.insert(), rows)
    conn.execute(
        groups.update().where(groups.c.group_id == group_id).values(generation=generation, cluster_id=cluster_id)
    )
    return batch_id
