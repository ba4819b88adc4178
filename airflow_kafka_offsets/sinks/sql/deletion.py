"""Deletes rows by where they are from: those of a target, and dead letters."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.sinks.sink import Origin, Removed, ReplacedOffsets


def remove(conn: Connection, table: sa.Table | None, name: str, replaced: ReplacedOffsets) -> list[Removed]:
    """Delete rows of a target.

    :param table: None where there is no such table: a table that was dropped holds no duplicates
    :param name: of the target, for messages
    :raises ConfigurationError: the table, or a row, does not say where it is from
    """
    if table is None:
        return []
    missing = [column for column in (BATCH_ID, *RECORD) if column not in table.columns]
    if missing:
        raise ConfigurationError(
            f"Table {name!r} has no column {', '.join(missing)}: which of its rows are of the offsets that are to be replaced "
            "is not known. Nothing was changed; delete the rows yourself and rewind without replacing, or load into a new table."
        )
    origin = Origin(*(table.columns[column] for column in (BATCH_ID, *RECORD)))
    silent = sa.or_(*(column.is_(None) for column in origin[1:]))
    batch = conn.scalar(
        sa.select(sa.func.min(origin.batch_id)).where(replaced.batches.include(origin.batch_id), silent)
    )
    if batch is not None:
        raise ConfigurationError(
            f"Table {name!r} holds rows of batch {batch} that do not say their topic, partition and offset: which of them are of "
            "the offsets that are to be replaced is not known. Nothing was changed; have the transform keep the columns "
            "_kafka_topic, _kafka_partition and _kafka_offset, and delete these rows yourself."
        )
    return delete_rows(conn, table, origin, replaced)


def delete_rows(conn: Connection, table: sa.Table, origin: Origin, replaced: ReplacedOffsets) -> list[Removed]:
    """Delete the rows of replaced offsets, and return how many of each batch and partition these were."""
    condition, keys = replaced.include(origin), origin[:3]
    counts = conn.execute(sa.select(*keys, sa.func.count()).where(condition).group_by(*keys)).all()
    conn.execute(table.delete().where(condition))
    return [Removed(batch, TopicPartition(topic, partition), count) for batch, topic, partition, count in counts]
