"""The life of a batch before its commit: planned, staged, or abandoned by its own attempt or by a user; and the first
positions of partitions, which outlive an abandoned batch.

Every function that writes for a load is one transaction that begins by locking the claim. The commit is in
`ledger.commit_transaction`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.history import OPEN_STATES, PREFETCHED
from airflow_kafka_offsets.core.offsets import OffsetRange, Position, TopicPartition
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.core.text import MAX_INT64
from airflow_kafka_offsets.database.transactions import database_now
from airflow_kafka_offsets.exceptions import OpenBatchError, PositionsMovedError
from airflow_kafka_offsets.ledger.batch_rows import (
    Batch,
    Recipe,
    TaskRun,
    abandon_prefetched_batch,
    as_batch,
    change_open,
    current_user,
    database_user,
    insert_batch,
    is_load,
    latest_try,
    of_task_instance,
    open_batch_of,
    update_open,
)
from airflow_kafka_offsets.ledger.claims import Claim
from airflow_kafka_offsets.ledger.compaction import Compacted
from airflow_kafka_offsets.ledger.double_loads import refuse_loaded
from airflow_kafka_offsets.ledger.groups import stored_generation
from airflow_kafka_offsets.ledger.positions import positions_after, set_positions, stored_positions
from airflow_kafka_offsets.ledger.publications import may_have_replaced
from airflow_kafka_offsets.ledger.tables import Ledger, Tables, sum_of

# Batches whose records are measured.
_RECENT_BATCHES = 5


def open_batch(ledger: Ledger, group_id: str) -> Batch | None:
    """Return the group's planned or staged load, of any attempt: it is finished before a new batch is planned."""
    tables = ledger.tables
    with ledger.connect() as conn:
        row = conn.execute(
            sa.select(tables.offset_batches).where(is_load(tables, group_id, *OPEN_STATES))
        ).one_or_none()
        return None if row is None else as_batch(conn, tables, row)


def captured_targets(claim: Claim) -> dict[TopicPartition, int] | None:
    """Return the offsets, by partition, up to which this task instance loads: those that its first batch captured.

    Of an instance whose batches were compacted since, they are the ends of what was loaded by then.

    :return: None before its first batch
    """
    tables = claim.ledger.tables
    batches, ranges = tables.offset_batches.c, tables.offset_ranges.c
    own = of_task_instance(tables, claim.group_id, claim.owner)
    with claim.ledger.connect() as conn:
        first = conn.scalar(sa.select(sa.func.min(batches.batch_id)).where(own, batches.kind == "load"))
        if first is None:
            return None
        rows = conn.execute(sa.select(tables.offset_ranges).where(ranges.batch_id == first)).all()
        if rows:
            return {TopicPartition(row.topic, row.partition): row.target_offset for row in rows}
        if (compacted := Compacted.of(conn, tables, claim.group_id).span_of(first)) is None:
            return None
        rows = conn.execute(sa.select(tables.offset_ranges).where(ranges.batch_id == compacted[1])).all()
        return {TopicPartition(row.topic, row.partition): row.end_offset for row in rows}


def bytes_per_offset(ledger: Ledger, group_id: str) -> dict[str, float]:
    """Return the average size of key and value for each offset, by topic, in the latest loads of a group.

    :return: bytes, for topics of which at least one offset was read
    """
    tables = ledger.tables
    batches, ranges = tables.offset_batches.c, tables.offset_ranges.c
    recent = (
        sa.select(batches.batch_id)
        .where(is_load(tables, group_id, "committed"))
        .order_by(batches.batch_id.desc())
        .limit(_RECENT_BATCHES)
        .subquery()
    )
    offsets = sum_of(ranges.end_offset - ranges.start_offset)
    query = (
        sa.select(ranges.topic, sum_of(ranges.bytes), offsets)
        .join(recent, recent.c.batch_id == ranges.batch_id)
        .where(ranges.records.is_not(None))
        .group_by(ranges.topic)
        .having(offsets > 0)
    )
    with ledger.connect() as conn:
        return {topic: float(size) / float(count) for topic, size, count in conn.execute(query)}


def record_plan(
    claim: Claim,
    plan: Plan,
    recipe: Recipe,
    generation: int,
    *,
    upsert: bool = False,
    beside_others: bool = False,
    prefetched: bool = False,
) -> Batch | None:
    """Store a plan before its load: from now on a retry, or the next run, loads exactly these ranges.

    Positions of topics that start at the end of their log are stored in the same transaction, as a batch of kind
    `initialize`.

    :param generation: of the group, read before the positions from which the plan was decided
    :param upsert: whether the sink identifies a row by a key, so that loading it again does not duplicate it
    :param beside_others: whether other groups may load the same offsets into the same target
    :param prefetched: whether the plan starts where the open batch ends, and is to be loaded after it
    :return: the new batch; None where the plan loads nothing
    :raises PositionsMovedError: the positions were rewound since they were read
    :raises DoubleLoadError: another group or a replay has put records into the target that the group would load into it
    """
    tables, group_id, owner = claim.ledger.tables, claim.group_id, claim.owner

    def write(conn: Connection) -> Batch | None:
        if stored_generation(conn, tables, group_id) != generation:
            raise PositionsMovedError(
                f"The positions of group {group_id!r} were rewound while a batch was planned from the old ones. "
                "Nothing was written; plan again."
            )
        if not upsert:
            refuse_loaded(conn, tables, group_id, recipe.target_table, plan.ranges, beside_others=beside_others)
        now = database_now(conn)
        if plan.initial:
            store_first_positions(conn, tables, group_id, owner, generation, recipe, plan.initial, now)
        if not plan.ranges:
            return None
        values: dict[str, Any] = {"state": PREFETCHED if prefetched else "planned", "planned_at": now} | asdict(recipe)
        return insert_batch(conn, tables, group_id, owner, "load", generation, plan, **values)

    return claim.transact(write)


def abandon(claim: Claim, batch: Batch, reason: str) -> dict[int, str]:
    """Abandon the open load of this attempt, and the prefetched one: the positions stay where they are, or where the
    open batch began.

    :param reason: a note for the history
    :return: the staging URIs of their latest attempts, by batch id
    """
    tables = claim.ledger.tables

    def work(conn: Connection) -> dict[int, str]:
        keep_first_positions(conn, tables, claim.group_id, batch.batch_id)
        update_open(conn, tables, batch.batch_id, state="abandoned", reason=reason)
        staged = abandon_prefetched_batch(conn, tables, claim.group_id, batch.batch_id, f"abandoned: {reason}")
        uri = _staging_uri(conn, tables, batch)
        return staged if uri is None else {batch.batch_id: uri} | staged

    return claim.transact(work)


def check_open(conn: Connection, tables: Tables, group_id: str, batch_id: int) -> str:
    """Check that a batch of a group can be abandoned now, and return its kind.

    :raises OpenBatchError: see `abandon_locked`
    """
    batches = tables.offset_batches
    row = None
    if abs(batch_id) <= MAX_INT64:  # the range of the database's integers
        found = sa.select(batches.c.kind, batches.c.state, may_have_replaced(tables).label("replaced"))
        of_batch = (batches.c.batch_id == batch_id) & (batches.c.consumer_group == group_id)
        row = conn.execute(found.where(of_batch)).one_or_none()
    if row is not None and row.replaced:
        refusal = (
            "it is a replay whose rows may be in the target already, and the rows that it replaced would be lost. "
            "Nothing was changed; finish the replay: clear its task, or outside of Airflow run the same replay again."
        )
    elif row is not None and row.state == PREFETCHED:
        before = open_batch_of(conn, tables, group_id)
        refusal = f"it is prefetched after batch {before}; abandon that one, and both are abandoned."
    elif row is None or row.state not in OPEN_STATES:
        refusal = f"{'the group has no such batch' if row is None else f'it is {row.state}'}. Nothing was changed."
    else:
        return str(row.kind)
    raise OpenBatchError(f"Batch {batch_id} of group {group_id!r} cannot be abandoned: {refusal}")


def abandon_locked(
    conn: Connection,
    tables: Tables,
    group_id: str,
    batch_id: int,
    who: str,
    reason: str | None,
    *,
    moved: Collection[TopicPartition] | None = (),
) -> None:
    """Abandon an open batch, and the prefetched one after it, within a transaction that has locked the group's
    row.

    :param moved: partitions whose position is set in the same transaction; None if the group moves to another cluster
    :raises OpenBatchError: the batch does not exist or is not open, or the target may have its rows in place of earlier
        ones
    """
    groups = tables.consumer_groups
    recorded = _abandoned_by(conn, who, reason)
    kind = check_open(conn, tables, group_id, batch_id)
    if not update_open(conn, tables, batch_id, state="abandoned", reason=recorded):
        raise OpenBatchError(f"Batch {batch_id} of group {group_id!r} is not open any more. Nothing was changed.")
    if kind == "load":
        abandon_prefetched_batch(conn, tables, group_id, batch_id, recorded)
        if moved is not None:
            keep_first_positions(conn, tables, group_id, batch_id, but=moved)
        # The attempt that holds the group is fenced, and the next run does not wait for its lease.
        conn.execute(
            groups.update()
            .where(groups.c.group_id == group_id)
            .values(epoch=groups.c.epoch + 1, lease_owner=None, lease_expires_at=None)
        )


def _abandoned_by(conn: Connection, who: str, reason: str | None) -> str:
    """Return the author and the reason of an abandoned batch, for the history."""
    # A name that was given is a claim; these two are not.
    user = conn.scalar(sa.select(database_user(conn)))
    users = [current_user()] * (who != current_user()) + [f"database user {user}"] * (user is not None)
    known = f" ({', '.join(users)})" if users else ""
    return f"abandoned by {who}{known}" + (f": {reason}" if reason else "")


def store_first_positions(
    conn: Connection,
    tables: Tables,
    group_id: str,
    owner: TaskRun,
    generation: int,
    recipe: Recipe,
    starts: Sequence[OffsetRange],
    now: datetime,
    reason: str | None = None,
) -> None:
    """Store the positions of partitions that have none, as a batch of kind `initialize`: a later load begins there.

    :param recipe: of the load; nothing is written to its table
    :param starts: empty ranges, at the positions
    :param reason: for the history
    """
    values = {"state": "committed", "reason": reason, "planned_at": now, "committed_at": now} | asdict(recipe)
    batch = insert_batch(conn, tables, group_id, owner, "initialize", generation, Plan(tuple(starts)), **values)
    set_positions(conn, tables, group_id, batch.batch_id, positions_after(starts), now)


def first_ranges(batch: Batch, stored: Collection[TopicPartition]) -> list[OffsetRange]:
    """Return empty ranges at the offsets where a load began partitions without a position.

    :param stored: the partitions of its group that have a position
    """
    starts = batch.starts
    return [
        replace(range_, start=starts[tp], end=starts[tp], target=starts[tp])
        for range_ in batch.ranges
        if (tp := range_.topic_partition) not in stored
    ]


def begun_positions(
    conn: Connection, tables: Tables, batch_id: int, stored: Collection[TopicPartition]
) -> Mapping[TopicPartition, Position]:
    """Return where a load began partitions without a position.

    :param stored: the partitions of its group that have a position
    """
    row = conn.execute(sa.select(tables.offset_batches).where(tables.offset_batches.c.batch_id == batch_id)).one()
    return positions_after(first_ranges(as_batch(conn, tables, row), stored))


def keep_first_positions(
    conn: Connection, tables: Tables, group_id: str, batch_id: int, *, but: Collection[TopicPartition] = ()
) -> None:
    """Store the positions at which an abandoned load began partitions.

    Otherwise, if another partition has a position, the next load would treat these as new partitions, and begin at
    their beginning offset.

    :param but: partitions whose position is set in the same transaction
    """
    batches = tables.offset_batches
    row = conn.execute(sa.select(batches).where(batches.c.batch_id == batch_id)).one()
    stored = stored_positions(conn, tables, group_id)
    starts = first_ranges(as_batch(conn, tables, row), {*stored, *but})
    if starts:
        owner = TaskRun(row.run_id, row.dag_id, row.task_id, row.map_index, row.try_number, row.triggered_by)
        recipe = Recipe(row.target_table, row.transform, row.fingerprint)
        generation, now = stored_generation(conn, tables, group_id), database_now(conn)
        reason = f"where batch {batch_id} began"
        store_first_positions(conn, tables, group_id, owner, generation, recipe, starts, now, reason)


def begin_staging(
    claim: Claim, batch: Batch, staging_uri: str, recipe: Recipe, *, writes_target: bool = False
) -> str | None:
    """Record the staging directory of this attempt before it is used: a later attempt can remove its files.

    A prefetched batch stays prefetched.

    :param writes_target: whether it writes files of the target; see `ledger.publications`
    :return: the staging URI of the attempt before; None if there was none
    """
    tables = claim.ledger.tables
    states = (PREFETCHED,) if batch.state == PREFETCHED else OPEN_STATES
    values: dict[str, Any] = {
        "state": PREFETCHED if batch.state == PREFETCHED else "planned",
        "staging_uri": staging_uri,
        "attempt": tables.offset_batches.c.attempt + 1,
        "try_number": latest_try(tables, batch.group_id, claim.owner),
        "transform": recipe.transform,
        "fingerprint": recipe.fingerprint,
    }

    def work(conn: Connection) -> str | None:
        earlier = _staging_uri(conn, tables, batch)
        since: dict[str, Any] = {"has_files_since": database_now(conn)} if writes_target else {}
        change_open(conn, tables, batch, states=states, **values, **since)
        return earlier

    return claim.transact(work)


def _staging_uri(conn: Connection, tables: Tables, batch: Batch) -> str | None:
    """Return the staging URI of the latest attempt, which may be this one."""
    batches = tables.offset_batches.c
    return conn.scalar(sa.select(batches.staging_uri).where(batches.batch_id == batch.batch_id))


def mark_staged(claim: Claim, batch: Batch, records: int) -> None:
    """Record that the manifest is complete: a later try commits the files without reading Kafka again."""

    def work(conn: Connection) -> None:
        values = {"state": "staged", "records": records, "staged_at": database_now(conn)}
        change_open(conn, claim.ledger.tables, batch, states=("planned",), **values)

    claim.transact(work)
