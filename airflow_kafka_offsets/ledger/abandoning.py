"""Open batches that somebody gives up on purpose, whoever works at them."""

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
    """Give up an open batch, a load or a replay: its attempt can never commit, and the positions stay where they are, or
    where it began.

    :raises OpenBatchError: it is not open, or not the group's
    """

    def work(conn: Connection) -> None:
        lock(conn, tables, group_id)
        abandon_locked(conn, tables, group_id, batch_id, who, reason)

    with translated_errors(f"Batch {batch_id} of group {group_id!r} was not abandoned", "Do it again."):
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
    """The same, within a transaction that has locked the group's row.

    :param moved: partitions whose position is chosen in the same transaction; None where all become those of another cluster
    """
    batches, groups = tables.offset_batches, tables.consumer_groups
    told = f"abandoned by {who}" + (f": {reason}" if reason else "")
    mine = (batches.c.batch_id == batch_id, batches.c.consumer_group == group_id)
    row = None
    if abs(batch_id) <= MAX_INT64:  # the database knows no other numbers
        row = conn.execute(sa.select(batches.c.kind, batches.c.state).where(*mine)).one_or_none()
    if row is None:
        raise _not_abandoned(group_id, batch_id, "the group has no such batch")
    closed = conn.execute(
        batches.update().where(*mine, batches.c.state.in_(OPEN_STATES)).values(state="abandoned", reason=told)
    )
    if closed.rowcount != 1:
        raise _not_abandoned(group_id, batch_id, f"it is {row.state}")
    if row.kind == "load":
        if moved is not None:
            keep_first_positions(conn, tables, group_id, batch_id, but=moved)
        # Whoever works at it holds the group: from now on it can write nothing more, and need not be waited for.
        conn.execute(
            groups.update()
            .where(groups.c.group_id == group_id)
            .values(epoch=groups.c.epoch + 1, lease_owner=None, lease_expires_at=None)
        )


def _not_abandoned(group_id: str, batch_id: int, why: str) -> OpenBatchError:
    return OpenBatchError(f"Batch {batch_id} of group {group_id!r} cannot be abandoned: {why}. Nothing was changed.")
