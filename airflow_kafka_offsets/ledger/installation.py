"""The name of the state tables, by which targets elsewhere tell their publications from those of other ones."""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from airflow_kafka_offsets.database.errors import translated_errors
from airflow_kafka_offsets.database.transactions import transact
from airflow_kafka_offsets.ledger.tables import Ledger

_ONLY_ROW = 1


def installation_id(ledger: Ledger, conn: Connection | None = None) -> str:
    """Return the name of these state tables, which no other ones have: it is made when it is first asked for."""
    table = ledger.tables.installation
    query = sa.select(table.c.installation_id)

    def work(conn: Connection) -> str:
        found = conn.scalar(query)
        if found is None:
            found = uuid.uuid4().hex
            conn.execute(table.insert().values(number=_ONLY_ROW, installation_id=found))
        return str(found)

    if conn is not None:
        return work(conn)
    with translated_errors("The name of the state tables is not known"):
        try:
            return transact(ledger.engine, work)
        except IntegrityError:  # by another process, at the same moment
            return transact(ledger.engine, work)
