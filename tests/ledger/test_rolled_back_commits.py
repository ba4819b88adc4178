"""Postgres rolls a commit back, for a deadlock or a serialization failure: it is repeated, and the load is exactly
once.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.exceptions import DatabaseBusyError, GroupBusyError
from airflow_kafka_offsets.ledger.claims import claim_group
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from devstack.process import wait_until
from tests.support.airflow_runs import waits_for_a_lock
from tests.support.database_faults import (
    ADDED,
    RUN,
    TIMEOUT,
    Meddled,
    assert_nothing_written,
    assert_staged_rows_are_committed,
    change,
    once,
    over,
)
from tests.support.loads import Loader, assert_exactly_once

pytestmark = pytest.mark.server


def repetition(caplog: pytest.LogCaptureFixture) -> str:
    """What was logged of the one repetition that there was."""
    (message,) = [text for record in caplog.records if "Attempt" in (text := record.getMessage())]
    return message


class TestInTheWay:
    """Other transactions make the database roll the commit back."""

    @pytest.mark.parametrize("check", ["NOT DEFERRABLE", "INITIALLY DEFERRED"], ids=["at-a-statement", "at-commit"])
    def test_a_deadlock(
        self, postgres_loader: Loader, orders: str, check: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = postgres_loader.engine
        change(
            engine,
            "CREATE TABLE known (name TEXT PRIMARY KEY)",
            "INSERT INTO known SELECT 'name-' || n FROM generate_series(0, 9) n",
            f"CREATE TABLE target (id BIGINT, name TEXT REFERENCES known {check}, {ADDED})",
        )

        def want_the_group(other: Connection) -> None:
            with other:
                other.execute(sa.text("UPDATE consumer_groups SET epoch = epoch"))
                other.commit()

        def hold_a_name_and_want_the_group() -> None:
            other = engine.connect()
            # Whoever looks first finds the deadlock, and is its victim: not this one.
            other.execute(sa.text("SET deadlock_timeout = '1h'"))
            other.execute(sa.text("SELECT * FROM known WHERE name = 'name-7' FOR UPDATE"))
            others.submit(want_the_group, other)
            wait_until(lambda: waits_for_a_lock(engine, "UPDATE consumer_groups"), TIMEOUT, "the other to wait")

        impatient = sa.create_engine(engine.url, connect_args={"options": "-c deadlock_timeout=20ms"})
        with over(impatient, postgres_loader) as loader, ThreadPoolExecutor(1) as others:
            result = loader(orders, sink=Meddled("target", before_write=once(hold_a_name_and_want_the_group)))

        assert result.rows == 10
        # Where the other wakes late, there is another one.
        first, *later = [text for text in caplog.messages if "Attempt" in text]
        assert "deadlock detected. Attempt 2 of 5 follows" in first
        assert all("deadlock detected" in text for text in later)
        assert_exactly_once(engine)

    @pytest.mark.parametrize("isolation_level", ["REPEATABLE READ", "SERIALIZABLE"])
    def test_a_row_that_changed_since_the_snapshot(
        self, postgres_loader: Loader, orders: str, isolation_level: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = postgres_loader.engine
        change_the_batch = once(lambda: change(engine, "UPDATE offset_batches SET reason = 'changed'"))

        with over(sa.create_engine(engine.url, isolation_level=isolation_level), postgres_loader) as loader:
            result = loader(orders, sink=Meddled("target", before_write=change_the_batch))

        assert result.rows == 10
        assert "could not serialize access due to concurrent update. Attempt 2 of 5 follows" in repetition(caplog)
        assert_exactly_once(engine)

    def test_two_transactions_that_read_what_the_other_writes(
        self, postgres_loader: Loader, orders: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = postgres_loader.engine
        read_rows_and_write_positions = once(
            lambda: change(
                engine.execution_options(isolation_level="SERIALIZABLE"),
                "SELECT count(*) FROM target",
                "INSERT INTO consumed_offsets (consumer_group, topic, partition, offset_value, batch_id, updated_at)"
                " VALUES ('another', 'another', 0, 0, 0, now())",
            )
        )

        with over(sa.create_engine(engine.url, isolation_level="SERIALIZABLE"), postgres_loader) as loader:
            loader(orders, sink=Meddled("target", before_write=read_rows_and_write_positions))

        assert "could not serialize access due to read/write dependencies" in repetition(caplog)
        change(engine, "DELETE FROM consumed_offsets WHERE consumer_group = 'another'")
        assert_exactly_once(engine)

    def test_at_every_attempt_it_ends_the_load_with_nothing_written(self, postgres_loader: Loader, orders: str) -> None:
        engine = postgres_loader.engine
        attempts: list[Connection] = []

        def change_the_batch(conn: Connection) -> None:
            attempts.append(conn)
            change(engine, "UPDATE offset_batches SET reason = 'changed'")

        with (
            over(sa.create_engine(engine.url, isolation_level="REPEATABLE READ"), postgres_loader) as loader,
            pytest.raises(DatabaseBusyError, match=r"Batch 1 of group 'loader' .*could not serialize access") as raised,
        ):
            loader(orders, sink=Meddled("target", before_write=change_the_batch))

        assert raised.value.retriable
        assert len(attempts) == 5
        assert_nothing_written(engine)
        assert_staged_rows_are_committed(postgres_loader, orders, 10)

    def test_a_group_that_another_run_makes_at_the_same_moment_is_busy(self, postgres_engine: Engine) -> None:
        tables = Tables()
        initialize(Ledger(postgres_engine, tables))
        insert_it = once(
            lambda: change(
                postgres_engine, "INSERT INTO consumer_groups VALUES ('loader', 'cluster', 0, 0, NULL, NULL)"
            )
        )
        engine = sa.create_engine(postgres_engine.url, isolation_level="REPEATABLE READ")

        @sa.event.listens_for(engine, "before_cursor_execute")
        def before(conn: object, cursor: object, statement: str, *_: object) -> None:
            if statement.startswith("INSERT INTO consumer_groups"):
                insert_it()

        with pytest.raises(GroupBusyError, match="was claimed by another run at the same moment"):
            claim_group(Ledger(engine, tables), "loader", RUN, cluster_id="cluster", lease=timedelta(minutes=1))
        engine.dispose()
