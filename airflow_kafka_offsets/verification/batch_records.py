"""What a verification asks the database: the whole history of a group and what the target holds of it, batch by batch.

The target is only ever read by grouped queries, whatever its size; what comes back is a row for each batch and partition.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.ledger.batch_rows import as_gap, as_range
from airflow_kafka_offsets.ledger.group_table import same_table_names
from airflow_kafka_offsets.ledger.replaced_output import same_topic
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.verification.facts import BatchRecord, Detail, LoadedRange, Replaced, RowCount

if TYPE_CHECKING:
    from airflow_kafka_offsets.sinks.sql.table import SqlTable


_ROWS_AT_ONCE = 1_000

TOPIC, PARTITION, OFFSET = "_kafka_topic", "_kafka_partition", "_kafka_offset"

# What is stored of a batch, in the order in which it is taken apart again.
_BATCH, _RANGE, _GAP, _ROWS, _DEAD_LETTERS, _REPLACED, _AFTER, _WHOLLY_REPLACED = range(8)


@dataclass(frozen=True, slots=True)
class Output:
    """The target, and what its columns say of where a row is from.

    :param table: None where there is no such table
    """

    name: str
    table: sa.Table | None
    detail: Detail


def target_output(conn: Connection, sink: SqlTable) -> Output:
    """The target as it is, and what can be proved by its columns."""
    try:
        table = sa.Table(sink.table, sa.MetaData(), schema=sink.schema, autoload_with=conn, resolve_fks=False)
    except sa.exc.NoSuchTableError:
        return Output(sink.name, None, "batches")
    # With an upsert key, later batches replace the rows of earlier ones.
    if BATCH_ID not in table.columns or sink.upsert_key:
        return Output(sink.name, table, "nothing")
    named = all(name in table.columns for name in (TOPIC, PARTITION, OFFSET))
    return Output(sink.name, table, "offsets" if named else "batches")


def batch_records(conn: Connection, tables: Tables, group_id: str, target: Output) -> Iterator[BatchRecord]:
    """Every batch of a group with all that is stored of it, and every batch that the target has rows of and nobody knows.

    In the order of their ids; read as they are taken.
    """
    queries = (
        (_BATCH, _batches(tables, group_id, target.name, same_table_names(conn, target.name))),
        (_RANGE, _of_group(tables, tables.offset_ranges, group_id)),
        (_GAP, _of_group(tables, tables.offset_gaps, group_id)),
        (_ROWS, _row_tallies(tables, target, group_id)),
        (_DEAD_LETTERS, _dead_letter_tallies(tables, group_id)),
        (_REPLACED, _replaced(tables, group_id)),
        (_AFTER, _committed_later(tables, group_id)),
        (_WHOLLY_REPLACED, _wholly_replaced(tables, group_id)),
    )
    # Open side by side: other drivers have one result at a time, unless the client holds all of its rows.
    options = {"yield_per": _ROWS_AT_ONCE} if conn.dialect.name in ("postgresql", "sqlite") else {}
    if conn.dialect.name == "postgresql":
        # All rows are read: plans for the first ones alone, as cursors have by default, would be slow.
        conn.exec_driver_sql("SET LOCAL cursor_tuple_fraction = 1")
    with ExitStack() as results:
        parts = [
            _tagged(kind, results.enter_context(conn.execute(query, execution_options=options)))
            for kind, query in queries
            if query is not None
        ]
        for batch_id, found in groupby(heapq.merge(*parts, key=_batch_id), key=_batch_id):
            sorted_out: list[list[Any]] = [[] for _ in range(8)]
            for _, kind, row in found:
                sorted_out[kind].append(row)
            yield _batch_record(batch_id, *sorted_out)


def _batches(tables: Tables, group_id: str, target: str, names: Sequence[str]) -> sa.Select[Any]:
    """
    :param target: as it is named now, for batches that named it by another one of its spellings
    :param names: these
    """
    batches = tables.offset_batches.c
    return (
        sa.select(
            batches.batch_id,
            batches.kind,
            batches.state,
            sa.case((batches.target_table.in_(names), target), else_=batches.target_table).label("target_table"),
            batches.transform.is_not(None).label("has_transform"),
            batches.row_count,
        )
        .where(batches.consumer_group == group_id)
        .order_by(batches.batch_id)
    )


def _of_group(tables: Tables, table: sa.Table, group_id: str) -> sa.Select[Any]:
    """The ranges, or the gaps, of a group's batches."""
    batches = tables.offset_batches.c
    return (
        sa.select(table)
        .join(tables.offset_batches, batches.batch_id == table.c.batch_id)
        .where(batches.consumer_group == group_id)
        .order_by(table.c.batch_id)
    )


def _row_tallies(tables: Tables, target: Output, group_id: str) -> sa.Select[Any] | None:
    """Rows of the group's batches and of batches that nobody knows, counted: those of other groups are not its business."""
    if target.table is None or target.detail == "nothing":
        return None
    batches, columns = tables.offset_batches, target.table.columns
    keys, of_tally = [columns[BATCH_ID]], [sa.null(), sa.null(), sa.func.count()]
    if target.detail == "offsets":
        offset = columns[OFFSET]
        places = [columns[TOPIC], columns[PARTITION]]
        keys += places
        of_tally = [
            *places,
            sa.func.count(),
            sa.func.count(sa.distinct(offset)),
            sa.func.min(offset),
            sa.func.max(offset),
        ]
    return (
        sa.select(columns[BATCH_ID].label("batch_id"), *of_tally)
        .select_from(target.table.outerjoin(batches, batches.c.batch_id == columns[BATCH_ID]))
        .where(
            columns[BATCH_ID].is_not(None),
            sa.or_(batches.c.consumer_group == group_id, batches.c.batch_id.is_(None)),
        )
        .group_by(*keys)
        .order_by(columns[BATCH_ID])
    )


def _dead_letter_tallies(tables: Tables, group_id: str) -> sa.Select[Any]:
    letters = tables.dead_letters.c
    return (
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


def _replaced(tables: Tables, group_id: str) -> sa.Select[Any]:
    """What was removed of the output of a group's batches."""
    replaced, batches = tables.replaced_output.c, tables.offset_batches.c
    return (
        sa.select(
            replaced.replaced_batch_id.label("batch_id"),
            replaced.topic,
            replaced.partition,
            sa.func.sum(replaced.row_count).label("row_count"),
            sa.func.sum(replaced.dead_letters).label("dead_letters"),
        )
        .join(tables.offset_batches, batches.batch_id == replaced.replaced_batch_id)
        .where(batches.consumer_group == group_id)
        .group_by(replaced.replaced_batch_id, replaced.topic, replaced.partition)
        .order_by(replaced.replaced_batch_id)
    )


def _committed_later(tables: Tables, group_id: str) -> sa.Select[Any]:
    """The replays that removed output of batches which were planned after them: these were committed before."""
    replaced, batches = tables.replaced_output.c, tables.offset_batches.c
    return (
        sa.select(replaced.batch_id, replaced.replaced_batch_id)
        .distinct()
        .join(tables.offset_batches, batches.batch_id == replaced.batch_id)
        .where(batches.consumer_group == group_id, replaced.replaced_batch_id > replaced.batch_id)
        .order_by(replaced.batch_id)
    )


def _wholly_replaced(tables: Tables, group_id: str) -> sa.Select[Any]:
    """The ranges of a group's batches all of whose offsets a later batch replaced."""
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
            # Few are: what is not, need not be looked at.
            again.c.replaced_from.is_not(None),
            later.c.consumer_group == group_id,
            later.c.state == "committed",
            # A replay may be committed after batches with higher ids.
            sa.or_(batches.kind != "replay", later.c.committed_at > batches.committed_at),
        )
        .order_by(ranges.batch_id)
    )


def _tagged(kind: int, rows: Iterable[Any]) -> Iterator[tuple[int, int, Any]]:
    return ((int(row.batch_id), kind, row) for row in rows)


def _batch_id(tagged: tuple[int, int, Any]) -> int:
    return tagged[0]


def _batch_record(
    batch_id: int,
    batch: list[Any],
    ranges: list[Any],
    gaps: list[Any],
    rows: list[Any],
    dead_letters: list[Any],
    replaced: list[Any],
    after: list[Any],
    wholly_replaced: list[Any],
) -> BatchRecord:
    tallies = tuple(RowCount(*row[1:]) for row in rows)
    aside = tuple(RowCount(*row[1:]) for row in dead_letters)
    if not batch:
        return BatchRecord(batch_id, rows=tallies, dead_letters=aside)
    (known,) = batch
    gone = set(map(_place, wholly_replaced))
    return BatchRecord(
        batch_id,
        known.kind,
        known.state,
        known.target_table,
        bool(known.has_transform),
        known.row_count,
        tuple(_loaded_range(row, _place(row) in gone) for row in sorted(ranges, key=_place)),
        tuple(map(as_gap, gaps)),
        tallies,
        aside,
        {_place(row): Replaced(int(row.row_count), int(row.dead_letters)) for row in replaced},
        frozenset(row.replaced_batch_id for row in after),
    )


def _place(row: Any) -> TopicPartition:
    return TopicPartition(row.topic, row.partition)


def _loaded_range(row: Any, is_replaced: bool) -> LoadedRange:
    replaced = (row.replaced_from, row.replaced_to) if row.replaced_from is not None else None
    return LoadedRange(as_range(row), row.records, row.dead_letters or 0, replaced, is_replaced)
