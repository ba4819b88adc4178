"""The positions of a group: for each partition, the next offset to read.

A load moves them here, in the transaction of its commit (`ledger.group_claim`); so do first positions that are stored without a batch
(`ledger.first_positions`). Rewinds move them in `ledger.moved_positions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.offsets import OffsetRange, Position, TopicPartition
from airflow_kafka_offsets.exceptions import PositionConflictError
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.tables import Tables, UtcDateTime


@dataclass(frozen=True, slots=True)
class RangeRead:
    """What was read of a range. The fields are columns of `offset_ranges`.

    :param records: how many, dead letters included; None where the range was not read to its end
    :param first_timestamp: of the oldest record
    :param last_timestamp: of the newest record
    :param bytes: of keys and values
    :param dead_letters: how many records could not be decoded
    """

    records: int | None
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    bytes: int = 0
    dead_letters: int = 0


def read_positions(engine: Engine, tables: Tables, group_id: str) -> dict[TopicPartition, Position]:
    """Return the stored positions of a group."""
    with engine.connect() as conn:
        return stored_positions(conn, tables, group_id)


def stored_positions(conn: Connection, tables: Tables, group_id: str) -> dict[TopicPartition, Position]:
    """Return the stored positions of a group, within a transaction."""
    offsets = tables.consumed_offsets
    rows = conn.execute(sa.select(offsets).where(offsets.c.consumer_group == group_id))
    return {
        TopicPartition(row.topic, row.partition): Position(row.offset_value, row.topic_id, row.leader_epoch)
        for row in rows
    }


def check_positions(conn: Connection, tables: Tables, batch: Batch) -> None:
    """Check that the stored positions are the offsets at which a batch starts.

    :raises PositionConflictError: a position is another offset, or missing
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
    """Set each position to the end of its range: not to "last record + 1", since a range may end in offsets without a record.

    :param stored: the positions before
    """
    offsets = tables.consumed_offsets
    updated: list[dict[str, Any]] = []
    inserted: list[dict[str, Any]] = []
    for range_ in ranges:
        tp = range_.topic_partition
        read = reads.get(tp)
        newest = read.last_timestamp if read is not None else None
        values = {
            "offset_value": range_.end,
            "topic_id": range_.topic_id,
            "leader_epoch": range_.epoch_after,
            "batch_id": batch_id,
            "updated_at": now,
        }
        if tp in stored:
            updated.append(values | {"of_topic": tp.topic, "of_partition": tp.partition, "newest": newest})
        else:
            key = {"consumer_group": group_id, "topic": tp.topic, "partition": tp.partition}
            inserted.append(key | values | {"record_timestamp": newest})
    if updated:
        of_partition = (
            (offsets.c.consumer_group == group_id)
            & (offsets.c.topic == sa.bindparam("of_topic"))
            & (offsets.c.partition == sa.bindparam("of_partition"))
        )
        # A batch without records leaves the timestamp of an earlier one.
        newest_ever = sa.func.coalesce(sa.bindparam("newest", type_=UtcDateTime()), offsets.c.record_timestamp)
        conn.execute(offsets.update().where(of_partition).values(record_timestamp=newest_ever), updated)
    if inserted:
        conn.execute(offsets.insert(), inserted)
