"""Dead letters as rows: written with their errors, sent to a topic, and dropped when they are old."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.chunks import chunks
from airflow_kafka_offsets.core.history import OPEN_STATES
from airflow_kafka_offsets.core.instants import format_instant
from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.database.mysql import is_mysql
from airflow_kafka_offsets.database.tables import octets
from airflow_kafka_offsets.database.transactions import database_now, stream, transact
from airflow_kafka_offsets.exceptions import LedgerError
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.tables import Ledger, Tables

if TYPE_CHECKING:
    import pyarrow as pa

DROPPED = "dropped"
"""The error class of a dead letter whose contents were deleted on purpose."""

TOO_LARGE = "size"
"""The error class of a dead letter whose contents were never kept: they are in Kafka only."""

DECODED = "decoded"
"""The error class of a dead letter whose record had expired: its value is what that was decoded to, as JSON."""

WITHOUT_RECORD = (TOO_LARGE, DECODED)
"""The error classes of dead letters that do not hold their record."""

EMPTY = {"key": None, "value": None, "headers": None, "error_class": DROPPED}
"""The columns of such a dead letter, beside its error, which is the decision."""

_EXPIRED_AT_ONCE = 1_000

# Of one: more than `Reading.max_record_bytes` is set to, and an executor can decode.
_MOST_BYTES = 512 << 20

# The rest of the statement that inserts a dead letter.
_OF_STATEMENT = 200_000

_RENAMED = {"offset": "offset_value", "timestamp": "record_timestamp"}


def may_be_published(tables: Tables, group_id: str) -> sa.ColumnElement[bool]:
    """Return the condition for dead letters whose rows an external target may have, because a replay began to publish
    them.
    """
    batches, replayed_by = tables.offset_batches.c, tables.dead_letters.c.replayed_by
    publishing = sa.select(batches.batch_id).where(
        batches.consumer_group == group_id, batches.state.in_(OPEN_STATES), batches.publish_started_at.is_not(None)
    )
    # Never null, so that its negation is true of the others.
    return sa.and_(replayed_by.is_not(None), replayed_by.in_(publishing))


def insert_dead_letters(conn: Connection, tables: Tables, batch: Batch, dead_letters: Iterable[pa.RecordBatch]) -> None:
    """Insert the dead letters of a batch, without the contents of erased records.

    :param dead_letters: record batches with the columns of `staging.dead_letters.SCHEMA`
    """
    of_batch = {"batch_id": batch.batch_id, "consumer_group": batch.group_id}
    most: int | None = None
    has_erased = False
    for chunk in dead_letters:
        if most is None:  # not before there are any: most batches have none
            most = _most_bytes(conn)
            has_erased = _has_erased(conn, tables, batch.group_id)
        rows = [
            {_RENAMED.get(name, name): value for name, value in dead_letter.items()} | of_batch
            for dead_letter in chunk.to_pylist()
        ]
        if has_erased:
            rows = _without_erased(conn, tables, batch, rows)
        conn.execute(tables.dead_letters.insert(), [_fitting(row, most) for row in rows])


def erase(conn: Connection, tables: Tables, condition: sa.ColumnElement[bool], decision: str) -> int:
    """Delete the contents of dead letters, and note their offsets: if their records are dead-lettered again, their
    contents are not kept.

    :param condition: which dead letters
    :param decision: who erases them, when and why
    :return: how many there were
    """
    dead_letters, ranges, erased = tables.dead_letters, tables.offset_ranges, tables.erased_offsets
    _, *place = dead_letters.primary_key
    of_range = sa.and_(*(ranges.c[name] == dead_letters.c[name] for name in ("batch_id", "topic", "partition")))
    topic_id = sa.func.coalesce(ranges.c.topic_id, "")
    is_noted = [column == erased.c[column.name] for column in (dead_letters.c.consumer_group, *place)]
    found = (
        sa.select(dead_letters.c.consumer_group, *place, topic_id, sa.literal(decision, erased.c.decision.type))
        .join_from(dead_letters, ranges, of_range, isouter=True)
        .where(condition, ~sa.exists().where(*is_noted, erased.c.topic_id == topic_id))
        .distinct()
    )
    conn.execute(erased.insert().from_select(list(erased.c.keys()), found))
    return conn.execute(dead_letters.update().where(condition).values(**EMPTY, error=decision)).rowcount


def _has_erased(conn: Connection, tables: Tables, group_id: str) -> bool:
    of_group = tables.erased_offsets.c.consumer_group == group_id
    return conn.scalar(sa.select(sa.literal(1)).where(of_group).limit(1)) is not None


def _without_erased(conn: Connection, tables: Tables, batch: Batch, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return dead letters of a batch, those of erased records with the decision instead of their contents."""
    erased, topic_ids = tables.erased_offsets.c, {range_.topic_partition: range_.topic_id for range_ in batch.ranges}
    offsets: dict[TopicPartition, list[int]] = defaultdict(list)
    for row in rows:
        offsets[TopicPartition(row["topic"], row["partition"])].append(row["offset_value"])
    decisions: dict[tuple[str, int, int], str] = {}
    for tp, found in offsets.items():
        wanted = set(found)
        query = sa.select(erased.offset_value, erased.decision).where(
            erased.consumer_group == batch.group_id,
            erased.topic == tp.topic,
            erased.partition == tp.partition,
            erased.offset_value.between(min(found), max(found)),
        )
        # Not of an earlier topic of this name.
        if (topic_id := topic_ids.get(tp)) is not None:
            query = query.where(erased.topic_id.in_(("", topic_id)))
        # There may be others between them.
        rows_of = stream(conn, query)
        decisions |= {(*tp, row.offset_value): row.decision for row in rows_of if row.offset_value in wanted}
    places = [(row["topic"], row["partition"], row["offset_value"]) for row in rows]
    return [
        row | EMPTY | {"error": decisions[place]} if place in decisions else row
        for place, row in zip(places, rows, strict=True)
    ]


def _most_bytes(conn: Connection) -> int:
    """Return how many bytes of contents a statement can have: MySQL closes the connection for more."""
    if not is_mysql(conn.dialect):
        return sys.maxsize
    # A byte may be two in the statement.
    return int(conn.scalar(sa.text("SELECT @@max_allowed_packet")) or 0) // 2 - _OF_STATEMENT


def _fitting(row: dict[str, Any], most: int) -> dict[str, Any]:
    if sum(len(row[name] or "") for name in ("key", "value", "headers")) <= most:
        return row
    error = f"{row['error']}; its contents are not kept: max_allowed_packet of the database is too small for them"
    return row | {"key": None, "value": None, "headers": None, "error": error, "error_class": TOO_LARGE}


def unsent_batches(conn: Connection, tables: Tables, group_id: str) -> Sequence[int]:
    """Return the batches of a group whose dead letters are to be written to a topic."""
    batches = tables.offset_batches.c
    query = sa.select(batches.batch_id).where(batches.consumer_group == group_id, tables.unsent)
    return conn.scalars(query.order_by(batches.batch_id)).all()


def unsent_dead_letters(conn: Connection, tables: Tables, batch_id: int) -> Iterator[sa.Row[Any]]:
    """Yield the dead letters of a batch, except those whose contents were dropped meanwhile."""
    dead_letters = tables.dead_letters.c
    is_unsent = sa.and_(dead_letters.batch_id == batch_id, dead_letters.error_class.is_distinct_from(DROPPED))
    return with_contents(conn, tables, list(dead_letters), is_unsent)


def with_contents(
    conn: Connection,
    tables: Tables,
    columns: Sequence[sa.Column[Any]],
    condition: sa.ColumnElement[bool],
    limit: int | None = None,
) -> Iterator[Any]:
    """Yield dead letters in the order of their batches, partitions and offsets, and read as many at once as fit into
    memory: one may have hundreds of megabytes.

    :param columns: of a row
    :param limit: the most of them
    :raises LedgerError: one is larger than a load writes
    """
    dead_letters = tables.dead_letters.c
    place = tuple(tables.dead_letters.primary_key)
    contents = (dead_letters.key, dead_letters.value, dead_letters.headers, dead_letters.error)
    size = sum((sa.func.coalesce(octets(column, conn.dialect), 0) for column in contents), start=sa.literal(0))
    places = sa.select(*place, size).where(condition).order_by(*place).limit(limit)
    for some in chunks(stream(conn, places), lambda row: int(row[-1])):
        if some[-1][-1] > _MOST_BYTES:
            raise LedgerError(
                f"Dead letter at topic {some[-1].topic!r} partition {some[-1].partition} offset "
                f"{some[-1].offset_value} of batch {some[-1].batch_id} has {some[-1][-1]:,} bytes, which no load has "
                "written: drop it"
            )
        are_these = sa.tuple_(*place).in_([tuple(row[:-1]) for row in some])
        yield from conn.execute(sa.select(*columns).where(condition, are_these).order_by(*place))


def mark_sent(ledger: Ledger, batch_id: int, topic: str) -> None:
    """Store that the dead letters of a batch are in a topic."""
    batches = ledger.tables.offset_batches

    def work(conn: Connection) -> None:
        sent = batches.update().where(batches.c.batch_id == batch_id, ledger.tables.unsent)
        conn.execute(sent.values(dead_letter_topic=topic, dead_letters_sent_at=database_now(conn)))

    transact(ledger.engine, work)


def drop_expired(conn: Connection, tables: Tables, group_id: str, retention: timedelta) -> int:
    """Delete the contents of dead letters whose batches were committed longer ago, the oldest first, as many as a
    commit has time for. Dead letters that are not yet written to their topic are kept.

    :return: their number
    """
    dead_letters, batches = tables.dead_letters, tables.offset_batches.c
    now = database_now(conn)
    unsent = sa.select(batches.batch_id).where(batches.consumer_group == group_id, tables.unsent)
    oldest = (
        sa.select(*dead_letters.primary_key)
        .where(
            dead_letters.c.consumer_group == group_id,
            tables.with_contents,
            dead_letters.c.batch_id.not_in(unsent),
            sa.not_(may_be_published(tables, group_id)),
        )
        .order_by(dead_letters.c.batch_id)
        .limit(_EXPIRED_AT_ONCE)
        .subquery()
    )
    is_expired = batches.committed_at < now - retention
    expired = conn.execute(
        sa.select(oldest).join(tables.offset_batches, batches.batch_id == oldest.c.batch_id).where(is_expired)
    ).all()
    if not expired:
        return 0
    places = {f"of_{column.name}": column for column in dead_letters.primary_key}
    of_dead_letter = [column == sa.bindparam(name, type_=column.type) for name, column in places.items()]
    decision = f"dropped at {format_instant(now)}: older than DeadLetters.retention, {retention}"
    conn.execute(
        dead_letters.update().where(*of_dead_letter).values(**EMPTY, error=decision),
        [dict(zip(places, row, strict=True)) for row in expired],
    )
    return len(expired)
