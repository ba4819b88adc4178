"""What a page shows of every group and of the history of one, with a few queries whatever the number of groups. Reads
only.

`lag.measure` has the positions and `ledger.overview` the rows of the commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.history import OPEN_STATES, REWIND_KINDS
from airflow_kafka_offsets.database.transactions import database_now
from airflow_kafka_offsets.ledger.install import check_installed
from airflow_kafka_offsets.ledger.overview import BetweenCommits, between_commits
from airflow_kafka_offsets.ledger.tables import Tables


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """A load of a group: its last commit, or its open batch.

    :param task: of the task that planned it: DAG, task, run and map index; None outside of Airflow
    """

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

    :param last: the last committed load
    :param open: the load that is planned or staged
    :param held_by: who holds the lease, by the database's clock
    :param dead_letters: those whose contents are stored
    :param between: batches whose target may be ahead of the state tables, or behind
    """

    group_id: str
    cluster_id: str | None
    partitions: int
    last: LoadSummary | None
    open: LoadSummary | None
    held_by: str | None
    held_until: datetime | None
    dead_letters: int
    between: tuple[BetweenCommits, ...]

    @property
    def dag_ids(self) -> frozenset[str]:
        """Return the DAGs of the last load and of the open one."""
        return frozenset(load.dag_id for load in (self.last, self.open) if load is not None and load.dag_id is not None)


_LOAD = ("batch_id", "state", "attempt", "row_count", "dead_letters", "planned_at", "committed_at", "dag_id", "task_id")


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
    newest = (
        sa.select(batches.batch_id)
        .where(batches.consumer_group == groups.group_id, batches.kind == "load", batches.state == "committed")
        .order_by(batches.batch_id.desc())
        .limit(1)
        .correlate(tables.consumer_groups)
        .scalar_subquery()
    )
    found = conn.execute(sa.select(tables.consumer_groups, newest.label("newest")).where(of(groups.group_id))).all()
    loads = _loads(conn, tables, [row.newest for row in found if row.newest is not None])
    is_open = sa.and_(batches.kind == "load", batches.state.in_(OPEN_STATES))
    opening = sa.select(tables.offset_batches).where(is_open, of(batches.consumer_group))
    opened = {row.consumer_group: _load(row) for row in conn.execute(opening)}
    letters, offsets = tables.dead_letters.c, tables.consumed_offsets.c
    kept = _counts(conn, letters.consumer_group, sa.and_(tables.with_contents, of(letters.consumer_group)))
    partitions = _counts(conn, offsets.consumer_group, of(offsets.consumer_group))
    between = between_commits(conn, tables)
    summaries = []
    for row in sorted(found, key=lambda row: str(row.group_id)):
        held = row.lease_owner is not None and row.lease_expires_at > now
        summaries.append(
            GroupSummary(
                row.group_id,
                row.cluster_id,
                partitions.get(row.group_id, 0),
                loads.get(row.newest),
                opened.get(row.group_id),
                row.lease_owner if held else None,
                row.lease_expires_at if held else None,
                kept.get(row.group_id, 0),
                tuple(between[row.group_id]) if row.group_id in between else (),
            )
        )
    return now, summaries


# Databases limit the bound values of a statement.
_AT_ONCE = 500


def _loads(conn: Connection, tables: Tables, batch_ids: Sequence[int]) -> dict[int, LoadSummary]:
    table = tables.offset_batches
    loads: dict[int, LoadSummary] = {}
    for index in range(0, len(batch_ids), _AT_ONCE):
        query = sa.select(table).where(table.c.batch_id.in_(batch_ids[index : index + _AT_ONCE]))
        loads |= {row.batch_id: _load(row) for row in conn.execute(query)}
    return loads


def _load(row: sa.Row[tuple[object, ...]]) -> LoadSummary:
    return LoadSummary(*(getattr(row, name) for name in _LOAD))


def _counts(conn: Connection, group: sa.Column[str], where: sa.ColumnElement[bool]) -> dict[str, int]:
    query = sa.select(group, sa.func.count()).where(where).group_by(group)
    return {row[0]: row[1] for row in conn.execute(query)}


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
    reason: str | None


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
    newest = {
        row[0]: row[1]
        for row in conn.execute(
            sa.select(ranges.batch_id, sa.func.max(ranges.last_timestamp))
            .where(ranges.batch_id.in_(batch_ids))
            .group_by(ranges.batch_id)
        )
    }
    skipped = {
        batch_id: int(offsets)
        for batch_id, offsets in conn.execute(
            sa.select(gaps.batch_id, sa.func.sum(gaps.end_offset - gaps.start_offset))
            .where(gaps.batch_id.in_(batch_ids))
            .group_by(gaps.batch_id)
        )
    }
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
            skipped.get(row.batch_id, 0),
            row.reason,
        )
        for row in found
        if row.committed_at is not None
    ]
