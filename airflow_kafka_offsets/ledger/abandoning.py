"""Abandon an open batch on a user's request, also while an attempt is running: the attempt can no longer commit."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.offsets import MAX_INT64, TopicPartition
from airflow_kafka_offsets.database.errors import translated_errors
from airflow_kafka_offsets.database.transactions import transact
from airflow_kafka_offsets.exceptions import OpenBatchError
from airflow_kafka_offsets.ledger.batch_rows import OPEN_STATES
from airflow_kafka_offsets.ledger.first_positions import keep_first_positions
from airflow_kafka_offsets.ledger.groups import lock
from airflow_kafka_offsets.ledger.tables import Tables


def abandon_batch(
    engine: Engine, tables: Tables, group_id: str, batch_id: int, *, who: str, reason: str | None = None
) -> None:
    """Abandon an open batch, a load or a replay: the positions stay where they are, or where the batch began.

    :param who: for the history, as is the reason
    :raises OpenBatchError: the batch is not open, or of another group
    """

    def work(conn: Connection) -> None:
        lock(conn, tables, group_id)
        abandon_locked(conn, tables, group_id, batch_id, who, reason)

    with translated_errors(f"Batch {batch_id} of group {group_id!r} was not abandoned", "Try again."):
        transact(engine, work)


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
    """Abandon an open batch within a transaction that has locked the group's row.

    :param moved: partitions whose position is set in the same transaction; None where all positions become those of another
        cluster
    """
    batches, groups = tables.offset_batches, tables.consumer_groups
    recorded = f"abandoned by {who}" + (f": {reason}" if reason else "")
    of_batch = (batches.c.batch_id == batch_id) & (batches.c.consumer_group == group_id)
    row = None
    if abs(batch_id) <= MAX_INT64:  # the range of the database's integers
        row = conn.execute(sa.select(batches.c.kind, batches.c.state).where(of_batch)).one_or_none()
    close = batches.update().where(of_batch, batches.c.state.in_(OPEN_STATES))
    refusal = None
    if row is None:
        refusal = "the group has no such batch"
    elif conn.execute(close.values(state="abandoned", reason=recorded)).rowcount != 1:
        refusal = f"it is {row.state}"
    if row is None or refusal is not None:
        raise OpenBatchError(
            f"Batch {batch_id} of group {group_id!r} cannot be abandoned: {refusal}. Nothing was changed."
        )
    if row.kind == "load":
        if moved is not None:
            keep_first_positions(conn, tables, group_id, batch_id, but=moved)
        # The attempt that holds the group is fenced, and the next run does not wait for its lease.
        conn.execute(
            groups.update()
            .where(groups.c.group_id == group_id)
            .values(epoch=groups.c.epoch + 1, lease_owner=None, lease_expires_at=None)
        )
