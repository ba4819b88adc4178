"""Which dead letters of a group are meant, and what is stored of them: counted, read, shown as a page, dropped.

A dropped dead letter loses its key, value, headers and error. Its offset, and who dropped it, stay: `verify` counts it
as before, and the next dead letter of its record has no contents either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.instants import format_instant
from airflow_kafka_offsets.core.offsets import OffsetRange
from airflow_kafka_offsets.database.errors import translated_errors
from airflow_kafka_offsets.database.transactions import database_now, stream, transact
from airflow_kafka_offsets.ledger.batch_rows import current_user
from airflow_kafka_offsets.ledger.dead_letters import DROPPED, WITHOUT_RECORD, erase, may_be_published, with_contents
from airflow_kafka_offsets.ledger.groups import cluster_of, lock
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.staging.rows import Record


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Dead letters of a group: all, or those that meet all given conditions.

    :param group_id: the group whose loads dead-lettered the records
    :param batch_id: the batch that dead-lettered the records
    :param error_class: value, key, header, size, crash, transform, target, decoded, dropped
    :param ranges: offsets of partitions
    :param schema_id: at the beginning of the value
    :param committed_before: when their batch was committed
    :param key: of the records, as Kafka has it
    """

    group_id: str
    batch_id: int | None = None
    error_class: str | None = None
    ranges: Sequence[OffsetRange] = ()
    schema_id: int | None = None
    committed_before: datetime | None = None
    key: bytes | None = None

    def condition(self, tables: Tables) -> sa.ColumnElement[bool]:
        """Return the condition for their rows. Dropped ones are meant only where their class is named."""
        dead_letters = tables.dead_letters.c
        conditions = [dead_letters.consumer_group == self.group_id]
        if self.batch_id is not None:
            conditions.append(dead_letters.batch_id == self.batch_id)
        is_meant = dead_letters.error_class.is_distinct_from(DROPPED)
        conditions.append(is_meant if self.error_class is None else dead_letters.error_class == self.error_class)
        if self.schema_id is not None:
            conditions.append(dead_letters.schema_id == self.schema_id)
        if self.key is not None:
            conditions.append(dead_letters.key == self.key)
        if self.committed_before is not None:
            batches = tables.offset_batches.c
            older = sa.select(batches.batch_id).where(
                batches.consumer_group == self.group_id, batches.committed_at < self.committed_before
            )
            conditions.append(dead_letters.batch_id.in_(older))
        if self.ranges:
            within = (
                (dead_letters.topic == range_.topic)
                & (dead_letters.partition == range_.partition)
                & dead_letters.offset_value.between(range_.start, range_.end - 1)
                for range_ in self.ranges
            )
            conditions.append(sa.or_(*within))
        return sa.and_(*conditions)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter.

    :param headers: JSON: a list of [key, value], with values in base64 or null; None without headers
    :param schema_id: at the beginning of the value, where its format has a registry
    """

    batch_id: int
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: str | None
    timestamp: datetime | None
    error_class: str | None
    error: str
    schema_id: int | None = None

    @property
    def record(self) -> Record:
        return Record(self.topic, self.partition, self.offset)


def summary(conn: Connection, tables: Tables, dead_letters: DeadLetterFilter) -> list[dict[str, Any]]:
    """Return how many there are of each batch, partition, error class and schema, with the first offset, the last, the
    number of different errors, and one of these.
    """
    columns = tables.dead_letters.c
    keys = (columns.batch_id, columns.topic, columns.partition, columns.error_class, columns.schema_id)
    offset = columns.offset_value
    query = (
        sa.select(
            columns.batch_id.label("batch"),
            *keys[1:],
            sa.func.count().label("records"),
            sa.func.min(offset).label("first"),
            sa.func.max(offset).label("last"),
            sa.func.count(sa.distinct(columns.error)).label("errors"),
            sa.func.min(columns.error).label("error"),
        )
        .where(dead_letters.condition(tables))
        .group_by(*keys)
        .order_by(*keys)
    )
    return [{str(name): value for name, value in row.items()} for row in conn.execute(query).mappings()]


def topics(conn: Connection, tables: Tables, dead_letters: DeadLetterFilter) -> list[str]:
    """Return the topics of dead letters."""
    topic = tables.dead_letters.c.topic
    return list(conn.scalars(sa.select(topic).where(dead_letters.condition(tables)).distinct().order_by(topic)))


def can_be_replayed(tables: Tables, dead_letters: DeadLetterFilter, *, corrected: bool) -> sa.ColumnElement[bool]:
    """Return the condition for dead letters that can be replayed, as far as the columns say.

    :param corrected: whether they need not hold their record
    """
    error_class = tables.dead_letters.c.error_class
    # Without its value, a dropped one would be a tombstone.
    left_out = (DROPPED,) if corrected else (DROPPED, *WITHOUT_RECORD)
    return sa.and_(dead_letters.condition(tables), sa.func.coalesce(error_class, "").not_in(left_out))


def count_by_batch(
    conn: Connection,
    tables: Tables,
    dead_letters: DeadLetterFilter,
    corrected: Mapping[int, Container[Record]] | None,
) -> Counter[int]:
    """Return how many of the dead letters can be replayed, by batch.

    :param corrected: the only ones that are replayed, by batch; None for all
    """
    batch_id = tables.dead_letters.c.batch_id
    is_meant = can_be_replayed(tables, dead_letters, corrected=corrected is not None)
    if corrected is None:
        counted = sa.select(batch_id, sa.func.count()).where(is_meant).group_by(batch_id).order_by(batch_id)
        return Counter({row.batch_id: row[1] for row in conn.execute(counted)})
    places = stream(conn, sa.select(*tables.dead_letters.primary_key).where(is_meant))
    return Counter(number for number, *place in places if Record(*place) in corrected.get(number, ()))


def read_dead_letters(
    conn: Connection,
    tables: Tables,
    dead_letters: DeadLetterFilter,
    limit: int | None = None,
    *,
    replayed_by: int | None = None,
) -> Iterator[DeadLetter]:
    """Yield dead letters, in the order of their batches, partitions and offsets.

    :param limit: the most of them
    :param replayed_by: only those that this batch replays
    """
    columns = tables.dead_letters.c
    contents = (columns.key, columns.value, columns.headers, columns.record_timestamp)
    condition = dead_letters.condition(tables)
    if replayed_by is not None:
        condition = sa.and_(condition, columns.replayed_by == replayed_by)
    found = [*tables.dead_letters.primary_key, *contents, columns.error_class, columns.error, columns.schema_id]
    for row in with_contents(conn, tables, found, condition, limit):
        yield DeadLetter(*row)


def drop_dead_letters(
    dead_letters: DeadLetterFilter,
    *,
    engine: Engine,
    tables: Tables | None = None,
    who: str | None = None,
    reason: str | None = None,
) -> int:
    """Delete keys, values, headers and errors of dead letters: they cannot be replayed any more. If their records are
    read and dead-lettered again by the group, their contents are not kept.

    :param dead_letters: which ones
    :param engine: the database of the positions
    :param tables: where the state tables are; None is without a schema and a prefix
    :param who: the author, who is stored in their place with the time; None is the user of this process
    :param reason: a note, which is stored with the author
    :return: how many there were
    :raises ConfigurationError: there is no such group
    """
    ledger = Ledger(engine, tables or Tables.of())
    stored = ledger.tables.dead_letters

    def work(conn: Connection) -> int:
        lock(conn, ledger.tables, dead_letters.group_id)
        decision = f"dropped by {who or current_user()} at {format_instant(database_now(conn))}"
        error = f"{decision}: {reason}" if reason else decision
        is_published = may_be_published(ledger.tables, dead_letters.group_id)
        kept = sa.and_(stored.c.error_class.is_distinct_from(DROPPED), sa.not_(is_published))
        return erase(conn, ledger.tables, dead_letters.condition(ledger.tables) & kept, error)

    with translated_errors(f"The dead letters of group {dead_letters.group_id!r} were not dropped", "Try again."):
        with ledger.connect() as conn:
            cluster_of(conn, ledger.tables, dead_letters.group_id)
        return transact(engine, work)


SHOWN_BYTES = 4_096
"""How much of a key, a value, headers or an error is read."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The beginning of bytes or text, and how long all of it is."""

    beginning: bytes | str
    length: int


@dataclass(frozen=True, slots=True)
class DeadLetterExcerpt:
    """A dead letter.

    :param headers: JSON, as `DeadLetter` has it
    """

    batch_id: int
    topic: str
    partition: int
    offset: int
    timestamp: datetime | None
    error_class: str | None
    schema_id: int | None
    error: Excerpt
    key: Excerpt | None
    value: Excerpt | None
    headers: Excerpt | None


def dead_letters_page(
    conn: Connection, tables: Tables, group_id: str, *, batch_id: int | None, offset: int, limit: int
) -> list[DeadLetterExcerpt]:
    """Return dead letters of a group, those of the latest batch first.

    :param batch_id: of one batch; None is all
    :param offset: how many are before the page
    """
    dead_letters = tables.dead_letters.c
    place = tuple(tables.dead_letters.primary_key)
    plain = (dead_letters.record_timestamp, dead_letters.error_class, dead_letters.schema_id)
    excerpts = (dead_letters.error, dead_letters.key, dead_letters.value, dead_letters.headers)
    columns: list[sa.ColumnElement[Any]] = [*place, *plain]
    for column in excerpts:
        # The type says how the database's answer is read: as the column's own.
        columns += [sa.func.substr(column, 1, SHOWN_BYTES, type_=column.type), sa.func.length(column)]
    query = sa.select(*columns).where(dead_letters.consumer_group == group_id)
    if batch_id is not None:
        query = query.where(dead_letters.batch_id == batch_id)
    query = query.order_by(dead_letters.batch_id.desc(), *place[1:]).limit(limit).offset(offset)
    first, rows = len(place) + len(plain), []
    for row in conn.execute(query):
        pairs = zip(row[first::2], row[first + 1 :: 2], strict=True)
        texts = (None if beginning is None else Excerpt(beginning, int(length)) for beginning, length in pairs)
        rows.append(DeadLetterExcerpt(*row[:first], *texts))
    return rows
