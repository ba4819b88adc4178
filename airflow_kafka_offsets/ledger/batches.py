"""The life of a batch until it is committed: planned, written ahead, staged.

Every function that writes is one transaction, begins by locking the row of the claim, and writes nothing under an older token.
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
    """The group's planned or staged load, whoever began it: it is finished before anything new is planned."""
    batches = tables.offset_batches.c
    with engine.connect() as conn:
        row = conn.execute(
            sa.select(tables.offset_batches).where(
                batches.consumer_group == group_id, batches.kind == "load", batches.state.in_(OPEN_STATES)
            )
        ).one_or_none()
        return None if row is None else as_batch(conn, tables, row)


def captured_targets(engine: Engine, tables: Tables, claim: Claim) -> dict[TopicPartition, int] | None:
    """The offsets up to which to load, by partition, that this task instance captured with its first batch, or None where it has none yet."""
    batches, ranges = tables.offset_batches.c, tables.offset_ranges.c
    mine = of_task_instance(tables, claim.group_id, claim.owner)
    with engine.connect() as conn:
        first = conn.scalar(sa.select(sa.func.min(batches.batch_id)).where(mine, batches.kind == "load"))
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
    """Write a plan ahead of any work: from now on a retry, or the next run, replays exactly these ranges.

    Positions of topics that start at the end of their log are stored in the same transaction, as a batch of kind
    `start`, because nothing else will be done for them.

    :param generation: of the group, read before the positions that the plan is decided from
    :param upsert: whether the sink knows a row by a key, so that it is there once however often it is loaded
    :return: the open batch; None where the plan loads nothing
    :raises PositionsMovedError: the positions were rewound since
    :raises DoubleLoadError: a replay has appended records to the table that the group would load into it again
    """
    batch_id = transact_claimed(
        engine, tables, claim, lambda conn: _write_plan(conn, tables, claim, plan, recipe, generation, upsert)
    )
    if batch_id is None:
        return None
    return Batch(
        batch_id,
        claim.group_id,
        "planned",
        plan.ranges,
        plan.gaps,
        recipe.target_table,
        fingerprint=recipe.fingerprint,
    )


def abandon(engine: Engine, tables: Tables, claim: Claim, batch: Batch, reason: str) -> None:
    """Give a load up, with the reason: its positions stay where they are, or where it began, and its attempts can never
    commit.
    """

    def give_up(conn: Connection) -> dict[str, object]:
        keep_first_positions(conn, tables, claim.group_id, batch.batch_id)
        return {"state": "abandoned", "reason": reason}

    _update_open(engine, tables, claim, batch, give_up)


def begin_staging(engine: Engine, tables: Tables, claim: Claim, batch: Batch, staging_uri: str, recipe: Recipe) -> None:
    """Record where this attempt stages, and how, before it does: whoever comes next can remove what it leaves behind."""
    attempt = tables.offset_batches.c.attempt + 1
    _update_open(
        engine,
        tables,
        claim,
        batch,
        lambda conn: {
            "state": "planned",
            "staging_uri": staging_uri,
            "attempt": attempt,
            "transform": recipe.transform,
            "fingerprint": recipe.fingerprint,
        },
    )


def mark_staged(engine: Engine, tables: Tables, claim: Claim, batch: Batch, records: int) -> None:
    """Record that the manifest is complete: a later try commits it without reading Kafka again."""
    _update_open(
        engine,
        tables,
        claim,
        batch,
        lambda conn: {"state": "staged", "records": records, "staged_at": database_now(conn)},
        states=("planned",),
    )


def _update_open(
    engine: Engine,
    tables: Tables,
    claim: Claim,
    batch: Batch,
    values: Callable[[Connection], Mapping[str, object]],
    *,
    states: Sequence[str] = OPEN_STATES,
) -> None:
    """Change a batch in a transaction of its own; one that was closed meanwhile stays as it is."""
    batches = tables.offset_batches

    def update(conn: Connection) -> None:
        still_open = batches.c.state.in_(states)
        conn.execute(batches.update().where(batches.c.batch_id == batch.batch_id, still_open).values(**values(conn)))

    transact_claimed(engine, tables, claim, update)


def _write_plan(
    conn: Connection, tables: Tables, claim: Claim, plan: Plan, recipe: Recipe, generation: int, upsert: bool
) -> int | None:
    """
    :return: the id of the batch to load, or None
    """
    if stored_generation(conn, tables, claim.group_id) != generation:
        raise PositionsMovedError(
            f"The positions of group {claim.group_id!r} were rewound while a batch was planned from the old ones. Nothing was "
            "written; plan again."
        )
    if not upsert:
        refuse_replayed(conn, tables, claim.group_id, recipe.target_table, plan.ranges)
    now = database_now(conn)
    if plan.initial:
        store_first_positions(conn, tables, claim.group_id, claim.owner, generation, recipe, plan.initial, now)
    if not plan.ranges:
        return None
    batch_id = insert_batch(
        conn,
        tables,
        claim.group_id,
        claim.owner,
        "load",
        generation,
        state="planned",
        planned_at=now,
        **asdict(recipe),
    )
    insert_ranges(conn, tables, batch_id, plan.ranges)
    insert_gaps(conn, tables, batch_id, plan.gaps)
    return batch_id


def open_batch_of(conn: Connection, tables: Tables, group_id: str) -> int | None:
    """The group's load that is planned or staged."""
    batches = tables.offset_batches.c
    return conn.scalar(
        sa.select(batches.batch_id).where(
            batches.consumer_group == group_id, batches.kind == "load", batches.state.in_(OPEN_STATES)
        )
    )
