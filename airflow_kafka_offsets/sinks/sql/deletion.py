"""Deleting rows of a target by where they are from."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.sinks.sink import Batches, Condition, Origin, Removed

_ORIGIN = (BATCH_ID, "_kafka_topic", "_kafka_partition", "_kafka_offset")


def remove(
    conn: Connection, table: sa.Table | None, name: str, replaced: Condition, of_batches: Batches
) -> list[Removed]:
    """See `SqlTable.remove`."""
    if table is None:
        # A table that was dropped holds nothing twice.
        return []
    missing = [column for column in _ORIGIN if column not in table.columns]
    if missing:
        raise ConfigurationError(
            f"Table {name!r} has no column {', '.join(missing)}: which of its rows are of the offsets that are to be replaced "
            "is not known. Nothing was changed; delete the rows yourself and rewind without replacing, or load into a new table."
        )
    origin = Origin(*(table.columns[column] for column in _ORIGIN))
    _check_rows(conn, origin, name, of_batches)
    condition = of_batches.include(origin.batch_id) & replaced(origin)
    keys = origin[:3]
    found = conn.execute(sa.select(*keys, sa.func.count()).where(condition).group_by(*keys)).all()
    conn.execute(table.delete().where(condition))
    return [Removed(batch, TopicPartition(topic, partition), count) for batch, topic, partition, count in found]


def _check_rows(conn: Connection, origin: Origin, name: str, of_batches: Batches) -> None:
    silent = sa.or_(*(column.is_(None) for column in origin[1:]))
    batch = conn.scalar(sa.select(sa.func.min(origin.batch_id)).where(of_batches.include(origin.batch_id), silent))
    if batch is not None:
        raise ConfigurationError(
            f"Table {name!r} holds rows of batch {batch} that do not say their topic, partition and offset: which of them are of "
            "the offsets that are to be replaced is not known. Nothing was changed; have the transform keep the columns "
            "_kafka_topic, _kafka_partition and _kafka_offset, and delete these rows yourself."
        )
