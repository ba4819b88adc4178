"""The connection breaks while Postgres executes COMMIT: the ledger is read once the transaction has ended."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.ledger.batches import record_plan
from airflow_kafka_offsets.ledger.claims import claim_group
from airflow_kafka_offsets.ledger.commit_transaction import commit_batch
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger
from devstack.process import wait_until
from tests.support.airflow_runs import waits_for_a_lock
from tests.support.database_faults import TIMEOUT, change
from tests.support.ledgers import CLUSTER, FIRST_TRY, GROUP, MINUTE, RECIPE, T0, offset_range, written
from tests.support.loads import rows

pytestmark = pytest.mark.server


def test_the_outcome_waits_for_the_commit_that_the_server_still_executes(postgres_engine: Engine) -> None:
    ledger = Ledger(postgres_engine)
    initialize(ledger)
    change(
        postgres_engine,
        "CREATE TABLE output (id INTEGER)",
        "CREATE FUNCTION await_lock() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$",
        "CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON output DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION await_lock()",
    )
    claim = claim_group(ledger, GROUP, FIRST_TRY, cluster_id=CLUSTER, lease=MINUTE)
    batch = record_plan(claim, Plan((offset_range(T0, 0, 10, how="earliest"),)), RECIPE, 0)
    assert batch is not None
    descriptors: list[int] = []

    def write(conn: Connection) -> int:
        driver = conn.connection.dbapi_connection
        assert driver is not None
        descriptors.append(os.dup(driver.fileno()))
        conn.execute(sa.text("INSERT INTO output VALUES (1)"))
        return 1

    with ThreadPoolExecutor(1) as background:
        with postgres_engine.begin() as holder:
            holder.execute(sa.text("SELECT pg_advisory_xact_lock(1)"))
            committing = background.submit(commit_batch, claim, batch, written({}, write))
            wait_until(
                lambda: committing.done() or waits_for_a_lock(postgres_engine, "COMMIT"), TIMEOUT, "the COMMIT to wait"
            )
            # The server does not read from the connection before the COMMIT has ended.
            with socket.socket(fileno=descriptors[0]) as connection:
                connection.shutdown(socket.SHUT_RDWR)
            wait_until(
                lambda: committing.done() or waits_for_a_lock(postgres_engine, "UPDATE consumer_groups"),
                TIMEOUT,
                "the look into the ledger to wait",
            )
        assert committing.result(TIMEOUT).rows == 1

    assert len(descriptors) == 1, "the transaction was repeated"
    assert rows(postgres_engine, "SELECT id FROM output") == [(1,)]
    assert rows(postgres_engine, "SELECT state, row_count FROM offset_batches") == [("committed", 1)]
