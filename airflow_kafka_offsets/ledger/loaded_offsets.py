"""Which single offsets batches without a transform left in the target or set aside: those there twice, and those of a span."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.coverage import Span
from airflow_kafka_offsets.formats import BATCH_ID
from airflow_kafka_offsets.ledger.audit import OFFSET, PARTITION, TOPIC, Output
from airflow_kafka_offsets.ledger.tables import Tables

_ROWS_AT_ONCE = 10_000


class Twice(NamedTuple):
    """Offsets of a partition that were loaded by two batches, or by one as a row and as a dead letter."""

    topic: str
    partition: int
    first_batch: int
    last_batch: int
    first_offset: int
    offsets: int


def loaded_twice(conn: Connection, tables: Tables, target: Output, group_id: str) -> list[Twice]:
    """Offsets that batches without a transform loaded twice, be it as rows or as dead letters."""
    ranges = tables.offset_ranges
    each = _loaded(tables, target, group_id).subquery()
    # A topic that was made anew under the same name has offsets of its own.
    same_range = sa.and_(
        ranges.c.batch_id == each.c.batch_id,
        ranges.c.topic == each.c.topic,
        ranges.c.partition == each.c.partition,
    )
    twice = (
        sa.select(
            each.c.topic,
            each.c.partition,
            each.c.offset_value,
            sa.func.min(each.c.batch_id).label("first_batch"),
            sa.func.max(each.c.batch_id).label("last_batch"),
        )
        .select_from(each.join(ranges, same_range))
        # What was loaded before a rewind and is loaded again after it is there twice by decision.
        .group_by(each.c.topic, ranges.c.topic_id, each.c.partition, each.c.offset_value, each.c.generation)
        .having(sa.func.count() > 1)
        .subquery()
    )
    return _twice(conn, twice)


def dead_letters_loaded(conn: Connection, tables: Tables, target: Output, group_id: str) -> list[Twice]:
    """Dead letters of batches without a transform that the same batch wrote rows of."""
    batches, letters = tables.offset_batches, tables.dead_letters
    assert target.table is not None
    columns = target.table.columns
    both = sa.and_(
        columns[BATCH_ID] == letters.c.batch_id,
        columns[TOPIC] == letters.c.topic,
        columns[PARTITION] == letters.c.partition,
        columns[OFFSET] == letters.c.offset_value,
    )
    twice = (
        sa.select(
            letters.c.topic,
            letters.c.partition,
            letters.c.offset_value,
            letters.c.batch_id.label("first_batch"),
            letters.c.batch_id.label("last_batch"),
        )
        .select_from(letters.join(batches, batches.c.batch_id == letters.c.batch_id).join(target.table, both))
        .where(*_committed_as_they_are(batches, group_id))
        .subquery()
    )
    return _twice(conn, twice)


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


def batch_at(conn: Connection, tables: Tables, group_id: str, span: Span, offset: int) -> int | None:
    """The batch of a span whose range an offset is in."""
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
    return found


def _loaded(tables: Tables, target: Output, group_id: str, span: Span | None = None) -> sa.CompoundSelect[Any]:
    """One row for each row and each dead letter of the committed batches without a transform."""
    batches, letters = tables.offset_batches, tables.dead_letters
    assert target.table is not None
    columns = target.table.columns
    rows = sa.select(
        columns[BATCH_ID].label("batch_id"),
        columns[TOPIC].label("topic"),
        columns[PARTITION].label("partition"),
        columns[OFFSET].label("offset_value"),
        batches.c.generation,
    ).join(batches, batches.c.batch_id == columns[BATCH_ID])
    aside = sa.select(
        letters.c.batch_id, letters.c.topic, letters.c.partition, letters.c.offset_value, batches.c.generation
    ).join(batches, batches.c.batch_id == letters.c.batch_id)
    if span is not None:
        rows = rows.where(
            # Of the column itself: the target may have an index on it.
            columns[BATCH_ID].between(span.first_batch, span.last_batch),
            columns[TOPIC] == span.topic,
            columns[PARTITION] == span.partition,
        )
        aside = aside.where(
            letters.c.batch_id.between(span.first_batch, span.last_batch),
            letters.c.topic == span.topic,
            letters.c.partition == span.partition,
        )
    committed = _committed_as_they_are(batches, group_id)
    return sa.union_all(rows.where(*committed), aside.where(*committed))


def _committed_as_they_are(batches: sa.Table, group_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Batches that left a row for every record."""
    return (batches.c.consumer_group == group_id, batches.c.state == "committed", batches.c.transform.is_(None))


def _twice(conn: Connection, offsets: sa.Subquery) -> list[Twice]:
    """Many offsets of the same batches as one."""
    keys = (offsets.c.topic, offsets.c.partition, offsets.c.first_batch, offsets.c.last_batch)
    query = sa.select(*keys, sa.func.min(offsets.c.offset_value), sa.func.count()).group_by(*keys).order_by(*keys)
    return [Twice(*row) for row in conn.execute(query)]
