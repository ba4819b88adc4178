"""What the state tables say, for those who look: groups, and the history of batches. Reads only."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.database.transactions import database_now
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.ledger.batch_rows import OPEN_STATES
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.install import check_installed
from airflow_kafka_offsets.ledger.tables import Tables

Row = dict[str, Any]
"""Columns by name, with values of Python's types: numbers, text, instants with a time zone, None."""


def groups(conn: Connection, tables: Tables) -> list[Row]:
    """Every group: its cluster and generation, what it has committed, its open batch, and who holds it now.

    A lease that has ended by the database's clock holds nothing, and is left out.

    :raises ConfigurationError: there are no state tables
    :raises LedgerError: they are of another version
    """
    check_installed(conn, tables)
    groups, offsets, batches = tables.consumer_groups.c, tables.consumed_offsets.c, tables.offset_batches.c
    partitions = (
        sa.select(sa.func.count()).where(offsets.consumer_group == groups.group_id).correlate(tables.consumer_groups)
    )
    last = (
        sa.select(batches.consumer_group, sa.func.max(batches.batch_id).label("batch_id"))
        .where(batches.state == "committed")
        .group_by(batches.consumer_group)
        .subquery()
    )
    committed, open_load = tables.offset_batches.alias(), tables.offset_batches.alias()
    still_open = sa.and_(
        open_load.c.consumer_group == groups.group_id,
        open_load.c.kind == "load",
        open_load.c.state.in_(OPEN_STATES),
    )
    held = groups.lease_expires_at > database_now(conn)
    query = (
        sa.select(
            groups.group_id.label("group"),
            groups.cluster_id,
            groups.generation,
            partitions.scalar_subquery().label("partitions"),
            committed.c.batch_id.label("last_batch"),
            committed.c.committed_at,
            open_load.c.batch_id.label("open_batch"),
            open_load.c.state.label("open_state"),
            sa.case((held, groups.lease_owner)).label("held_by"),
            sa.case((held, groups.lease_expires_at)).label("held_until"),
        )
        .select_from(tables.consumer_groups)
        .outerjoin(last, last.c.consumer_group == groups.group_id)
        .outerjoin(committed, committed.c.batch_id == last.c.batch_id)
        .outerjoin(open_load, still_open)
        .order_by(groups.group_id)
    )
    return _rows(conn, query)


def batches(conn: Connection, tables: Tables, group_id: str, limit: int) -> list[Row]:
    """The latest batches of a group, the newest first.

    :raises ConfigurationError: there is no such group; names those that are known
    """
    cluster_of(conn, tables, group_id)
    found = tables.offset_batches.c
    query = (
        sa.select(
            found.batch_id,
            found.kind,
            found.state,
            found.scenario,
            found.records,
            found.row_count.label("rows"),
            found.dead_letters,
            found.generation,
            found.attempt,
            found.target_table,
            found.transform,
            found.who,
            found.dag_id,
            found.task_id,
            found.run_id,
            found.map_index,
            found.try_number,
            found.planned_at,
            found.staged_at,
            found.committed_at,
            found.reason,
        )
        .where(found.consumer_group == group_id)
        .order_by(found.batch_id.desc())
        .limit(limit)
    )
    return _rows(conn, query)


def batch_parts(conn: Connection, tables: Tables, group_id: str, batch_id: int) -> list[Row]:
    """Everything that a batch did to partitions: `part` is range, gap or replaced, with the columns of all three.

    :raises ConfigurationError: the group, or a batch of it with that id, does not exist
    """
    cluster_of(conn, tables, group_id)
    owner = conn.scalar(
        sa.select(tables.offset_batches.c.consumer_group).where(tables.offset_batches.c.batch_id == batch_id)
    )
    if owner != group_id:
        known = f"it is one of group {owner!r}" if owner is not None else "there is no such batch"
        raise ConfigurationError(
            f"Group {group_id!r} has no batch {batch_id}: {known}. 'airflow kafka-offsets history' lists the group's batches"
        )
    ranges, gaps, replaced = tables.offset_ranges.c, tables.offset_gaps.c, tables.replaced_output.c
    parts = [
        (
            "range",
            sa.select(
                ranges.topic,
                ranges.partition,
                ranges.start_offset,
                ranges.end_offset,
                ranges.target_offset,
                ranges.records,
                ranges.dead_letters,
                ranges.bytes,
                ranges.first_timestamp,
                ranges.last_timestamp,
                ranges.how,
                ranges.replaced_from,
                ranges.replaced_to,
            )
            .where(ranges.batch_id == batch_id)
            .order_by(ranges.topic, ranges.partition),
        ),
        (
            "gap",
            sa.select(
                gaps.topic, gaps.partition, gaps.start_offset, gaps.end_offset, gaps.cause, gaps.decision
            )
            .where(gaps.batch_id == batch_id)
            .order_by(gaps.topic, gaps.partition, gaps.start_offset),
        ),
        (
            "replaced",
            sa.select(
                replaced.topic,
                replaced.partition,
                replaced.replaced_batch_id,
                replaced.row_count.label("rows"),
                replaced.dead_letters,
            )
            .where(replaced.batch_id == batch_id)
            .order_by(replaced.topic, replaced.partition, replaced.replaced_batch_id),
        ),
    ]  # fmt: skip
    names = list(dict.fromkeys(str(column.name) for _, query in parts for column in query.selected_columns))
    empty: Row = dict.fromkeys(names)
    return [{"part": part} | empty | row for part, query in parts for row in _rows(conn, query)]


def _rows(conn: Connection, query: sa.Select[Any]) -> list[Row]:
    # The names are of a subclass of str, which not everybody can write.
    return [{str(name): value for name, value in row.items()} for row in conn.execute(query).mappings()]
