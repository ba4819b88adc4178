"""Batches of every kind as rows of the state tables: how they are found, written and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, TopicPartition
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.ledger.task_run import TaskRun

OPEN_STATES = ("planned", "staged")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a batch's rows are made, for the history.

    :param transform: the import path of the transform, or None
    :param fingerprint: of everything that decides what the rows of a range are
    """

    target_table: str
    transform: str | None
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as the ledger knows it.

    :param state: planned, staged, committed or abandoned
    :param target_table: the table that it was planned for
    :param staging_uri: where the current attempt's files are, or None before the first
    :param fingerprint: of everything that decides what the rows of the ranges are, as the latest attempt saw it
    """

    batch_id: int
    group_id: str
    state: str
    ranges: tuple[OffsetRange, ...]
    gaps: tuple[Gap, ...] = ()
    target_table: str | None = None
    staging_uri: str | None = None
    fingerprint: str | None = None

    @property
    def offsets(self) -> int:
        """How many offsets the ranges span."""
        return sum(map(len, self.ranges))


def of_task(tables: Tables, group_id: str, owner: TaskRun) -> sa.ColumnElement[bool]:
    """Which batches of a group are of the same task and run, be they of other mapped task instances of it."""
    batches = tables.offset_batches.c
    return sa.and_(
        batches.consumer_group == group_id,
        batches.run_id == owner.run_id,
        batches.task_id.is_not_distinct_from(owner.task_id),
        batches.dag_id.is_not_distinct_from(owner.dag_id),
    )


def of_task_instance(tables: Tables, group_id: str, owner: TaskRun) -> sa.ColumnElement[bool]:
    """Which batches of a group are of the same task instance, in whichever try."""
    return of_task(tables, group_id, owner) & tables.offset_batches.c.map_index.is_not_distinct_from(owner.map_index)


def insert_batch(
    conn: Connection, tables: Tables, group_id: str, owner: TaskRun, kind: str, generation: int, **values: object
) -> int:
    """A new row of the history.

    :param values: of its other columns
    :return: its number
    """
    result = conn.execute(
        tables.offset_batches.insert().values(
            consumer_group=group_id,
            generation=generation,
            kind=kind,
            dag_id=owner.dag_id,
            task_id=owner.task_id,
            run_id=owner.run_id,
            map_index=owner.map_index,
            try_number=owner.try_number,
            **({"attempt": 0} | values),
        )
    )
    key = result.inserted_primary_key
    assert key is not None  # every supported database returns the number it gave
    return int(key[0])


def insert_ranges(
    conn: Connection,
    tables: Tables,
    batch_id: int,
    ranges: Sequence[OffsetRange],
    replaced: Mapping[TopicPartition, tuple[int, int]] | None = None,
) -> None:
    """The ranges of a new batch.

    :param replaced: the offsets whose earlier output the batch replaces
    """
    if not ranges:
        return
    nothing = (None, None)
    conn.execute(
        tables.offset_ranges.insert(),
        [
            {
                "batch_id": batch_id,
                "topic": one.topic,
                "partition": one.partition,
                "topic_id": one.topic_id,
                "start_offset": one.start,
                "end_offset": one.end,
                "target_offset": one.target,
                "leader_epoch": one.leader_epoch,
                "end_epoch": one.end_epoch,
                "replaced_from": replaced.get(one.topic_partition, nothing)[0] if replaced else None,
                "replaced_to": replaced.get(one.topic_partition, nothing)[1] if replaced else None,
                "how": one.how,
            }
            for one in ranges
        ],
    )


def insert_gaps(conn: Connection, tables: Tables, batch_id: int, gaps: Sequence[Gap]) -> None:
    """The offsets that a new batch passes over."""
    if not gaps:
        return
    columns = ("topic", "partition", "start", "end", "cause", "decision")
    names = ("topic", "partition", "start_offset", "end_offset", "cause", "decision")
    conn.execute(
        tables.offset_gaps.insert(),
        [{"batch_id": batch_id} | {n: getattr(gap, c) for n, c in zip(names, columns, strict=True)} for gap in gaps],
    )


def as_batch(conn: Connection, tables: Tables, row: Any) -> Batch:
    """A row of `offset_batches`, with its ranges and gaps."""
    ranges, gaps = tables.offset_ranges.c, tables.offset_gaps.c
    range_rows = conn.execute(
        sa.select(tables.offset_ranges).where(ranges.batch_id == row.batch_id).order_by(ranges.topic, ranges.partition)
    )
    gap_rows = conn.execute(
        sa.select(tables.offset_gaps).where(gaps.batch_id == row.batch_id).order_by(gaps.topic, gaps.partition)
    )
    return Batch(
        row.batch_id,
        row.consumer_group,
        row.state,
        tuple(map(as_range, range_rows)),
        tuple(map(as_gap, gap_rows)),
        row.target_table,
        row.staging_uri,
        row.fingerprint,
    )


def as_range(row: Any) -> OffsetRange:
    """A row of `offset_ranges`."""
    return OffsetRange(
        row.topic,
        row.partition,
        row.start_offset,
        row.end_offset,
        row.target_offset,
        topic_id=row.topic_id,
        how=row.how,
        leader_epoch=row.leader_epoch,
        end_epoch=row.end_epoch,
    )


def as_gap(row: Any) -> Gap:
    """A row of `offset_gaps`."""
    return Gap(row.topic, row.partition, row.start_offset, row.end_offset, row.cause, row.decision)
