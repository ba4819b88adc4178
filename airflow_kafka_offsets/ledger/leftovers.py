"""Files of a target that failed attempts of Spark's tasks left: found and removed once a batch has been closed for long
enough.

An attempt that was taken over may still write, or even publish, for a while. So nothing is removed at once, and never a
file that a snapshot of the target names.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

import sqlalchemy as sa

from airflow_kafka_offsets.core.history import UNFINISHED_STATES
from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.database.transactions import now, transact
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.sinks.table import Table

log = logging.getLogger(__name__)

# A load looks after so many batches: there are no more than that, unless loads failed for long.
_AT_ONCE = 50


def remove_leftovers(ledger: Ledger, table: Table, group_id: str, retention: timedelta) -> None:
    """Remove what attempts to stage batches left in the storage of a target. Does nothing for a target that is a table.

    :param retention: how long a batch has to be closed, and a file to be unchanged
    """
    if not table.sink.writes_files:
        return
    batches = ledger.tables.offset_batches
    before = now(ledger.engine) - retention
    closed = sa.select(batches.c.batch_id).where(
        batches.c.has_files_since < before,
        batches.c.consumer_group == group_id,
        batches.c.target_table == table.sink.name,
        batches.c.state.not_in(UNFINISHED_STATES),
        sa.or_(batches.c.committed_at.is_(None), batches.c.committed_at < before),
        # What is owed to the target comes first.
        batches.c.publish_started_at.is_(None),
    )
    with ledger.connect() as conn:
        ids = conn.scalars(closed.order_by(batches.c.batch_id).limit(_AT_ONCE)).all()
    for batch_id in ids:
        if not _remove(table, batch_id, before):
            return
        checked = batches.update().where(batches.c.batch_id == batch_id).values(has_files_since=None)
        transact(ledger.engine, lambda conn, checked=checked: conn.execute(checked))  # type: ignore[misc]


def _remove(table: Table, batch_id: int, before: datetime) -> bool:
    try:
        removed = table.remove_leftovers(batch_id, before)
    except OSError as error:
        log.warning(
            "The files that attempts of batch %d left in %s could not be removed: %s", batch_id, table.sink.name, error
        )
        return False
    if removed:
        log.info(
            "Removed %s from %s that failed attempts of batch %d left",
            count(removed, "file"),
            table.sink.name,
            batch_id,
        )
    return True
