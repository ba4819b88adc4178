"""Batches of every kind as rows of the state tables: the queries and inserts that loads, replays and rewinds share."""

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
    """How the rows of a batch are made, for the history.

    :param transform: the import path of the transform, or None
    :param fingerprint: a hash of everything that decides which rows a range becomes
    """

    target_table: str
    transform: str | None
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as the state tables have it.

    :param state: planned, staged, committed or abandoned
    :param target_table: the table that it was planned for
    :param staging_uri: the directory of the latest attempt's files; None before the first attempt
    :param fingerprint: of the recipe of the latest attempt
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
        """The number of offsets in the ranges."""
        return sum(map(len, self.ranges))


def of_task(tables: Tables, group_id: str, owner: TaskRun) -> sa.ColumnElement[bool]:
    """Return the condition for batches of the same task and run, in any of its mapped task instances."""
    batches = tables.offset_batches.c
    return sa.and_(
        batches.consumer_group == group_id,
        batches.run_id == owner.run_id,
        batches.task_id.is_not_distinct_from(owner.task_id),
        batches.dag_id.is_not_distinct_from(owner.dag_id),
    )


def of_task_instance(tables: Tables, group_id: str, owner: TaskRun) -> sa.ColumnElement[bool]:
    """Return the condition for batches of the same task instance, in any try."""
    return of_task(tables, group_id, owner) & tables.offset_batches.c.map_index.is_not_distinct_from(owner.map_index)


def insert_batch(
    conn: Connection, tables: Tables, group_id: str, owner: TaskRun, kind: str, generation: int, **values: object
) -> int:
    """Insert a batch, and return its number.

    :param values: of the other columns
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
    assert key is not None  # every supported database returns the generated number
    return int(key[0])


# Columns, with the attributes of `OffsetRange` and `Gap` that they hold.
_RANGE_COLUMNS = {
    "topic": "topic",
    "partition": "partition",
    "start_offset": "start",
    "end_offset": "end",
    "target_offset": "target",
    "topic_id": "topic_id",
    "how": "how",
    "leader_epoch": "leader_epoch",
    "end_epoch": "end_epoch",
}
_GAP_COLUMNS = {name: _RANGE_COLUMNS[name] for name in ("topic", "partition", "start_offset", "end_offset")} | {
    "cause": "cause",
    "decision": "decision",
}


def insert_ranges(
    conn: Connection,
    tables: Tables,
    batch_id: int,
    ranges: Sequence[OffsetRange],
    replaced: Mapping[TopicPartition, tuple[int, int]] | None = None,
) -> None:
    """Insert the ranges of a new batch.

    :param replaced: the offsets whose earlier output the batch replaces
    """
    rows = []
    for range_ in ranges:
        replaced_from, replaced_to = (replaced or {}).get(range_.topic_partition, (None, None))
        rows.append(_values(range_, _RANGE_COLUMNS) | {"replaced_from": replaced_from, "replaced_to": replaced_to})
    _insert_parts(conn, tables.offset_ranges, batch_id, rows)


def insert_gaps(conn: Connection, tables: Tables, batch_id: int, gaps: Sequence[Gap]) -> None:
    """Insert the offsets that a new batch skips."""
    _insert_parts(conn, tables.offset_gaps, batch_id, [_values(gap, _GAP_COLUMNS) for gap in gaps])


def _insert_parts(conn: Connection, table: sa.Table, batch_id: int, rows: list[dict[str, Any]]) -> None:
    if rows:
        conn.execute(table.insert(), [{"batch_id": batch_id} | row for row in rows])


def _values(part: OffsetRange | Gap, columns: Mapping[str, str]) -> dict[str, Any]:
    return {column: getattr(part, attribute) for column, attribute in columns.items()}


def as_batch(conn: Connection, tables: Tables, row: Any) -> Batch:
    """Return a row of `offset_batches` as a batch, with its ranges and gaps."""

    def parts(table: sa.Table) -> sa.CursorResult[Any]:
        columns = table.c
        return conn.execute(
            sa.select(table).where(columns.batch_id == row.batch_id).order_by(columns.topic, columns.partition)
        )

    return Batch(
        row.batch_id,
        row.consumer_group,
        row.state,
        tuple(map(as_range, parts(tables.offset_ranges))),
        tuple(map(as_gap, parts(tables.offset_gaps))),
        row.target_table,
        row.staging_uri,
        row.fingerprint,
    )


def as_range(row: Any) -> OffsetRange:
    """Return a row of `offset_ranges` as a range."""
    return OffsetRange(**{attribute: getattr(row, column) for column, attribute in _RANGE_COLUMNS.items()})


def as_gap(row: Any) -> Gap:
    """Return a row of `offset_gaps` as a gap."""
    return Gap(**{attribute: getattr(row, column) for column, attribute in _GAP_COLUMNS.items()})
