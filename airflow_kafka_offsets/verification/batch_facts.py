"""Reads the whole history of a group, and the counted rows of its target, batch by batch.

What comes back is a row for each batch and partition, and is never held in memory as a whole.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.history import REPLAY_KINDS
from airflow_kafka_offsets.core.offsets import Span, TopicPartition, subtract
from airflow_kafka_offsets.database.transactions import stream
from airflow_kafka_offsets.ledger.batch_notes import outputs_of
from airflow_kafka_offsets.ledger.batch_rows import as_gap, as_range, deletion_of, possible_rows
from airflow_kafka_offsets.ledger.compaction import Compacted
from airflow_kafka_offsets.ledger.group_table import names_of
from airflow_kafka_offsets.ledger.replaced_output import same_topic
from airflow_kafka_offsets.ledger.tables import Tables, sum_of
from airflow_kafka_offsets.sinks.target_names import TargetNames, targets_in
from airflow_kafka_offsets.sinks.target_rows import RowCount, TargetRows
from airflow_kafka_offsets.verification.facts import BatchFacts, LoadedRange, RemovedOutput

_Part = tuple[int, str, Any]


class Snapshot(NamedTuple):
    """What all queries of a verification share: one snapshot of the database, and the rows of the target in it.

    :param target: the target's name
    """

    conn: Connection
    tables: Tables
    group_id: str
    target: str
    rows: TargetRows


def batch_facts(snapshot: Snapshot) -> Iterator[BatchFacts]:
    """Return every batch of a group since its last deletion, with all that is stored of it, and every unknown batch
    that the target has rows of.

    In the order of their ids; read as they are iterated. Batches that name the target by another name of the same table
    are returned with the name of the snapshot, and so are its branches.
    """
    conn, tables, group_id, target, rows = snapshot
    if conn.dialect.name == "postgresql":
        # All rows are read: plans for the first ones alone, as cursors have by default, would be slow.
        conn.exec_driver_sql("SET LOCAL cursor_tuple_fraction = 1")
    batches, dead_letters = tables.offset_batches.c, tables.dead_letters.c
    ranges, gaps, replaced = tables.offset_ranges, tables.offset_gaps, tables.replaced_output
    deleted = deletion_of(conn, tables, group_id)
    own = sa.and_(batches.consumer_group == group_id, batches.batch_id > deleted)
    of_group = sa.select(batches.batch_id).where(own).order_by(batches.batch_id)
    names, shared = (names_of(conn, tables, target, own, shared=part) for part in (False, True))
    targets = TargetNames(conn, tables.offset_batches)
    called = cache(partial(targets.among, targets_in(target)))
    of_batch = (
        sa.case((batches.target_table.in_(names), target), else_=batches.target_table).label("target_table"),
        batches.transform.is_not(None).label("has_transform"),
        batches.records_since_ms.is_not(None).label("takes_span"),
        batches.publish_started_at.is_not(None).label("is_publishing"),
        batches.outputs,
        batches.compacted_from,
    )
    place = (replaced.c.topic, replaced.c.partition)
    removed = (sum_of(replaced.c.row_count), sum_of(replaced.c.dead_letters))
    dead_letter_place = (dead_letters.batch_id, dead_letters.topic, dead_letters.partition)
    offset = dead_letters.offset_value
    queries = {
        "batch": of_group.add_columns(batches.kind, batches.state, batches.row_count, *of_batch),
        "ranges": of_group.add_columns(*ranges.c).join(ranges, ranges.c.batch_id == batches.batch_id),
        "gaps": of_group.add_columns(*gaps.c).join(gaps, gaps.c.batch_id == batches.batch_id),
        "replaced": of_group.add_columns(*place, *removed)
        .join(replaced, replaced.c.replaced_batch_id == batches.batch_id)
        .group_by(batches.batch_id, *place),
        # Batches that were planned after a replay, and committed before it, which removed output of theirs.
        "after": of_group.add_columns(replaced.c.replaced_batch_id)
        .distinct()
        .join(replaced, replaced.c.batch_id == batches.batch_id)
        .where(replaced.c.replaced_batch_id > batches.batch_id),
        "replaced_spans": _replaced_spans(tables, of_group.where(batches.target_table.in_(shared))),
        # The key of the table keeps offsets apart: as many as there are records are distinct.
        "dead_letters": sa.select(
            *dead_letter_place, sa.func.count(), sa.func.count(), sa.func.min(offset), sa.func.max(offset)
        )
        .where(dead_letters.consumer_group == group_id, dead_letters.batch_id > deleted)
        .group_by(*dead_letter_place)
        .order_by(dead_letters.batch_id),
    }
    compacted = Compacted.of(conn, tables, group_id)
    parts = [_read(conn, kind, query) for kind, query in queries.items()]
    if rows.detail != "nothing":
        # Of a number that another target has, the rows in this one are unknown.
        other_names = conn.scalars(sa.select(batches.target_table).distinct()).all()
        held = [name for name in other_names if name is not None and targets.may_hold(target, name)]
        in_target = batches.target_table.in_(held) | batches.target_table.is_(None)
        others = sa.select(batches.batch_id).where(sa.not_(own), in_target)
        parts.append((batch_id, "rows", count) for batch_id, count in rows.counts(others))
    for batch_id, group in groupby(heapq.merge(*parts, key=itemgetter(0)), key=itemgetter(0)):
        stored: dict[str, list[Any]] = defaultdict(list)
        for _, kind, row in group:
            stored[kind].append(row)
        batch = _batch_facts(tables, batch_id, stored, called)
        yield replace(batch, is_compacted=True) if _is_compacted(batch, compacted) else batch


def _is_compacted(batch: BatchFacts, compacted: Compacted) -> bool:
    """Return whether the ranges of a batch are those of a later one."""
    if batch.kind != "load" or batch.state != "committed":
        return False
    span = compacted.span_of(batch.batch_id)
    return span is not None and span[1] != batch.batch_id


def _read(conn: Connection, kind: str, query: sa.Select[Any]) -> Iterator[_Part]:
    return ((int(row[0]), kind, row) for row in stream(conn, query))


def _replaced_spans(tables: Tables, of_group: sa.Select[Any]) -> sa.Select[Any]:
    """Return the query for the ranges of a group's batches that later batches replaced, with the offsets of each of
    these.

    :param of_group: selects the batches that wrote into the group's table, or into one of its tables
    """
    ranges, again = tables.offset_ranges, tables.offset_ranges.alias()
    batches, later = tables.offset_batches.c, tables.offset_batches.alias()
    replaced_some = sa.and_(
        again.c.topic == ranges.c.topic,
        again.c.partition == ranges.c.partition,
        again.c.batch_id > ranges.c.batch_id,
        again.c.replaced_start_offset <= ranges.c.end_offset,
        again.c.replaced_end_offset >= ranges.c.start_offset,
        same_topic(again, ranges),
    )
    return (
        of_group.add_columns(
            ranges.c.topic, ranges.c.partition, again.c.replaced_start_offset, again.c.replaced_end_offset
        )
        .distinct()
        .join(ranges, ranges.c.batch_id == batches.batch_id)
        .join(again, replaced_some)
        .join(later, later.c.batch_id == again.c.batch_id)
        .where(
            # Implied by the conditions above; few ranges replace anything, and the others are left out at once.
            again.c.replaced_start_offset.is_not(None),
            later.c.consumer_group == batches.consumer_group,
            later.c.state == "committed",
            # One that takes a span of time replaces only some of the records.
            later.c.records_since_ms.is_(None),
            # A replay may be committed after batches with higher ids.
            sa.or_(batches.kind.not_in(REPLAY_KINDS), later.c.committed_at > batches.committed_at),
        )
    )


def _batch_facts(
    tables: Tables, batch_id: int, stored: Mapping[str, list[Any]], called: Callable[[str], str]
) -> BatchFacts:
    fields: dict[str, Any] = stored["batch"][0]._asdict() if stored["batch"] else {"batch_id": batch_id}
    with possible_rows(tables.offset_batches, batch_id):
        fields["outputs"] = outputs_of(fields.get("outputs"), called)
    replaced = defaultdict[TopicPartition, list[Span]](list)
    for row in stored["replaced_spans"]:
        replaced[_partition(row)].append((row.replaced_start_offset, row.replaced_end_offset))
    with possible_rows(tables.offset_ranges, batch_id):
        ranges = [_loaded_range(row, replaced[_partition(row)]) for row in sorted(stored["ranges"], key=_partition)]
    return BatchFacts(
        **fields,
        ranges=tuple(ranges),
        gaps=tuple(map(as_gap, stored["gaps"])),
        rows=tuple(stored["rows"]),
        dead_letters=tuple(RowCount(*row[1:]) for row in stored["dead_letters"]),
        replaced={_partition(row): RemovedOutput(*map(int, row[3:])) for row in stored["replaced"]},
        after=frozenset(row.replaced_batch_id for row in stored["after"]),
    )


def _partition(row: Any) -> TopicPartition:
    return TopicPartition(row.topic, row.partition)


def _loaded_range(row: Any, later: Sequence[Span]) -> LoadedRange:
    """
    :param later: the offsets that later batches replaced
    """
    range_, replaced = as_range(row), (row.replaced_start_offset, row.replaced_end_offset)
    if replaced.count(None) == 1:
        raise ValueError(f"{range_} replaces offsets of which one end is missing")
    whole = (range_.start, range_.end)
    is_replaced = any(start <= whole[0] and end >= whole[1] for start, end in later) or (
        whole[0] < whole[1] and not subtract([whole], later)
    )
    return LoadedRange(range_, row.records, row.dead_letters or 0, None if None in replaced else replaced, is_replaced)
