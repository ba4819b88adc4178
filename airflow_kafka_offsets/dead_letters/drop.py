"""Delete what dead letters hold, on purpose. That there was a record, and who decided it, stays: `verify` counts it as
before.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.instants import format_instant
from airflow_kafka_offsets.database.errors import translated_errors
from airflow_kafka_offsets.database.transactions import database_now, transact
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.ledger.batch_rows import current_user
from airflow_kafka_offsets.ledger.dead_letters import DROPPED, EMPTY, may_be_published
from airflow_kafka_offsets.ledger.groups import cluster_of, lock
from airflow_kafka_offsets.ledger.tables import Ledger, Tables


def drop_dead_letters(
    letters: DeadLetterFilter,
    *,
    engine: Engine,
    tables: Tables | None = None,
    who: str | None = None,
    reason: str | None = None,
) -> int:
    """Delete keys, values, headers and errors of dead letters: they cannot be replayed any more.

    :param letters: which ones
    :param engine: the database of the positions
    :param tables: where the state tables are; None is without a schema and a prefix
    :param who: who does it; it is stored in their place, with the time; None is the user of this process
    :param reason: why; it is stored with it
    :return: how many there were
    :raises ConfigurationError: there is no such group
    """
    ledger = Ledger(engine, tables or Tables.of())
    stored = ledger.tables.dead_letters

    def work(conn: Connection) -> int:
        lock(conn, ledger.tables, letters.group_id)
        decision = f"dropped by {who or current_user()} at {format_instant(database_now(conn))}"
        error = f"{decision}: {reason}" if reason else decision
        is_published = may_be_published(ledger.tables, letters.group_id)
        kept = sa.and_(stored.c.error_class.is_distinct_from(DROPPED), sa.not_(is_published))
        dropped = stored.update().where(letters.condition(ledger.tables), kept).values(**EMPTY, error=error)
        return conn.execute(dropped).rowcount

    with translated_errors(f"The dead letters of group {letters.group_id!r} were not dropped", "Try again."):
        with ledger.connect() as conn:
            cluster_of(conn, ledger.tables, letters.group_id)
        return transact(engine, work)
