"""Compaction of old history: the ranges of consecutive loads become ranges of the last of them, one row a partition.

The batches keep their rows, with the numbers of records and rows, the tasks and the times. `compacted_from` of the last
one is the id of the first. Only loads are compacted to whose ranges nothing else refers: without dead letters and gaps,
and without output that was replaced.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.chunks import portions
from airflow_kafka_offsets.core.history import UNFINISHED_STATES
from airflow_kafka_offsets.core.offsets import Span, TopicPartition, intersect
from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.database.transactions import database_now, stream
from airflow_kafka_offsets.ledger.batch_rows import as_range, of_task_instance, update_batch
from airflow_kafka_offsets.ledger.claims import Claim
from airflow_kafka_offsets.ledger.tables import Tables

log = logging.getLogger(__name__)

_AT_LEAST = 100
"""Fewer batches are left to a later load."""

_BATCHES_AT_ONCE, _RANGES_AT_ONCE = 10_000, 100_000
"""Of one load: an older history takes several loads."""

_IDS_AT_ONCE = 500

_Ranges = Mapping[TopicPartition, Any]


@dataclass(slots=True)
class _Run:
    """Consecutive loads whose ranges can be added up, or one other batch.

    :param batches: rows of `offset_batches`
    :param merged: the columns of the ranges to be, by partition
    """

    batches: list[Any] = field(default_factory=list)
    merged: dict[TopicPartition, dict[str, Any]] = field(default_factory=dict)
    is_closed: bool = False

    def takes(self, batch: Any, ranges: _Ranges) -> bool:
        """Return whether a batch loads into the same target, and each of its ranges begins where the last one ended."""
        if self.is_closed:
            return False
        if not self.batches:
            return True
        first = self.batches[0]
        if (first.target_table, first.has_transform) != (batch.target_table, batch.has_transform):
            return False
        return all(
            (before["end_offset"], before["topic_id"], "stored") == (range_.start_offset, range_.topic_id, range_.how)
            for tp, range_ in ranges.items()
            if (before := self.merged.get(tp)) is not None
        )

    def add(self, batch: Any, ranges: _Ranges) -> None:
        """Add the next batch."""
        self.batches.append(batch)
        for tp, range_ in ranges.items():
            epoch = {"end_epoch": as_range(range_).epoch_after}
            if (before := self.merged.get(tp)) is None:
                self.merged[tp] = {**range_._mapping, **epoch}
                continue
            first, last = (
                [each for each in (before[name], getattr(range_, name)) if each is not None]
                for name in ("first_timestamp", "last_timestamp")
            )
            before |= {"end_offset": range_.end_offset, "target_offset": range_.target_offset, **epoch}
            before |= {name: (before[name] or 0) + (getattr(range_, name) or 0) for name in ("records", "bytes")}
            before |= {"first_timestamp": min(first, default=None), "last_timestamp": max(last, default=None)}


def compact_history(claim: Claim, retention: timedelta) -> int:
    """Compact loads of a group that were committed longer ago than the retention, in one transaction; return how many.

    :param claim: of the group; batches of its task instance stay as they are
    :raises FencedError: a later attempt took over
    """
    tables, group_id = claim.ledger.tables, claim.group_id
    with claim.ledger.connect() as conn:
        if not _has_enough(conn, tables, group_id, database_now(conn) - retention):
            return 0

    def work(conn: Connection) -> int:
        runs = list(_runs(conn, tables, claim, database_now(conn) - retention))
        for run in runs:
            if len(run.batches) > 1:
                _merge(conn, tables, run)
        if runs:
            last = runs[-1].batches[-1]
            # With it the next compaction begins.
            begun = sa.func.coalesce(tables.offset_batches.c.compacted_from, last.batch_id)
            update_batch(conn, tables, last.batch_id, compacted_from=begun)
        return sum(len(run.batches) for run in runs if len(run.batches) > 1)

    compacted = claim.transact(work)
    if compacted:
        log.info("Compacted %s in the history of group %r", count(compacted, "old batch", "old batches"), group_id)
    return compacted


def _has_enough(conn: Connection, tables: Tables, group_id: str, before: datetime) -> bool:
    """Return whether enough batches since the last compacted one are old."""
    batches = tables.offset_batches.c
    following = sa.select(batches.planned_at).where(
        batches.consumer_group == group_id, batches.batch_id > _last_compacted(conn, tables, group_id)
    )
    planned_at = conn.scalar(following.order_by(batches.batch_id).offset(_AT_LEAST - 1).limit(1))
    return planned_at is not None and planned_at < before


def _last_compacted(conn: Connection, tables: Tables, group_id: str) -> int:
    batches = tables.offset_batches.c
    compacted = (batches.consumer_group == group_id, batches.compacted_from.is_not(None))
    return conn.scalar(sa.select(sa.func.max(batches.batch_id)).where(*compacted)) or 0


def _runs(conn: Connection, tables: Tables, claim: Claim, before: datetime) -> Iterator[_Run]:
    """Yield the old batches from the last compacted one on, in the order of the history, without abandoned loads."""
    run, replaced = _Run(), _replaced(conn, tables, claim.group_id)
    for batch, ranges in _old_batches(conn, tables, claim, before):
        if batch.kind == "load" and batch.state == "abandoned":
            continue
        is_compactable = _is_compactable(batch, ranges, replaced)
        if run.batches and not (is_compactable and run.takes(batch, ranges)):
            yield run
            run = _Run()
        run.add(batch, ranges if is_compactable else {})
        run.is_closed = not is_compactable
    if run.batches:
        yield run


def _old_batches(
    conn: Connection, tables: Tables, claim: Claim, before: datetime
) -> Iterator[tuple[Any, dict[TopicPartition, Any]]]:
    """Yield closed batches of a group with their ranges, from the last compacted one on."""
    batches, ranges, gaps = tables.offset_batches.c, tables.offset_ranges, tables.offset_gaps.c
    query = (
        sa.select(
            tables.offset_batches,
            batches.transform.is_not(None).label("has_transform"),
            sa.exists().where(gaps.batch_id == batches.batch_id).label("has_gaps"),
            of_task_instance(tables, claim.group_id, claim.owner).label("is_own"),
        )
        .where(batches.consumer_group == claim.group_id)
        .where(batches.batch_id >= _last_compacted(conn, tables, claim.group_id))
        .order_by(batches.batch_id)
        .limit(_BATCHES_AT_ONCE)
    )
    old: list[Any] = []
    for row in conn.execute(query):
        if row.is_own or row.state in UNFINISHED_STATES or (row.committed_at or row.planned_at) >= before:
            break
        old.append(row)
    read = 0
    for place in range(0, len(old), _IDS_AT_ONCE):
        some = old[place : place + _IDS_AT_ONCE]
        of_some = sa.select(ranges).where(ranges.c.batch_id.in_([batch.batch_id for batch in some]))
        with closing(stream(conn, of_some.order_by(ranges.c.batch_id))) as rows:
            found = groupby(rows, key=attrgetter("batch_id"))
            batch_id, parts = next(found, (None, ()))
            for number, batch in enumerate(some, start=place):
                # With the first one alone, the next compaction would begin where this one did.
                if read >= _RANGES_AT_ONCE and number > 1:
                    return
                of_batch: dict[TopicPartition, Any] = {}
                if batch_id == batch.batch_id:
                    of_batch = {TopicPartition(row.topic, row.partition): row for row in parts}
                    batch_id, parts = next(found, (None, ()))
                read += len(of_batch)
                yield batch, of_batch


def _replaced(conn: Connection, tables: Tables, group_id: str) -> dict[TopicPartition, list[Span]]:
    """Return the offsets whose output batches of a group replaced, or are about to replace."""
    batches, ranges = tables.offset_batches.c, tables.offset_ranges.c
    query = (
        sa.select(ranges.topic, ranges.partition, ranges.replaced_start_offset, ranges.replaced_end_offset)
        .join(tables.offset_batches, batches.batch_id == ranges.batch_id)
        .where(batches.consumer_group == group_id, ranges.replaced_start_offset.is_not(None))
        # Loads replace nothing.
        .where(batches.kind != "load", batches.state != "abandoned")
    )
    replaced: dict[TopicPartition, list[Span]] = defaultdict(list)
    for topic, partition, start, end in conn.execute(query):
        replaced[TopicPartition(topic, partition)].append((start, end))
    return replaced


def _is_compactable(batch: Any, ranges: _Ranges, replaced: Mapping[TopicPartition, Sequence[Span]]) -> bool:
    if batch.kind != "load" or batch.has_gaps or batch.dead_letters or batch.publish_started_at is not None:
        return False
    return not any(
        (range_.records is None and range_.start_offset != range_.end_offset)
        or any(intersect((range_.start_offset, range_.end_offset), span) for span in replaced.get(tp, ()))
        for tp, range_ in ranges.items()
    )


def _merge(conn: Connection, tables: Tables, run: _Run) -> None:
    """Give the last batch of a run the ranges of all."""
    ranges, batches = tables.offset_ranges, tables.offset_batches
    *others, last = (batch.batch_id for batch in run.batches)
    for some in portions(others, _IDS_AT_ONCE):
        conn.execute(ranges.delete().where(ranges.c.batch_id.in_(some)))
        marked = batches.update().where(batches.c.batch_id.in_(some), batches.c.compacted_from.is_not(None))
        conn.execute(marked.values(compacted_from=None))
    conn.execute(ranges.delete().where(ranges.c.batch_id == last))
    conn.execute(ranges.insert(), [columns | {"batch_id": last} for _, columns in sorted(run.merged.items())])
    first = run.batches[0]
    update_batch(conn, tables, last, compacted_from=first.compacted_from or first.batch_id)


@dataclass(frozen=True, slots=True)
class Compacted:
    """The compacted batches of a group.

    :param spans: the ids of the first and the last batch of each run, in order
    """

    spans: Sequence[Span]

    @classmethod
    def of(cls, conn: Connection, tables: Tables, group_id: str) -> Compacted:
        """Read them."""
        batches = tables.offset_batches.c
        query = sa.select(batches.compacted_from, batches.batch_id).where(
            batches.consumer_group == group_id, batches.compacted_from < batches.batch_id
        )
        return cls([(first, last) for first, last in stream(conn, query.order_by(batches.batch_id))])

    def span_of(self, batch_id: int) -> Span | None:
        """Return the run that a batch is in; None where it is in none."""
        place = bisect_left(self.spans, batch_id, key=lambda span: span[1])
        span = self.spans[place] if place < len(self.spans) else None
        return span if span is not None and span[0] <= batch_id else None


def is_compacted(tables: Tables, group_id: str) -> sa.ColumnElement[bool]:
    """Return the condition that a batch of a group was compacted with others."""
    batch_id, last = tables.offset_batches.c.batch_id, tables.offset_batches.alias().c
    is_run = (last.consumer_group == group_id, last.compacted_from < last.batch_id)
    return sa.exists().where(*is_run, batch_id.between(last.compacted_from, last.batch_id))


def describe_compacted(group_id: str, span: Span) -> str:
    """Return why the ranges of one batch of a run are not known, as the beginning of an error."""
    first, last = span
    return f"Batches {first} to {last} of group {group_id!r} were compacted: the ranges of each are not known any more"
