"""The positions of a group: for each partition, the next offset to read.

A load moves them in the transaction of its commit (`ledger.claims`), and a rewind in `rewinding.execution`; first
positions are in `ledger.batches`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import OffsetRange, Position, TopicPartition
from airflow_kafka_offsets.database.transactions import database_now
from airflow_kafka_offsets.exceptions import LedgerError, PositionConflictError
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.tables import Ledger, Tables, UtcDateTime

# As many partitions as a cluster of Kafka has with ZooKeeper, and groups with that many are none of a person's.
_MOST_POSITIONS = 200_000


@dataclass(frozen=True, slots=True)
class RangeRead:
    """The read of a range. The fields are columns of `offset_ranges`.

    :param records: the number of records, dead letters included; None if the range was not read to its end
    :param first_timestamp: the timestamp of the oldest record
    :param last_timestamp: the timestamp of the newest record
    :param bytes: the size of keys and values
    :param dead_letters: the number of dead-lettered records
    """

    records: int | None
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    bytes: int = 0
    dead_letters: int = 0


Reads = Mapping[TopicPartition, RangeRead]
"""What was read of each range of a batch."""


def without_dead_letters(reads: Reads) -> dict[TopicPartition, RangeRead]:
    """Return what was read of ranges without the records that are dead letters."""
    return {
        tp: replace(read, records=None if read.records is None else read.records - read.dead_letters, dead_letters=0)
        for tp, read in reads.items()
    }


def read_positions(ledger: Ledger, group_id: str) -> dict[TopicPartition, Position]:
    """Return the stored positions of a group."""
    with ledger.connect() as conn:
        return stored_positions(conn, ledger.tables, group_id)


def stored_positions(conn: Connection, tables: Tables, group_id: str) -> dict[TopicPartition, Position]:
    """Return the stored positions of a group, within a transaction.

    :raises LedgerError: there are more than a load stores
    """
    offsets = tables.consumed_offsets
    if error := too_many_positions(conn, tables, [group_id]).get(group_id):
        raise error
    rows = conn.execute(sa.select(offsets).where(offsets.c.consumer_group == group_id))
    return {
        TopicPartition(row.topic, row.partition): Position(row.offset_value, row.topic_id, row.leader_epoch)
        for row in rows
    }


def too_many_positions(conn: Connection, tables: Tables, group_ids: Sequence[str]) -> dict[str, LedgerError]:
    """Return those of some groups that have more positions than is worth the memory, with the error for each."""
    group_id = tables.consumed_offsets.c.consumer_group
    counted = sa.select(group_id, sa.func.count().label("stored")).where(group_id.in_(group_ids)).group_by(group_id)
    return {
        name: LedgerError(
            f"Group {name!r} has {stored:,} positions in {tables.consumed_offsets.fullname!r}, of which no load stores "
            f"more than {_MOST_POSITIONS:,}: another program wrote rows. Delete those of partitions that do not exist"
        )
        for name, stored in conn.execute(counted.having(sa.func.count() > _MOST_POSITIONS))
    }


def positions_unmoved_for(ledger: Ledger, group_id: str, time: timedelta) -> dict[TopicPartition, int]:
    """Return the positions that have not moved for some time."""
    offsets = ledger.tables.consumed_offsets
    with ledger.connect() as conn:
        of_group = (offsets.c.consumer_group == group_id, offsets.c.updated_at <= database_now(conn) - time)
        rows = conn.execute(sa.select(offsets.c.topic, offsets.c.partition, offsets.c.offset_value).where(*of_group))
        return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}


def check_positions(conn: Connection, tables: Tables, batch: Batch) -> None:
    """Check that the stored positions are the offsets at which a batch starts.

    :raises PositionConflictError: a position is another offset, or missing
    """
    stored, starts = stored_positions(conn, tables, batch.group_id), batch.starts
    for range_ in batch.ranges:
        tp = range_.topic_partition
        position = stored.get(tp)
        if position is None and not range_.continues:
            continue  # the first batch of the partition
        if position is None or position.offset != starts[tp]:
            raise PositionConflictError(
                f"Batch {batch.batch_id} of group {batch.group_id!r} starts {tp} at offset {starts[tp]}, but the "
                f"stored position is {position.offset if position else 'missing'}. The position was changed without "
                "this package. Nothing was written; find out what changed it, and restore it or abandon the batch."
            )


def positions_after(ranges: Iterable[OffsetRange]) -> dict[TopicPartition, Position]:
    """Return the positions after ranges were loaded. They are not the last record + 1: a range may end with offsets
    without a record.
    """
    return {range_.topic_partition: Position(range_.end, range_.topic_id, range_.epoch_after) for range_ in ranges}


def set_positions(
    conn: Connection,
    tables: Tables,
    group_id: str,
    batch_id: int,
    positions: Mapping[TopicPartition, Position],
    now: datetime,
    reads: Reads | None = None,
) -> None:
    """Store positions of a group.

    :param reads: what was loaded before them; without a record, the timestamp of an earlier batch stays
    """
    offsets, stored, reads = tables.consumed_offsets, stored_positions(conn, tables, group_id), reads or {}
    rows = {
        tp: bound_partition(tp)
        | {
            "offset_value": position.offset,
            "topic_id": position.topic_id,
            "leader_epoch": position.leader_epoch,
            "batch_id": batch_id,
            "updated_at": now,
            "newest": reads[tp].last_timestamp if tp in reads else None,
        }
        for tp, position in positions.items()
    }
    timestamp = sa.bindparam("newest", type_=UtcDateTime())
    update = offsets.update().where(offsets.c.consumer_group == group_id, is_bound_partition(offsets))
    update = update.values(record_timestamp=sa.func.coalesce(timestamp, offsets.c.record_timestamp))
    insert = offsets.insert().values(
        consumer_group=group_id,
        topic=sa.bindparam("of_topic"),
        partition=sa.bindparam("of_partition"),
        record_timestamp=timestamp,
    )
    for statement, kept in ((update, rows.keys() & stored.keys()), (insert, rows.keys() - stored.keys())):
        if kept:
            conn.execute(statement, [rows[tp] for tp in sorted(kept)])


def store_reads(conn: Connection, tables: Tables, batch_id: int, reads: Reads) -> None:
    """Store what was read of the ranges of a batch."""
    ranges = tables.offset_ranges
    if reads:
        conn.execute(
            ranges.update().where(ranges.c.batch_id == batch_id, is_bound_partition(ranges)),
            [bound_partition(tp) | asdict(read) for tp, read in reads.items()],
        )


def bound_partition(partition: TopicPartition) -> dict[str, object]:
    """Return a partition as the parameters of `is_bound_partition`."""
    return {"of_topic": partition.topic, "of_partition": partition.partition}


def is_bound_partition(table: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition for rows of a partition that is a parameter of the statement."""
    return (table.c.topic == sa.bindparam("of_topic")) & (table.c.partition == sa.bindparam("of_partition"))
