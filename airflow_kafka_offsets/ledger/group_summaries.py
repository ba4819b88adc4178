"""What users see of every group and of the history of one, with a few queries whatever the number of groups. Reads
only.

`lag.measure` has the positions and `ledger.overview` the batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.history import OPEN_STATES, REWIND_KINDS
from airflow_kafka_offsets.database.transactions import database_now
from airflow_kafka_offsets.ledger.install import check_installed
from airflow_kafka_offsets.ledger.tables import Tables


class BetweenCommits(NamedTuple):
    """A batch whose target, which commits elsewhere, may be ahead of the state tables, or behind; see
    `ledger.publications`.

    :param state: `staged` (or `planned` again), `abandoned`, or the kind of a rewind
    :param since: when it began to be published, or was executed
    """

    batch_id: int
    state: str
    target: str
    since: datetime


def between_commits(conn: Connection, tables: Tables) -> dict[str, list[BetweenCommits]]:
    """Return what is between two commits, by group, in the order of the batches."""
    batches = tables.offset_batches.c
    state = sa.case((batches.kind.in_(REWIND_KINDS), batches.kind), else_=batches.state)
    found: dict[str, list[BetweenCommits]] = defaultdict(list)
    query = sa.select(batches.consumer_group, batches.batch_id, state, batches.target_table, batches.publish_started_at)
    for group_id, *batch in conn.execute(
        query.where(batches.publish_started_at.is_not(None)).order_by(batches.batch_id)
    ):
        found[group_id].append(BetweenCommits(*batch))
    return found


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """A batch of a group: one that was committed last, or the open one."""

    batch_id: int
    state: str
    attempt: int
    rows: int | None
    dead_letters: int | None
    planned_at: datetime
    committed_at: datetime | None
    dag_id: str | None
    task_id: str | None


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group as its state tables have it.

    :param last_commit: the last committed batch
    :param last: the last committed load
    :param open: the load that is planned or staged
    :param held_by: who holds the lease, by the database's clock
    :param dead_letters: those whose contents are stored
    :param between: batches whose target may be ahead of the state tables, or behind
    """

    group_id: str
    cluster_id: str | None
    generation: int
    partitions: int
    last_commit: BatchSummary | None
    last: BatchSummary | None
    open: BatchSummary | None
    held_by: str | None
    held_until: datetime | None
    dead_letters: int
    between: tuple[BetweenCommits, ...]

    @property
    def dag_ids(self) -> frozenset[str]:
        """Return the DAGs of the last load and of the open one."""
        return frozenset(load.dag_id for load in (self.last, self.open) if load is not None and load.dag_id is not None)


_SUMMARY = (
    "batch_id", "state", "attempt", "row_count", "dead_letters", "planned_at", "committed_at", "dag_id", "task_id"
)  # fmt: skip


def group_summaries(
    conn: Connection, tables: Tables, group_ids: Sequence[str] | None = None
) -> tuple[datetime, list[GroupSummary]]:
    """Return the database's time, and groups in the order of their names.

    :param group_ids: some groups; None is all
    :raises ConfigurationError: there are no state tables
    :raises LedgerError: they are of another version
    """
    check_installed(conn, tables)
    now = database_now(conn)
    groups, batches = tables.consumer_groups.c, tables.offset_batches.c

    def of(group: sa.Column[str]) -> sa.ColumnElement[bool]:
        return sa.true() if group_ids is None else group.in_(group_ids)

    # By the index of groups and batches, which a GROUP BY over all batches would read whole.
    committed = (
        sa.select(batches.batch_id)
        .where(batches.consumer_group == groups.group_id, batches.state == "committed")
        .order_by(batches.batch_id.desc())
        .limit(1)
        .correlate(tables.consumer_groups)
    )
    last_commit = committed.scalar_subquery().label("last_commit")
    last_load = committed.where(batches.kind == "load").scalar_subquery().label("last_load")
    query = sa.select(tables.consumer_groups, last_commit, last_load).where(of(groups.group_id))
    found = sorted(conn.execute(query).all(), key=lambda row: str(row.group_id))
    last_ids = {batch_id for row in found for batch_id in (row.last_commit, row.last_load) if batch_id is not None}
    last = _batches(conn, tables, sorted(last_ids))
    is_open = sa.and_(batches.kind == "load", batches.state.in_(OPEN_STATES))
    opening = sa.select(tables.offset_batches).where(is_open, of(batches.consumer_group))
    opened = {row.consumer_group: _summary(row) for row in conn.execute(opening)}
    letters, offsets = tables.dead_letters.c, tables.consumed_offsets.c
    is_kept = sa.and_(tables.with_contents, of(letters.consumer_group))
    kept = _by(conn, letters.consumer_group, sa.func.count(), is_kept)
    partitions = _by(conn, offsets.consumer_group, sa.func.count(), of(offsets.consumer_group))
    between = between_commits(conn, tables)
    summaries = []
    for row in found:
        held = row.lease_owner is not None and row.lease_expires_at > now
        summaries.append(
            GroupSummary(
                row.group_id,
                row.cluster_id,
                row.generation,
                partitions.get(row.group_id, 0),
                last.get(row.last_commit),
                last.get(row.last_load),
                opened.get(row.group_id),
                row.lease_owner if held else None,
                row.lease_expires_at if held else None,
                kept.get(row.group_id, 0),
                tuple(between.get(row.group_id, ())),
            )
        )
    return now, summaries


# Databases limit the bound values of a statement.
_AT_ONCE = 500


def _batches(conn: Connection, tables: Tables, batch_ids: Sequence[int]) -> dict[int, BatchSummary]:
    table = tables.offset_batches
    found: dict[int, BatchSummary] = {}
    for index in range(0, len(batch_ids), _AT_ONCE):
        query = sa.select(table).where(table.c.batch_id.in_(batch_ids[index : index + _AT_ONCE]))
        found |= {row.batch_id: _summary(row) for row in conn.execute(query)}
    return found


def _summary(row: sa.Row[Any]) -> BatchSummary:
    return BatchSummary(*(getattr(row, name) for name in _SUMMARY))


def _by(
    conn: Connection, key: sa.Column[Any], value: sa.ColumnElement[Any], where: sa.ColumnElement[bool]
) -> dict[Any, Any]:
    """Return an aggregate of each group of rows."""
    return {row[0]: row[1] for row in conn.execute(sa.select(key, value).where(where).group_by(key))}


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """A batch on the time line of a group. Durations are what the state tables store: the instants between which a
    batch was planned, staged and committed.

    :param newest_record: the newest timestamp of its records
    :param skipped: offsets of its gaps
    """

    batch_id: int
    kind: str
    planned_at: datetime
    staged_at: datetime | None
    committed_at: datetime
    records: int | None
    rows: int | None
    dead_letters: int | None
    newest_record: datetime | None
    skipped: int


def history_points(conn: Connection, tables: Tables, group_id: str, limit: int) -> list[HistoryPoint]:
    """Return the latest committed loads and rewinds of a group, the oldest first."""
    batches, ranges, gaps = tables.offset_batches.c, tables.offset_ranges.c, tables.offset_gaps.c
    query = (
        sa.select(tables.offset_batches)
        .where(
            batches.consumer_group == group_id,
            batches.kind.in_(("load", *REWIND_KINDS)),
            batches.state == "committed",
        )
        .order_by(batches.batch_id.desc())
        .limit(limit)
    )
    found = conn.execute(query).all()[::-1]
    batch_ids = [row.batch_id for row in found]
    newest = _by(conn, ranges.batch_id, sa.func.max(ranges.last_timestamp), ranges.batch_id.in_(batch_ids))
    skipped = _by(conn, gaps.batch_id, sa.func.sum(gaps.end_offset - gaps.start_offset), gaps.batch_id.in_(batch_ids))
    return [
        HistoryPoint(
            row.batch_id,
            row.kind,
            row.planned_at,
            row.staged_at,
            row.committed_at,
            row.records,
            row.row_count,
            row.dead_letters,
            newest.get(row.batch_id),
            int(skipped.get(row.batch_id, 0)),
        )
        for row in found
        if row.committed_at is not None
    ]
