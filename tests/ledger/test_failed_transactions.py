"""Transactions of the ledger that fail: repeated after a deadlock, reported when the disk is full, looked up when the
connection broke.
"""

import sqlite3
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.database import transactions
from airflow_kafka_offsets.exceptions import (
    CommitUnknownError,
    DatabaseBusyError,
    DatabaseUnavailableError,
    FencedError,
    GroupBusyError,
    TargetError,
)
from airflow_kafka_offsets.ledger.batches import abandon, begin_staging, mark_staged, record_plan
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from tests.support.ledgers import FIRST_TRY, GROUP, RECIPE, SECOND_TRY, T0, T1, Database, offset_range


class LostError(Exception):
    """What a driver says of a deadlock."""

    sqlstate = "40P01"


class TestInTheWay:
    """Other transactions make the database roll back this one."""

    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transactions, "_FIRST_PAUSE_SECONDS", 0)

    @staticmethod
    def lose(engine: Engine, statement_begins: str, times: int) -> list[str]:
        """Let the first `times` statements that begin so end in a deadlock; returns those that did."""
        lost: list[str] = []

        @sa.event.listens_for(engine, "after_cursor_execute")
        def after(conn: object, cursor: object, statement: str, *_: object) -> None:
            if statement.startswith(statement_begins) and len(lost) < times:
                lost.append(statement)
                raise DBAPIError(statement, None, LostError("deadlock detected"))

        return lost

    def test_a_commit_writes_rows_and_positions_anew_and_once(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        lost = self.lose(db.engine, "INSERT INTO consumed_offsets", 2)
        assert db.commit(held, batch) == 1
        assert len(lost) == 2
        assert db.output() == [1]
        assert db.positions() == {T0: 10, T1: 7}

    def test_a_commit_that_is_never_let_through_names_its_batch(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        before = db.dump()
        self.lose(db.engine, "INSERT INTO consumed_offsets", 5)
        with pytest.raises(
            DatabaseBusyError,
            match=f"Batch {batch.batch_id} of group '{GROUP}' was not committed: .*deadlock detected.*run the task "
            "again",
        ):
            db.commit(held, batch)
        assert db.dump() == before

    def test_an_attempt_that_is_taken_over_in_between_writes_nothing(self, db: Database) -> None:
        held = db.claim(FIRST_TRY)
        batch = db.plan(held)
        self.lose(db.engine, "INSERT INTO consumed_offsets", 1)

        begun: list[str] = []

        @sa.event.listens_for(db.engine, "before_cursor_execute")
        def before(conn: object, cursor: object, statement: str, *_: object) -> None:
            if statement == "BEGIN IMMEDIATE":
                begun.append(statement)
                if len(begun) == 2:
                    db.change("UPDATE consumer_groups SET epoch = epoch + 1")

        with pytest.raises(FencedError):
            db.commit(held, batch)
        assert db.output() == []

    @pytest.mark.parametrize(
        "step", ["init", "claim", "record_plan", "begin_staging", "mark_staged", "abandon", "renew", "release"]
    )
    def test_every_step_is_repeated(self, empty: Database, step: str) -> None:
        initialize(empty.ledger)
        held = empty.claim()
        batch = empty.plan(held)
        fresh = Tables(prefix="more_")
        begin_staging(held, batch, "/staging/1", RECIPE)
        steps: dict[str, Callable[[], object]] = {
            "init": lambda: initialize(Ledger(empty.engine, fresh)),
            "claim": lambda: empty.claim(SECOND_TRY),
            "record_plan": lambda: record_plan(held, Plan(), RECIPE, 0),
            "begin_staging": lambda: begin_staging(held, batch, "/staging/2", RECIPE),
            "mark_staged": lambda: mark_staged(held, batch, 1),
            "abandon": lambda: abandon(held, batch, "a reason"),
            "renew": lambda: held.renew(),
            "release": lambda: held.release(),
        }
        lost = self.lose(empty.engine, "INSERT INTO more_" if step == "init" else "UPDATE consumer_groups", 1)
        steps[step]()
        assert len(lost) == 1

    def test_a_claim_that_is_never_let_through_finds_the_group_busy(self, db: Database) -> None:
        self.lose(db.engine, "UPDATE consumer_groups", 5)
        with pytest.raises(GroupBusyError, match=f"Group '{GROUP}' cannot be claimed: .*deadlock detected"):
            db.claim()


class TestOutage:
    """The database cannot do it now: the disk is full."""

    @staticmethod
    def fill(db: Database) -> None:
        """No page more than there is."""
        (row,) = db.rows("PRAGMA page_count")

        @sa.event.listens_for(db.engine, "checkout")
        def limit(dbapi_connection: sqlite3.Connection, *_: object) -> None:
            dbapi_connection.execute(f"PRAGMA max_page_count = {row['page_count']}")

    def test_a_commit_says_what_it_was_and_that_nothing_was_written(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        before = db.dump()

        def write(conn: Connection) -> int:
            conn.exec_driver_sql("PRAGMA max_page_count = 1")
            for _ in range(10_000):
                db.write_a_row(conn)
            return 10_000

        with pytest.raises(
            DatabaseUnavailableError,
            match=f"(?s)Batch {batch.batch_id} of group '{GROUP}' was not committed, and nothing of it was written: "
            "database or disk is full. Run the task again",
        ):
            db.commit(held, batch, write=write)
        assert db.dump() == before

    def test_a_plan_says_whose_it_was(self, db: Database) -> None:
        held = db.claim()
        self.fill(db)
        many = Plan(tuple(offset_range(TopicPartition("x" * 200, n), 0, 1, how="earliest") for n in range(500)))
        before = db.dump()
        with pytest.raises(DatabaseUnavailableError, match=f"state of group '{GROUP}' could not be written: .*is full"):
            db.plan(held, many)
        assert db.dump() == before

    def test_state_tables_that_find_no_room(self, empty: Database) -> None:
        empty.change("CREATE TABLE other (id INTEGER)")
        self.fill(empty)
        with pytest.raises(DatabaseUnavailableError, match=r"state tables could not be created.*is full"):
            initialize(empty.ledger)


class GoneError(Exception):
    """What a driver says when the server is gone."""


class TestLostConnection:
    """The connection breaks at the commit: the ledger knows what became of it."""

    @staticmethod
    def broken(statement: str) -> DBAPIError:
        return DBAPIError(statement, None, GoneError("server closed the connection"), connection_invalidated=True)

    def break_after(self, engine: Engine, last_statement: str, *, for_good: bool = False) -> None:
        """Let the connection break after a statement has done its work; `for_good`: and every later one."""
        done: list[str] = []

        @sa.event.listens_for(engine, "before_cursor_execute")
        def before(conn: object, cursor: object, statement: str, *_: object) -> None:
            if done and for_good and statement != "ROLLBACK":
                raise self.broken(statement)

        @sa.event.listens_for(engine, "after_cursor_execute")
        def after(conn: object, cursor: object, statement: str, *_: object) -> None:
            if statement.startswith(last_statement) and not done:
                done.append(statement)
                raise self.broken(statement)

    def test_a_commit_whose_answer_is_lost_counts_as_done(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        self.break_after(db.engine, "COMMIT")
        assert db.commit(held, batch) == 1
        assert db.output() == [1]
        assert db.positions() == {T0: 10, T1: 7}

    def test_a_commit_that_did_not_happen_is_told_and_may_be_tried_again(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        before = db.dump()
        self.break_after(db.engine, "INSERT INTO output")
        with pytest.raises(
            DatabaseUnavailableError,
            match=f"Batch {batch.batch_id} of group '{GROUP}' was not committed.*server closed the connection",
        ) as raised:
            db.commit(held, batch)
        assert raised.value.retriable
        assert db.dump() == before
        assert db.commit(held, batch) == 1

    def test_a_ledger_that_cannot_be_asked_leaves_the_outcome_unknown(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        self.break_after(db.engine, "COMMIT", for_good=True)
        with pytest.raises(
            CommitUnknownError, match=f"batch {batch.batch_id} of group '{GROUP}'.*server closed"
        ) as raised:
            db.commit(held, batch)
        assert raised.value.retriable

    def test_an_error_of_a_connection_that_lives_is_told(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)

        def write(conn: Connection) -> int:
            conn.exec_driver_sql("INSERT INTO nowhere VALUES (1)")
            return 1

        with pytest.raises(TargetError, match=f"Batch {batch.batch_id} .* was not committed.*no such table: nowhere"):
            db.commit(held, batch, write=write)
