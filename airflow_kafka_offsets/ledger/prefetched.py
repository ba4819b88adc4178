"""The prefetched batch: a load in the state `prefetched`, which starts where the group's open load ends.

There is one at most, and only while a load is open: the commit of that load opens it, and who abandons that load
abandons it too. So a group never has more than one open batch, and batches that move positions are committed in the
order of their ids.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.history import PREFETCHED
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.tables import Ledger, Tables


def has_prefetched_batch(ledger: Ledger, group_id: str) -> bool:
    """Return whether a group has a prefetched batch, of any attempt."""
    tables = ledger.tables
    with ledger.connect() as conn:
        return (
            conn.scalar(sa.select(tables.offset_batches.c.batch_id).where(_is_prefetched(tables, group_id))) is not None
        )


def open_prefetched_batch(conn: Connection, tables: Tables, committed: Batch) -> None:
    """Make the prefetched batch the group's open one, in the transaction that commits the batch before
    it.
    """
    batches = tables.offset_batches
    # With the id, so that an index leads to it.
    following = _is_prefetched(tables, committed.group_id) & (batches.c.batch_id > committed.batch_id)
    conn.execute(batches.update().where(following).values(state="planned"))


def abandon_prefetched_batch(
    conn: Connection, tables: Tables, group_id: str, batch_id: int, abandoned: str
) -> dict[int, str]:
    """Abandon the prefetched batch, in the transaction that abandons the open one: the positions do not get
    to its start.

    It began no partition, so that no first position has to be stored.

    :param batch_id: of the open batch
    :param abandoned: by whom and why, for the history
    :return: where the latest attempt staged it, by its id
    """
    batches = tables.offset_batches
    found = conn.execute(
        sa.select(batches.c.batch_id, batches.c.staging_uri).where(_is_prefetched(tables, group_id))
    ).one_or_none()
    if found is None:
        return {}
    reason = f"prefetched after batch {batch_id}, which was {abandoned}"
    conn.execute(batches.update().where(batches.c.batch_id == found.batch_id).values(state="abandoned", reason=reason))
    return {found.batch_id: found.staging_uri} if found.staging_uri is not None else {}


def _is_prefetched(tables: Tables, group_id: str) -> sa.ColumnElement[bool]:
    batches = tables.offset_batches.c
    return (batches.consumer_group == group_id) & (batches.kind == "load") & (batches.state == PREFETCHED)
