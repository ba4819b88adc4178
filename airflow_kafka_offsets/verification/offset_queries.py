"""Which single offsets batches without a transform left in the target or set aside: those there twice, and those of a span."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.verification.batch_records import OFFSET, PARTITION, TOPIC, Output
from airflow_kafka_offsets.verification.findings import Span

_ROWS_AT_ONCE = 10_000


class DuplicatedOffset(NamedTuple):
    """Offsets of a partition that a batch loaded as rows and as dead letters."""

    topic: str
    partition: int
    batch_id: int
    first_offset: int
    offsets: int


def dead_letters_loaded(conn: Connection, tables: Tables, target: Output, group_id: str) -> list[DuplicatedOffset]:
    """Return dead letters of batches without a transform that the same batch wrote rows of."""
    batches, letters = tables.offset_batches, tables.dead_letters
    assert target.table is not None
    columns = target.table.columns
    both = sa.and_(
        columns[BATCH_ID] == letters.c.batch_id,
        columns[TOPIC] == letters.c.topic,
        columns[PARTITION] == letters.c.partition,
        columns[OFFSET] == letters.c.offset_value,
    )
    keys = (letters.c.topic, letters.c.partition, letters.c.batch_id)
    query = (
        sa.select(*keys, sa.func.min(letters.c.offset_value), sa.func.count())
        .select_from(letters.join(batches, batches.c.batch_id == letters.c.batch_id).join(target.table, both))
        .where(*_committed_as_they_are(batches, group_id))
        .group_by(*keys)
        .order_by(*keys)
    )
    return [DuplicatedOffset(*row) for row in conn.execute(query)]


def of_span(
    conn: Connection, tables: Tables, target: Output, group_id: str, span: Span, start: int, end: int
) -> Iterator[int]:
    """The offsets in [start, end) that the batches of a span left in the target or set aside, in ascending order."""
    each = _loaded(tables, target, group_id, span).subquery()
    query = (
        sa.select(each.c.offset_value)
        .where(each.c.offset_value >= start, each.c.offset_value < end)
        .order_by(each.c.offset_value)
        # Of any number, so that they must not all come at once.
        .execution_options(yield_per=_ROWS_AT_ONCE)
    )
    with conn.execute(query) as result:
        for some in result.scalars().partitions():
            yield from some


def batch_at(conn: Connection, tables: Tables, group_id: str, span: Span, offset: int) -> int:
    """Return the batch of a span whose range an offset is in."""
    ranges, batches = tables.offset_ranges, tables.offset_batches
    found: int | None = conn.scalar(
        sa.select(ranges.c.batch_id)
        .join(batches, batches.c.batch_id == ranges.c.batch_id)
        .where(
            *_committed_as_they_are(batches, group_id),
            ranges.c.batch_id.between(span.first_batch, span.last_batch),
            ranges.c.topic == span.topic,
            ranges.c.partition == span.partition,
            ranges.c.start_offset <= offset,
            ranges.c.end_offset > offset,
        )
    )
    assert found is not None  # the ranges of a span's batches follow one another
    return found


def _loaded(tables: Tables, target: Output, group_id: str, span: Span) -> sa.CompoundSelect[Any]:
    """One row for each row and each dead letter of a span's batches."""
    batches, letters = tables.offset_batches, tables.dead_letters
    assert target.table is not None
    columns = target.table.columns
    rows = (
        sa.select(columns[OFFSET].label("offset_value"))
        .join(batches, batches.c.batch_id == columns[BATCH_ID])
        .where(
            # Of the column itself: the target may have an index on it.
            columns[BATCH_ID].between(span.first_batch, span.last_batch),
            columns[TOPIC] == span.topic,
            columns[PARTITION] == span.partition,
        )
    )
    dead_letters = (
        sa.select(letters.c.offset_value)
        .join(batches, batches.c.batch_id == letters.c.batch_id)
        .where(
            letters.c.batch_id.between(span.first_batch, span.last_batch),
            letters.c.topic == span.topic,
            letters.c.partition == span.partition,
        )
    )
    committed = _committed_as_they_are(batches, group_id)
    return sa.union_all(rows.where(*committed), dead_letters.where(*committed))


def _committed_as_they_are(batches: sa.Table, group_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Batches that left a row for every record."""
    return (batches.c.consumer_group == group_id, batches.c.state == "committed", batches.c.transform.is_(None))
