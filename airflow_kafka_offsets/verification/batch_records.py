"""Reads the whole history of a group, and the counted rows of its target, batch by batch.

What comes back is a row for each batch and partition, and is never held in memory as a whole.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.database.transactions import stream
from airflow_kafka_offsets.ledger.batch_rows import as_gap, as_range
from airflow_kafka_offsets.ledger.group_table import same_table_names
from airflow_kafka_offsets.ledger.replaced_output import same_topic
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.sinks.sink import RowCount, TargetRows
from airflow_kafka_offsets.verification.facts import BatchRecord, LoadedRange, Replaced

_Part = tuple[int, str, Any]


def batch_records(
    conn: Connection, tables: Tables, group_id: str, target: str, rows: TargetRows
) -> Iterator[BatchRecord]:
    """Return every batch of a group with all that is stored of it, and every unknown batch that the target has rows of.

    In the order of their ids; read as they are iterated.

    :param target: the target's name; batches that name it by another name of the same table are returned with this one
    """
    if conn.dialect.name == "postgresql":
        # All rows are read: plans for the first ones alone, as cursors have by default, would be slow.
        conn.exec_driver_sql("SET LOCAL cursor_tuple_fraction = 1")
    batches, letters = tables.offset_batches.c, tables.dead_letters.c
    name = sa.case((batches.target_table.in_(same_table_names(conn, target)), target), else_=batches.target_table)
    batch = sa.select(
        batches.batch_id,
        batches.kind,
        batches.state,
        name.label("target_table"),
        batches.transform.is_not(None).label("has_transform"),
        batches.row_count,
    ).order_by(batches.batch_id)
    dead_letters = (
        sa.select(
            letters.batch_id,
            letters.topic,
            letters.partition,
            sa.func.count(),
            sa.func.count(),  # the key of the table keeps offsets apart
            sa.func.min(letters.offset_value),
            sa.func.max(letters.offset_value),
        )
        .where(letters.consumer_group == group_id)
        .group_by(letters.batch_id, letters.topic, letters.partition)
        .order_by(letters.batch_id)
    )
    of_group = batches.consumer_group == group_id
    parts = [
        _read(conn, "batch", batch.where(of_group)),
        _read(conn, "ranges", _of_batches(tables, tables.offset_ranges).where(of_group)),
        _read(conn, "gaps", _of_batches(tables, tables.offset_gaps).where(of_group)),
        ((int(row.batch_id), "dead_letters", RowCount(*row[1:])) for row in stream(conn, dead_letters)),
        _read(conn, "replaced", _replaced(tables).where(of_group)),
        _read(conn, "after", _committed_later(tables).where(of_group)),
        _read(conn, "wholly_replaced", _wholly_replaced(tables, group_id)),
    ]
    if rows.detail != "nothing":
        others = sa.select(batches.batch_id).where(batches.consumer_group != group_id)
        parts.append((batch_id, "rows", count) for batch_id, count in rows.counts(others))
    for batch_id, group in groupby(heapq.merge(*parts, key=itemgetter(0)), key=itemgetter(0)):
        stored: dict[str, list[Any]] = defaultdict(list)
        for _, kind, row in group:
            stored[kind].append(row)
        yield _batch_record(batch_id, stored)


def _read(conn: Connection, kind: str, query: sa.Select[Any]) -> Iterator[_Part]:
    return ((int(row.batch_id), kind, row) for row in stream(conn, query))


def _of_batches(tables: Tables, table: sa.Table) -> sa.Select[Any]:
    """Return the query for the ranges, or the gaps, of batches."""
    batches = tables.offset_batches
    return sa.select(table).join(batches, batches.c.batch_id == table.c.batch_id).order_by(table.c.batch_id)


def _replaced(tables: Tables) -> sa.Select[Any]:
    """Return the query for what was removed of the output of batches."""
    replaced, batches = tables.replaced_output.c, tables.offset_batches
    keys = (replaced.replaced_batch_id, replaced.topic, replaced.partition)
    return (
        sa.select(
            replaced.replaced_batch_id.label("batch_id"),
            replaced.topic,
            replaced.partition,
            sa.func.sum(replaced.row_count).label("row_count"),
            sa.func.sum(replaced.dead_letters).label("dead_letters"),
        )
        .join(batches, batches.c.batch_id == replaced.replaced_batch_id)
        .group_by(*keys)
        .order_by(replaced.replaced_batch_id)
    )


def _committed_later(tables: Tables) -> sa.Select[Any]:
    """Return the query for replays that removed output of batches which were planned after them, and committed before them."""
    replaced, batches = tables.replaced_output.c, tables.offset_batches
    return (
        sa.select(replaced.batch_id, replaced.replaced_batch_id)
        .distinct()
        .join(batches, batches.c.batch_id == replaced.batch_id)
        .where(replaced.replaced_batch_id > replaced.batch_id)
        .order_by(replaced.batch_id)
    )


def _wholly_replaced(tables: Tables, group_id: str) -> sa.Select[Any]:
    """Return the query for the ranges of a group's batches all of whose offsets a later batch replaced."""
    ranges, again = tables.offset_ranges.c, tables.offset_ranges.alias()
    batches, later = tables.offset_batches.c, tables.offset_batches.alias()
    replaced_all = sa.and_(
        again.c.topic == ranges.topic,
        again.c.partition == ranges.partition,
        again.c.batch_id > ranges.batch_id,
        again.c.replaced_from <= ranges.start_offset,
        again.c.replaced_to >= ranges.end_offset,
        same_topic(again, tables.offset_ranges),
    )
    return (
        sa.select(ranges.batch_id, ranges.topic, ranges.partition)
        .distinct()
        .select_from(tables.offset_ranges)
        .join(tables.offset_batches, batches.batch_id == ranges.batch_id)
        .join(again, replaced_all)
        .join(later, later.c.batch_id == again.c.batch_id)
        .where(
            batches.consumer_group == group_id,
            # Implied by the conditions above; few ranges replace anything, and the others are left out at once.
            again.c.replaced_from.is_not(None),
            later.c.consumer_group == group_id,
            later.c.state == "committed",
            # A replay may be committed after batches with higher ids.
            sa.or_(batches.kind != "replay", later.c.committed_at > batches.committed_at),
        )
        .order_by(ranges.batch_id)
    )


def _batch_record(batch_id: int, stored: Mapping[str, list[Any]]) -> BatchRecord:
    rows, dead_letters = tuple(stored["rows"]), tuple(stored["dead_letters"])
    if not stored["batch"]:
        return BatchRecord(batch_id, rows=rows, dead_letters=dead_letters)
    (batch,) = stored["batch"]
    wholly_replaced = set(map(_partition, stored["wholly_replaced"]))
    return BatchRecord(
        batch_id,
        batch.kind,
        batch.state,
        batch.target_table,
        bool(batch.has_transform),
        batch.row_count,
        tuple(
            _loaded_range(row, _partition(row) in wholly_replaced) for row in sorted(stored["ranges"], key=_partition)
        ),
        tuple(map(as_gap, stored["gaps"])),
        rows,
        dead_letters,
        {_partition(row): Replaced(int(row.row_count), int(row.dead_letters)) for row in stored["replaced"]},
        frozenset(row.replaced_batch_id for row in stored["after"]),
    )


def _partition(row: Any) -> TopicPartition:
    return TopicPartition(row.topic, row.partition)


def _loaded_range(row: Any, is_replaced: bool) -> LoadedRange:
    replaced = (row.replaced_from, row.replaced_to) if row.replaced_from is not None else None
    return LoadedRange(as_range(row), row.records, row.dead_letters or 0, replaced, is_replaced)
