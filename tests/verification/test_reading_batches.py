"""How a long history is read."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.claims import claim_group
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.verify import verify
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.loads import Loader, names
from tests.support.verifying import ON_ONE, verified

pytestmark = pytest.mark.server


@ON_ONE
def test_the_number_of_statements_does_not_grow(inline_loader: Loader, kafka: KafkaBroker, two_batches: str) -> None:
    statements: list[str] = []
    sa.event.listen(inline_loader.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    verified(inline_loader)
    few = len(statements)
    produce(kafka, two_batches, names(15, 5))
    inline_loader(two_batches, limits=Limits(max_records=1))
    statements.clear()

    assert verified(inline_loader).batches == 7
    assert len(statements) == few


def test_a_long_history_is_not_held_in_memory(postgres_engine: Engine) -> None:
    tables = Tables()
    initialize(Ledger(postgres_engine, tables))
    claim_group(
        Ledger(postgres_engine, tables), "loader", TaskRun("run"), cluster_id="cluster", lease=timedelta(minutes=1)
    )
    held: list[str] = []

    @sa.event.listens_for(postgres_engine, "after_cursor_execute")
    def after(conn: object, cursor: object, statement: str, *_: object) -> None:
        of_history = "ORDER BY" in statement and "pg_catalog" not in statement and "LIMIT" not in statement
        if of_history and not isinstance(cursor, psycopg.ServerCursor):
            held.append(statement)

    verify("loader", sink=SqlTable("target"), engine=postgres_engine)

    assert held == [], "the client fetched all rows of these at once"
