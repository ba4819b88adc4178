"""The current positions of a group: the next offset to read of every partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.offsets import OffsetRange, Position, TopicPartition
from airflow_kafka_offsets.exceptions import PositionConflictError
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.tables import Tables


@dataclass(frozen=True, slots=True)
class RangeRead:
    """What reading a range showed.

    :param records: those that the batch loads, dead letters among them; None where not all of it was read
    :param first_timestamp: the oldest record's
    :param last_timestamp: the newest record's
    :param bytes: of keys and values, as read
    :param dead_letters: how many records could not be decoded
    """

    records: int | None
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    bytes: int = 0
    dead_letters: int = 0


def read_positions(engine: Engine, tables: Tables, group_id: str) -> dict[TopicPartition, Position]:
    """The stored positions of a group."""
    with engine.connect() as conn:
        return stored_positions(conn, tables, group_id)


def stored_positions(conn: Connection, tables: Tables, group_id: str) -> dict[TopicPartition, Position]:
    """The stored positions, within a transaction."""
    offsets = tables.consumed_offsets
    rows = conn.execute(sa.select(offsets).where(offsets.c.consumer_group == group_id))
    return {
        TopicPartition(row.topic, row.partition): Position(row.offset_value, row.topic_id, row.leader_epoch)
        for row in rows
    }


def check_positions(conn: Connection, tables: Tables, batch: Batch) -> None:
    """Check that the stored positions are where a batch starts.

    :raises PositionConflictError: one is another one, or missing
    """
    stored = stored_positions(conn, tables, batch.group_id)
    skipped_from = {TopicPartition(gap.topic, gap.partition): gap.start for gap in batch.gaps}
    for range_ in batch.ranges:
        tp = range_.topic_partition
        position = stored.get(tp)
        expected = skipped_from.get(tp, range_.start)
        if position is None and range_.how not in ("stored", "skipped-gap"):
            continue  # the first batch of the partition
        if position is None or position.offset != expected:
            raise PositionConflictError(
                f"Batch {batch.batch_id} of group {batch.group_id!r} starts {tp} at offset {expected}, but the stored "
                f"position is {position.offset if position else 'missing'}. The positions were changed by something other "
                "than this package. Nothing was written; find out what changed them, and restore the position or abandon the "
                "batch."
            )


def set_positions(
    conn: Connection,
    tables: Tables,
    group_id: str,
    batch_id: int,
    ranges: Sequence[OffsetRange],
    stored: Mapping[TopicPartition, Position],
    reads: Mapping[TopicPartition, RangeRead],
    now: datetime,
) -> None:
    """Every position becomes its range's end: not "last record + 1", since a range may end in offsets without a record."""
    offsets = tables.consumed_offsets
    inserts: list[dict[str, object]] = []
    for one in ranges:
        tp = one.topic_partition
        read = reads.get(tp, RangeRead(0))
        values: dict[str, object] = {
            "offset_value": one.end,
            "topic_id": one.topic_id,
            "leader_epoch": one.epoch_after,
            "batch_id": batch_id,
            "updated_at": now,
        }
        if read.last_timestamp is not None:
            values["record_timestamp"] = read.last_timestamp
        if tp in stored:
            conn.execute(
                offsets.update()
                .where(
                    offsets.c.consumer_group == group_id,
                    offsets.c.topic == tp.topic,
                    offsets.c.partition == tp.partition,
                )
                .values(**values)
            )
        else:
            inserts.append(
                {"record_timestamp": None}
                | values
                | {"consumer_group": group_id, "topic": tp.topic, "partition": tp.partition}
            )
    if inserts:
        conn.execute(offsets.insert(), inserts)
