"""The life of a load's batch before its commit: planned, written ahead, staged, or abandoned by its own attempt.

Every function that writes is one transaction that begins by locking the claim. Abandoning a batch of another attempt is in
`ledger.abandoning`, the commit in `ledger.commit_transaction`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.database.transactions import database_now
from airflow_kafka_offsets.exceptions import PositionsMovedError
from airflow_kafka_offsets.ledger.batch_rows import (
    OPEN_STATES,
    Batch,
    Recipe,
    as_batch,
    insert_batch,
    insert_gaps,
    insert_ranges,
    of_task_instance,
)
from airflow_kafka_offsets.ledger.claims import Claim, transact_claimed
from airflow_kafka_offsets.ledger.first_positions import keep_first_positions, store_first_positions
from airflow_kafka_offsets.ledger.groups import stored_generation
from airflow_kafka_offsets.ledger.replayed_offsets import refuse_replayed
from airflow_kafka_offsets.ledger.tables import Tables


def open_batch(engine: Engine, tables: Tables, group_id: str) -> Batch | None:
    """Return the group's planned or staged load, of any attempt: it is finished before a new batch is planned."""
    with engine.connect() as conn:
        row = conn.execute(sa.select(tables.offset_batches).where(_is_open_load(tables, group_id))).one_or_none()
        return None if row is None else as_batch(conn, tables, row)


def open_batch_of(conn: Connection, tables: Tables, group_id: str) -> int | None:
    """Return the id of the group's planned or staged load, within a transaction."""
    return conn.scalar(sa.select(tables.offset_batches.c.batch_id).where(_is_open_load(tables, group_id)))


def _is_open_load(tables: Tables, group_id: str) -> sa.ColumnElement[bool]:
    batches = tables.offset_batches.c
    return (batches.consumer_group == group_id) & (batches.kind == "load") & batches.state.in_(OPEN_STATES)


def captured_targets(engine: Engine, tables: Tables, claim: Claim) -> dict[TopicPartition, int] | None:
    """Return the offsets, by partition, up to which this task instance loads: those that its first batch captured.

    :return: None before its first batch
    """
    batches, ranges = tables.offset_batches.c, tables.offset_ranges.c
    own = of_task_instance(tables, claim.group_id, claim.owner)
    with engine.connect() as conn:
        first = conn.scalar(sa.select(sa.func.min(batches.batch_id)).where(own, batches.kind == "load"))
        if first is None:
            return None
        rows = conn.execute(sa.select(tables.offset_ranges).where(ranges.batch_id == first))
        return {TopicPartition(row.topic, row.partition): row.target_offset for row in rows}


def record_plan(
    engine: Engine,
    tables: Tables,
    claim: Claim,
    plan: Plan,
    recipe: Recipe,
    generation: int,
    *,
    upsert: bool = False,
) -> Batch | None:
    """Write a plan ahead of its load: from now on a retry, or the next run, loads exactly these ranges.

    Positions of topics that start at the end of their log are stored in the same transaction, as a batch of kind `start`.

    :param generation: of the group, read before the positions from which the plan was decided
    :param upsert: whether the sink identifies a row by a key, so that loading it again does not duplicate it
    :return: the open batch; None where the plan loads nothing
    :raises PositionsMovedError: the positions were rewound since they were read
    :raises DoubleLoadError: a replay has already appended records to the table that the group would load into it
    """
    group_id, owner = claim.group_id, claim.owner

    def write(conn: Connection) -> int | None:
        if stored_generation(conn, tables, group_id) != generation:
            raise PositionsMovedError(
                f"The positions of group {group_id!r} were rewound while a batch was planned from the old ones. Nothing was "
                "written; plan again."
            )
        if not upsert:
            refuse_replayed(conn, tables, group_id, recipe.target_table, plan.ranges)
        now = database_now(conn)
        if plan.initial:
            store_first_positions(conn, tables, group_id, owner, generation, recipe, plan.initial, now)
        if not plan.ranges:
            return None
        values = {"state": "planned", "planned_at": now} | asdict(recipe)
        batch_id = insert_batch(conn, tables, group_id, owner, "load", generation, **values)
        insert_ranges(conn, tables, batch_id, plan.ranges)
        insert_gaps(conn, tables, batch_id, plan.gaps)
        return batch_id

    batch_id = transact_claimed(engine, tables, claim, write)
    if batch_id is None:
        return None
    fingerprint = recipe.fingerprint
    return Batch(batch_id, group_id, "planned", plan.ranges, plan.gaps, recipe.target_table, fingerprint=fingerprint)


def abandon(engine: Engine, tables: Tables, claim: Claim, batch: Batch, reason: str) -> None:
    """Abandon an open load as its own attempt: the positions stay where they are, or where the batch began.

    :param reason: for the history
    """

    def values(conn: Connection) -> dict[str, object]:
        keep_first_positions(conn, tables, claim.group_id, batch.batch_id)
        return {"state": "abandoned", "reason": reason}

    _update_open(engine, tables, claim, batch, values)


def begin_staging(engine: Engine, tables: Tables, claim: Claim, batch: Batch, staging_uri: str, recipe: Recipe) -> None:
    """Record where and how this attempt stages, before it does: a later attempt can remove the files that it leaves."""
    values = {
        "state": "planned",
        "staging_uri": staging_uri,
        "attempt": tables.offset_batches.c.attempt + 1,
        "transform": recipe.transform,
        "fingerprint": recipe.fingerprint,
    }
    _update_open(engine, tables, claim, batch, lambda conn: values)


def mark_staged(engine: Engine, tables: Tables, claim: Claim, batch: Batch, records: int) -> None:
    """Record that the manifest is complete: a later try commits the files without reading Kafka again."""

    def values(conn: Connection) -> dict[str, object]:
        return {"state": "staged", "records": records, "staged_at": database_now(conn)}

    _update_open(engine, tables, claim, batch, values, states=("planned",))


def _update_open(
    engine: Engine,
    tables: Tables,
    claim: Claim,
    batch: Batch,
    values: Callable[[Connection], Mapping[str, object]],
    *,
    states: Sequence[str] = OPEN_STATES,
) -> None:
    """Update a batch in a transaction of its own; a batch that was closed meanwhile is left as it is."""
    batches = tables.offset_batches

    def update(conn: Connection) -> None:
        still_open = batches.c.state.in_(states)
        conn.execute(batches.update().where(batches.c.batch_id == batch.batch_id, still_open).values(**values(conn)))

    transact_claimed(engine, tables, claim, update)
