"""The ledger on SQLite files: who may write, what is written, and in which transaction."""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError

from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, Position, TopicPartition
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.database import transactions
from airflow_kafka_offsets.exceptions import (
    ClusterChangedError,
    CommitUnknownError,
    DatabaseBusyError,
    DatabaseUnavailableError,
    FencedError,
    GroupBusyError,
    LedgerError,
    PositionConflictError,
    TargetError,
)
from airflow_kafka_offsets.ledger.batch_rows import Batch, Recipe
from airflow_kafka_offsets.ledger.batches import (
    abandon,
    begin_staging,
    captured_targets,
    mark_staged,
    open_batch,
    record_plan,
)
from airflow_kafka_offsets.ledger.claims import GroupClaim, claim_group, heartbeat
from airflow_kafka_offsets.ledger.commit_transaction import commit_batch
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.positions import RangeRead, read_positions
from airflow_kafka_offsets.ledger.tables import SCHEMA_VERSION, Tables
from airflow_kafka_offsets.ledger.task_run import TaskRun

GROUP, CLUSTER, TOPIC_ID = "orders_loader", "MkU3OEVBNTcwNTJENDM2Qg", "vVZ4aDWLQP2NkY0pxyHJYA"
MINUTE = timedelta(minutes=1)
T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
FIRST_TRY = TaskRun("run-1", "dag", "load", -1, 1)
SECOND_TRY = replace(FIRST_TRY, try_number=2)
OTHER_RUN = TaskRun("run-2", "dag", "load", -1, 1)
RECIPE = Recipe("shop.orders", None, "fingerprint")
OLD, NEW = datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC), datetime(2024, 5, 6, 8, 0, tzinfo=UTC)


def offset_range(tp: TopicPartition, start: int, end: int, *, target: int | None = None, how: str) -> OffsetRange:
    return OffsetRange(*tp, start, end, end if target is None else target, TOPIC_ID, how)


FIRST_LOAD = Plan((offset_range(T0, 0, 10, how="earliest"), offset_range(T1, 5, 7, how="earliest")))
NEXT_LOAD = Plan((offset_range(T0, 10, 15, how="stored"),))


class Database:
    """A ledger with the questions that tests ask of it, and a table that rows are written to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.engine = sa.create_engine(f"sqlite:///{path}")
        self.tables = Tables()

    def claim(self, owner: TaskRun = FIRST_TRY, *, cluster_id: str = CLUSTER, lease: timedelta = MINUTE) -> GroupClaim:
        return claim_group(self.engine, self.tables, GROUP, owner, cluster_id=cluster_id, lease=lease)

    def plan(self, held: GroupClaim, plan: Plan = FIRST_LOAD) -> Batch:
        batch = record_plan(self.engine, self.tables, held, plan, RECIPE, 0)
        assert batch is not None
        return batch

    def commit(
        self,
        held: GroupClaim,
        batch: Batch,
        reads: dict[TopicPartition, RangeRead] | None = None,
        write: Callable[[Connection], int] | None = None,
    ) -> int:
        return commit_batch(self.engine, self.tables, held, batch, reads or {}, write or self.write_a_row)

    def load(self, held: GroupClaim, plan: Plan = FIRST_LOAD) -> Batch:
        batch = self.plan(held, plan)
        self.commit(held, batch)
        return batch

    @staticmethod
    def write_a_row(conn: Connection) -> int:
        conn.exec_driver_sql("INSERT INTO output (id) VALUES (1)")
        return 1

    def output(self) -> list[int]:
        return [row["id"] for row in self.rows("SELECT id FROM output")]

    def rows(self, query: str, *values: object) -> list[dict[str, Any]]:
        """What another program sees."""
        with closing(sqlite3.connect(self.path)) as conn:
            conn.row_factory = sqlite3.Row
            return [dict(row) for row in conn.execute(query, values)]

    def change(self, statement: str, *values: object) -> None:
        """What another program does."""
        with closing(sqlite3.connect(self.path)) as conn, conn:
            conn.execute(statement, values)

    def batch(self, batch_id: int) -> dict[str, Any]:
        (row,) = self.rows("SELECT * FROM offset_batches WHERE batch_id = ?", batch_id)
        return row

    def positions(self) -> dict[TopicPartition, int]:
        return {tp: at.offset for tp, at in read_positions(self.engine, self.tables, GROUP).items()}

    def lease_ends(self) -> str | None:
        (row,) = self.rows("SELECT lease_expires_at FROM consumer_groups")
        ends: str | None = row["lease_expires_at"]
        return ends

    def dump(self) -> list[str]:
        with closing(sqlite3.connect(self.path)) as conn:
            return list(conn.iterdump())


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "warehouse.db")
    yield database
    database.engine.dispose()


@pytest.fixture
def db(empty: Database) -> Database:
    initialize(empty.engine, empty.tables)
    empty.change("CREATE TABLE output (id INTEGER)")
    return empty


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a minute is right for users, and too long for a test."""
    monkeypatch.setattr(transactions, "_SQLITE_PATIENCE_MS", 20)


def until(condition: Callable[[], bool], timeout: float = 30.0) -> None:
    """Wait for a condition that other threads, or the database's clock, bring about."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"


class TestInit:
    def test_the_first_init_creates_the_tables(self, empty: Database) -> None:
        assert initialize(empty.engine, empty.tables) is True
        assert set(sa.inspect(empty.engine).get_table_names()) == set(empty.tables.metadata.tables)

    def test_a_second_init_changes_nothing(self, db: Database) -> None:
        db.load(db.claim())
        before = db.dump()
        assert initialize(db.engine, db.tables) is False
        assert db.dump() == before

    def test_it_notes_its_schema_version(self, db: Database) -> None:
        assert db.rows("SELECT version FROM offsets_schema_version") == [{"version": SCHEMA_VERSION}]

    def test_tables_of_a_newer_version_are_refused_with_both_versions(self, db: Database) -> None:
        newer = SCHEMA_VERSION + 1
        db.change("INSERT INTO offsets_schema_version (version) VALUES (?)", newer)
        with pytest.raises(LedgerError, match=f"schema version {newer}, this package works with {SCHEMA_VERSION}"):
            initialize(db.engine, db.tables)

    def test_an_init_that_was_interrupted_is_finished_by_the_next(self, db: Database) -> None:
        db.change("DELETE FROM offsets_schema_version")
        db.change("DROP TABLE offset_gaps")
        assert initialize(db.engine, db.tables) is True
        assert db.rows("SELECT count(*) AS n FROM offset_gaps") == [{"n": 0}]

    def test_a_database_that_cannot_be_written_says_what_to_do(self, empty: Database) -> None:
        with closing(sqlite3.connect(empty.path)) as conn:
            conn.execute("VACUUM")  # an empty file is no database yet
        engine = sa.create_engine(f"sqlite:///file:{empty.path}?mode=ro&uri=true")
        with pytest.raises(LedgerError, match=r"readonly.*--show-sql"):
            initialize(engine, empty.tables)
        engine.dispose()


class TestClaim:
    def test_every_claim_raises_the_epoch(self, db: Database) -> None:
        assert [db.claim().epoch, db.claim(SECOND_TRY).epoch] == [1, 2]

    def test_a_live_lease_keeps_another_run_out_and_names_its_holder(self, db: Database) -> None:
        db.claim(FIRST_TRY)
        with pytest.raises(GroupBusyError) as raised:
            db.claim(OTHER_RUN)
        assert f"Group '{GROUP}' is being loaded by dag 'dag' task 'load' run 'run-1'" in str(raised.value)

    def test_a_claim_that_is_refused_changes_nothing(self, db: Database) -> None:
        db.claim(FIRST_TRY)
        before = db.dump()
        with pytest.raises(GroupBusyError):
            db.claim(OTHER_RUN)
        assert db.dump() == before

    def test_a_later_try_of_the_same_task_instance_takes_over_at_once(self, db: Database) -> None:
        first = db.claim(FIRST_TRY)
        second = db.claim(SECOND_TRY)
        with pytest.raises(FencedError):
            db.plan(first)
        assert db.plan(second).state == "planned"

    def test_another_map_index_is_another_run(self, db: Database) -> None:
        db.claim(replace(FIRST_TRY, map_index=0))
        with pytest.raises(GroupBusyError, match="map index 0"):
            db.claim(replace(FIRST_TRY, map_index=1))

    def test_two_processes_are_never_the_same_run(self, db: Database) -> None:
        db.claim(TaskRun.of_this_process())
        with pytest.raises(GroupBusyError, match="loaded by process "):
            db.claim(TaskRun.of_this_process())

    def test_another_run_takes_over_when_the_lease_has_ended(self, db: Database) -> None:
        first = db.claim(FIRST_TRY, lease=timedelta(milliseconds=20))
        second: list[GroupClaim] = []

        def taken_over() -> bool:
            try:
                second.append(db.claim(OTHER_RUN))
            except GroupBusyError:
                return False
            return True

        until(taken_over)
        assert second[0].epoch == first.epoch + 1

    def test_the_lease_keeps_others_out_for_as_long_as_it_says(self, db: Database) -> None:
        db.claim(FIRST_TRY, lease=timedelta(days=2))
        assert db.rows(
            "SELECT julianday(lease_expires_at) - julianday('now') BETWEEN 1.9 AND 2 AS fits FROM consumer_groups"
        ) == [{"fits": 1}]

    def test_groups_do_not_get_in_each_others_way(self, db: Database) -> None:
        db.claim(FIRST_TRY)
        other = claim_group(db.engine, db.tables, "another", OTHER_RUN, cluster_id=CLUSTER, lease=MINUTE)
        assert other.epoch == 1

    def test_another_cluster_is_refused_with_both_ids(self, db: Database) -> None:
        db.claim().release(db.engine, db.tables)
        with pytest.raises(ClusterChangedError, match=f"(?s){CLUSTER}.*'another-cluster'"):
            db.claim(cluster_id="another-cluster")

    def test_another_cluster_is_refused_before_the_group_is_taken(self, db: Database) -> None:
        first = db.claim(FIRST_TRY)
        with pytest.raises(ClusterChangedError):
            db.claim(SECOND_TRY, cluster_id="another-cluster")
        assert db.plan(first).state == "planned"

    @pytest.mark.usefixtures("impatient")
    def test_a_writer_that_holds_sqlites_lock_makes_the_group_busy(self, db: Database) -> None:
        with closing(sqlite3.connect(db.path, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            with pytest.raises(GroupBusyError, match="is locked by another program"):
                db.claim()

    def test_a_database_that_cannot_be_written_says_which_rights_are_missing(self, db: Database) -> None:
        engine = sa.create_engine(f"sqlite:///file:{db.path}?mode=ro&uri=true")
        with pytest.raises(LedgerError, match=r"may not write to the state tables.*GRANT"):
            claim_group(engine, db.tables, GROUP, FIRST_TRY, cluster_id=CLUSTER, lease=MINUTE)
        engine.dispose()


class TestLease:
    def test_renewing_makes_it_longer(self, db: Database) -> None:
        held = db.claim(lease=MINUTE)
        before = db.lease_ends()
        assert replace(held, lease=2 * MINUTE).renew(db.engine, db.tables) is True
        after = db.lease_ends()
        assert before is not None
        assert after is not None
        assert after > before

    def test_an_attempt_that_was_taken_over_cannot_renew(self, db: Database) -> None:
        first = db.claim(FIRST_TRY)
        db.claim(SECOND_TRY)
        before = db.dump()
        assert first.renew(db.engine, db.tables) is False
        assert db.dump() == before

    def test_releasing_lets_another_run_in_at_once(self, db: Database) -> None:
        db.claim(FIRST_TRY).release(db.engine, db.tables)
        assert db.claim(OTHER_RUN).epoch == 2

    def test_an_attempt_that_was_taken_over_does_not_release_its_successor(self, db: Database) -> None:
        first = db.claim(FIRST_TRY)
        db.claim(SECOND_TRY)
        first.release(db.engine, db.tables)
        with pytest.raises(GroupBusyError):
            db.claim(OTHER_RUN)

    def test_a_heartbeat_renews_it_while_the_attempt_works(self, db: Database) -> None:
        held = db.claim(lease=timedelta(milliseconds=30))
        db.change("UPDATE consumer_groups SET lease_expires_at = '2000-01-01 00:00:00.000000'")
        with heartbeat(db.engine, db.tables, held):
            until(lambda: (db.lease_ends() or "") > "2001")

    def test_a_heartbeat_ends_with_its_block(self, db: Database) -> None:
        with heartbeat(db.engine, db.tables, db.claim(lease=timedelta(milliseconds=3))) as thread:
            pass
        assert not thread.is_alive()

    def test_a_heartbeat_gives_up_when_the_group_was_taken_over(
        self, db: Database, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = db.claim(FIRST_TRY)
        db.claim(SECOND_TRY)
        with (
            caplog.at_level(logging.WARNING),
            heartbeat(db.engine, db.tables, replace(first, lease=timedelta(milliseconds=3))) as thread,
        ):
            until(lambda: not thread.is_alive())
        assert f"Group '{GROUP}' was taken over by a later attempt" in caplog.text

    @pytest.mark.usefixtures("impatient")
    def test_a_heartbeat_outlives_a_renewal_that_fails(self, db: Database, caplog: pytest.LogCaptureFixture) -> None:
        held = db.claim(lease=timedelta(milliseconds=30))
        with (
            caplog.at_level(logging.WARNING),
            closing(sqlite3.connect(db.path, isolation_level=None)) as writer,
            heartbeat(db.engine, db.tables, held),
        ):
            writer.execute("BEGIN IMMEDIATE")
            until(lambda: "could not be renewed" in caplog.text)
            writer.execute("UPDATE consumer_groups SET lease_expires_at = '2000-01-01 00:00:00.000000'")
            writer.execute("COMMIT")
            until(lambda: (db.lease_ends() or "") > "2001")


class TestRecordPlan:
    def test_the_open_batch_is_what_was_planned(self, db: Database) -> None:
        plan = Plan(
            (offset_range(T0, 20, 30, target=90, how="skipped-gap"), offset_range(T1, 5, 5, target=8, how="stored")),
            (Gap(*T0, 10, 20, "expired", "skipped"),),
        )
        batch = db.plan(db.claim(), plan)
        assert batch.ranges == plan.ranges
        assert batch.gaps == plan.gaps
        assert open_batch(db.engine, db.tables, GROUP) == batch

    def test_a_batch_says_who_planned_it_and_for_which_table(self, db: Database) -> None:
        row = db.batch(db.plan(db.claim(SECOND_TRY)).batch_id)
        named = ("consumer_group", "generation", "kind", "state", "dag_id", "task_id", "run_id", "map_index")
        assert [row[name] for name in named] == [GROUP, 0, "load", "planned", "dag", "load", "run-1", -1]
        assert (row["try_number"], row["target_table"], row["attempt"]) == (2, "shop.orders", 0)

    def test_planning_moves_no_position(self, db: Database) -> None:
        db.plan(db.claim())
        assert db.positions() == {}

    def test_a_plan_that_loads_nothing_leaves_no_batch(self, db: Database) -> None:
        held = db.claim()
        before = db.dump()
        assert record_plan(db.engine, db.tables, held, Plan(), RECIPE, 0) is None
        assert db.dump() == before

    def test_a_group_has_one_open_batch_at_most(self, db: Database) -> None:
        held = db.claim()
        first = db.plan(held)
        before = db.dump()
        with pytest.raises(IntegrityError):
            db.plan(held)
        assert db.dump() == before
        assert open_batch(db.engine, db.tables, GROUP) == first

    def test_a_group_without_a_batch_has_none_open(self, db: Database) -> None:
        db.claim()
        assert open_batch(db.engine, db.tables, GROUP) is None

    def test_P20_latest_stores_positions_without_a_load_batch(self, db: Database) -> None:
        at_end = offset_range(T0, 100, 100, how="latest")
        initial = (replace(at_end, end_epoch=4), offset_range(T1, 0, 0, how="latest"))
        held = db.claim()
        assert record_plan(db.engine, db.tables, held, Plan(initial=initial), RECIPE, 0) is None
        assert read_positions(db.engine, db.tables, GROUP) == {
            T0: Position(100, TOPIC_ID, 4),
            T1: Position(0, TOPIC_ID),
        }
        assert open_batch(db.engine, db.tables, GROUP) is None
        assert captured_targets(db.engine, db.tables, held) is None
        assert [(row["kind"], row["state"]) for row in db.rows("SELECT * FROM offset_batches")] == [
            ("start", "committed")
        ]

    def test_a_new_topic_at_its_end_and_a_load_are_recorded_together(self, db: Database) -> None:
        new = TopicPartition("new", 0)
        batch = db.plan(db.claim(), replace(FIRST_LOAD, initial=(offset_range(new, 9, 9, how="latest"),)))
        assert batch.ranges == FIRST_LOAD.ranges
        assert db.positions() == {new: 9}


class TestCapturedTargets:
    def test_there_are_none_before_the_first_batch(self, db: Database) -> None:
        assert captured_targets(db.engine, db.tables, db.claim()) is None

    def test_a_later_try_loads_up_to_the_ends_that_the_first_captured(self, db: Database) -> None:
        capped = Plan(
            (offset_range(T0, 0, 4, target=10, how="earliest"), offset_range(T1, 5, 5, target=7, how="earliest"))
        )
        db.plan(db.claim(FIRST_TRY), capped)
        assert captured_targets(db.engine, db.tables, db.claim(SECOND_TRY)) == {T0: 10, T1: 7}

    def test_those_of_the_first_batch_hold_for_all(self, db: Database) -> None:
        held = db.claim()
        db.load(held)
        db.load(held, Plan((offset_range(T0, 10, 15, target=99, how="stored"),)))
        assert captured_targets(db.engine, db.tables, held) == {T0: 10, T1: 7}

    @pytest.mark.parametrize(
        "other",
        [
            OTHER_RUN,
            replace(FIRST_TRY, map_index=0),
            replace(FIRST_TRY, task_id="another"),
            replace(FIRST_TRY, dag_id="another"),
            TaskRun("run-1"),
        ],
        ids=str,
    )
    def test_another_task_instance_captures_its_own(self, db: Database, other: TaskRun) -> None:
        held = db.claim(FIRST_TRY)
        db.load(held)
        held.release(db.engine, db.tables)
        assert captured_targets(db.engine, db.tables, db.claim(other)) is None

    def test_a_process_without_a_dag_captures_too(self, db: Database) -> None:
        run = TaskRun.of_this_process()
        db.plan(db.claim(run))
        assert captured_targets(db.engine, db.tables, db.claim(run)) == {T0: 10, T1: 7}


class TestStaging:
    def test_a_batch_knows_where_the_attempt_stages_before_it_does(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        begin_staging(db.engine, db.tables, held, batch, "/staging/1", RECIPE)
        assert open_batch(db.engine, db.tables, GROUP) == replace(batch, staging_uri="/staging/1")
        assert db.batch(batch.batch_id)["attempt"] == 1

    def test_a_staged_batch_is_open_until_it_is_committed(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        begin_staging(db.engine, db.tables, held, batch, "/staging/1", RECIPE)
        mark_staged(db.engine, db.tables, held, batch, 12)
        assert open_batch(db.engine, db.tables, GROUP) == replace(batch, state="staged", staging_uri="/staging/1")
        row = db.batch(batch.batch_id)
        assert row["records"] == 12
        assert row["staged_at"] is not None

    def test_a_new_attempt_begins_with_a_planned_batch_again(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        begin_staging(db.engine, db.tables, held, batch, "/staging/1", RECIPE)
        mark_staged(db.engine, db.tables, held, batch, 12)
        begin_staging(db.engine, db.tables, held, batch, "/staging/2", RECIPE)
        assert open_batch(db.engine, db.tables, GROUP) == replace(batch, staging_uri="/staging/2")
        assert db.batch(batch.batch_id)["attempt"] == 2

    def test_a_committed_batch_is_never_opened_again(self, db: Database) -> None:
        held = db.claim()
        batch = db.load(held)
        begin_staging(db.engine, db.tables, held, batch, "/staging/2", RECIPE)
        mark_staged(db.engine, db.tables, held, batch, 12)
        assert db.batch(batch.batch_id)["state"] == "committed"


class TestFencing:
    """Whoever was taken over writes nothing, whatever it was about to do."""

    @pytest.fixture
    def fenced(self, db: Database) -> tuple[GroupClaim, Batch]:
        first = db.claim(FIRST_TRY)
        batch = db.plan(first)
        db.claim(SECOND_TRY)
        return first, batch

    @pytest.mark.parametrize("step", ["record_plan", "begin_staging", "mark_staged", "commit"])
    def test_it_writes_nothing(self, db: Database, fenced: tuple[GroupClaim, Batch], step: str) -> None:
        held, batch = fenced
        steps: dict[str, Callable[[], object]] = {
            "record_plan": lambda: db.plan(held, NEXT_LOAD),
            "begin_staging": lambda: begin_staging(db.engine, db.tables, held, batch, "/staging/1", RECIPE),
            "mark_staged": lambda: mark_staged(db.engine, db.tables, held, batch, 1),
            "commit": lambda: db.commit(held, batch),
        }
        before = db.dump()
        with pytest.raises(FencedError) as raised:
            steps[step]()
        assert db.dump() == before
        assert f"Group '{GROUP}' was taken over by dag 'dag' task 'load' run 'run-1' (epoch 2)" in str(raised.value)
        assert "epoch 1" in str(raised.value)

    def test_nothing_is_planned_ahead_for_a_fenced_attempts_new_topics(
        self, db: Database, fenced: tuple[GroupClaim, Batch]
    ) -> None:
        held, _ = fenced
        with pytest.raises(FencedError):
            record_plan(db.engine, db.tables, held, Plan(initial=(offset_range(T0, 9, 9, how="latest"),)), RECIPE, 0)
        assert db.positions() == {}

    def test_a_fenced_attempt_does_not_even_begin_to_write_rows(
        self, db: Database, fenced: tuple[GroupClaim, Batch]
    ) -> None:
        def write(conn: Connection) -> int:
            pytest.fail("rows were about to be written")

        with pytest.raises(FencedError):
            db.commit(*fenced, write=write)

    def test_the_later_attempt_finishes_the_same_batch(self, db: Database) -> None:
        db.plan(db.claim(FIRST_TRY))
        second = db.claim(SECOND_TRY)
        batch = open_batch(db.engine, db.tables, GROUP)
        assert batch is not None
        assert db.commit(second, batch) == 1
        assert db.positions() == {T0: 10, T1: 7}


class TestCommit:
    def test_rows_positions_and_the_batch_move_together(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        reads = {T0: RangeRead(8, OLD, NEW), T1: RangeRead(0)}
        assert db.commit(held, batch, reads) == 1
        assert db.output() == [1]
        assert read_positions(db.engine, db.tables, GROUP) == {T0: Position(10, TOPIC_ID), T1: Position(7, TOPIC_ID)}
        assert open_batch(db.engine, db.tables, GROUP) is None
        row = db.batch(batch.batch_id)
        assert (row["state"], row["records"], row["row_count"], row["dead_letters"]) == ("committed", 8, 1, 0)
        assert row["committed_at"] is not None

    def test_the_position_is_the_end_of_the_range_also_where_it_ends_without_records(self, db: Database) -> None:
        """P03: markers and aborted records only."""
        held = db.claim()
        assert db.commit(held, db.plan(held), {T0: RangeRead(0), T1: RangeRead(0)}, write=lambda conn: 0) == 0
        assert db.positions() == {T0: 10, T1: 7}

    def test_leader_epochs_of_the_plan_are_kept_and_stored_with_the_positions(self, db: Database) -> None:
        """Those of ends without a record, too; and one of which nothing was read leaves the epoch it had."""
        held = db.claim()
        first, second = FIRST_LOAD.ranges
        plan = Plan((replace(first, end_epoch=4), replace(second, end=5, leader_epoch=3, end_epoch=4)))
        db.plan(held, plan)
        batch = open_batch(db.engine, db.tables, GROUP)
        assert batch is not None
        assert batch.ranges == plan.ranges
        db.commit(held, batch, {T0: RangeRead(0)}, write=lambda conn: 0)
        assert read_positions(db.engine, db.tables, GROUP) == {
            T0: Position(10, TOPIC_ID, 4),
            T1: Position(5, TOPIC_ID, 3),
        }

    def test_an_exception_rolls_rows_and_positions_back(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        before = db.dump()

        def write(conn: Connection) -> int:
            self_written = db.write_a_row(conn)
            assert conn.exec_driver_sql("SELECT count(*) FROM output").scalar_one() == self_written
            raise RuntimeError("the disk is full")

        with pytest.raises(RuntimeError, match="the disk is full"):
            db.commit(held, batch, write=write)
        assert db.dump() == before
        assert open_batch(db.engine, db.tables, GROUP) == batch

    def test_a_process_that_is_killed_in_the_transaction_leaves_nothing(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        before = db.dump()

        def write(conn: Connection) -> int:
            db.write_a_row(conn)
            raise SystemExit

        with pytest.raises(SystemExit):
            db.commit(held, batch, write=write)
        assert db.dump() == before

    def test_nobody_sees_rows_before_the_positions(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        seen: list[tuple[list[int], dict[TopicPartition, int]]] = []

        def write(conn: Connection) -> int:
            db.write_a_row(conn)
            seen.append((db.output(), db.positions()))
            return 1

        db.commit(held, batch, write=write)
        assert seen == [([], {})]

    def test_a_batch_is_committed_once(self, db: Database) -> None:
        held = db.claim()
        batch = db.load(held)
        before = db.dump()
        with pytest.raises(PositionConflictError):
            db.commit(held, batch)
        assert db.dump() == before

    def test_a_batch_that_moves_no_position_is_committed_once_too(self, db: Database) -> None:
        held = db.claim()
        db.load(held)
        batch = db.load(held, Plan((offset_range(T0, 10, 10, target=12, how="stored"),)))
        before = db.dump()
        with pytest.raises(PositionConflictError, match=f"Batch {batch.batch_id} .* is not open any more"):
            db.commit(held, batch)
        assert db.dump() == before

    def test_an_abandoned_batch_cannot_be_committed(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        db.change("UPDATE offset_batches SET state = 'abandoned'")
        before = db.dump()
        with pytest.raises(PositionConflictError, match="committed or abandoned"):
            db.commit(held, batch)
        assert db.dump() == before

    def test_ranges_remember_what_reading_them_showed(self, db: Database) -> None:
        held = db.claim()
        db.commit(held, db.plan(held), {T0: RangeRead(8, OLD, NEW), T1: RangeRead(None)})
        rows = db.rows("SELECT * FROM offset_ranges ORDER BY topic, partition")
        assert [row["records"] for row in rows] == [8, None]
        assert [row["first_timestamp"] for row in rows] == ["2024-05-06 07:08:09.123000", None]
        assert [row["last_timestamp"] for row in rows] == ["2024-05-06 08:00:00.000000", None]

    def test_the_newest_timestamp_stays_where_a_later_batch_has_none(self, db: Database) -> None:
        held = db.claim()
        db.commit(held, db.plan(held), {T0: RangeRead(8, OLD, NEW), T1: RangeRead(1)})
        db.commit(held, db.plan(held, NEXT_LOAD), {T0: RangeRead(0)})
        rows = db.rows("SELECT * FROM consumed_offsets ORDER BY partition")
        assert [row["record_timestamp"] for row in rows] == ["2024-05-06 08:00:00.000000", None]

    def test_partitions_that_a_batch_does_not_load_stay_where_they_are(self, db: Database) -> None:
        held = db.claim()
        db.load(held)
        db.load(held, NEXT_LOAD)
        assert db.positions() == {T0: 15, T1: 7}

    def test_positions_name_the_batch_that_moved_them(self, db: Database) -> None:
        held = db.claim()
        first = db.load(held)
        second = db.load(held, NEXT_LOAD)
        rows = db.rows("SELECT partition, batch_id FROM consumed_offsets ORDER BY partition")
        assert [row["batch_id"] for row in rows] == [second.batch_id, first.batch_id]

    def test_batches_are_numbered_upwards(self, db: Database) -> None:
        held = db.claim()
        assert db.load(held).batch_id < db.load(held, NEXT_LOAD).batch_id

    def test_the_lease_begins_anew_with_the_commit(self, db: Database) -> None:
        held = db.claim(lease=MINUTE)
        before = db.lease_ends()
        db.commit(replace(held, lease=60 * MINUTE), db.plan(held))
        after = db.lease_ends()
        assert before is not None
        assert after is not None
        assert after > before

    def test_another_groups_positions_are_its_own(self, db: Database) -> None:
        held = db.claim()
        db.load(held)
        assert read_positions(db.engine, db.tables, "another") == {}


class TestPositionConflict:
    """Somebody changed positions without this package."""

    @pytest.fixture
    def planned(self, db: Database) -> tuple[GroupClaim, Batch]:
        held = db.claim()
        db.load(held)
        return held, db.plan(held, NEXT_LOAD)

    @pytest.mark.parametrize("offset", [9, 11, 15])
    def test_a_position_that_moved_is_refused_with_both_offsets(
        self, db: Database, planned: tuple[GroupClaim, Batch], offset: int
    ) -> None:
        db.change("UPDATE consumed_offsets SET offset_value = ? WHERE partition = 0", offset)
        before = db.dump()
        with pytest.raises(PositionConflictError) as raised:
            db.commit(*planned)
        assert f"starts orders[0] at offset 10, but the stored position is {offset}" in str(raised.value)
        assert db.dump() == before

    def test_a_position_that_is_gone_is_refused(self, db: Database, planned: tuple[GroupClaim, Batch]) -> None:
        db.change("DELETE FROM consumed_offsets")
        with pytest.raises(PositionConflictError, match="the stored position is missing"):
            db.commit(*planned)
        assert db.output() == [1]

    def test_a_position_that_came_before_the_first_load_is_refused(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        db.change(
            "INSERT INTO consumed_offsets (consumer_group, topic, partition, offset_value, batch_id, updated_at) "
            "VALUES (?, 'orders', 0, 3, 0, '2024-01-01 00:00:00.000000')",
            GROUP,
        )
        with pytest.raises(PositionConflictError, match=r"orders\[0\] at offset 0, but the stored position is 3"):
            db.commit(held, batch)
        assert db.output() == []

    def test_a_position_of_another_partition_does_not_matter(
        self, db: Database, planned: tuple[GroupClaim, Batch]
    ) -> None:
        db.change("UPDATE consumed_offsets SET offset_value = 0 WHERE partition = 1")
        assert db.commit(*planned) == 1


class TestGaps:
    def test_P08_a_gap_is_stored_and_the_position_moves_over_it(self, db: Database) -> None:
        held = db.claim()
        db.load(held)
        gap = Gap(*T0, 10, 20, "expired", "skipped to the beginning offset (on_data_loss='skip')")
        batch = db.plan(held, Plan((offset_range(T0, 20, 25, how="skipped-gap"),), (gap,)))
        db.commit(held, batch)
        assert db.positions()[T0] == 25
        assert db.rows("SELECT * FROM offset_gaps") == [
            {
                "batch_id": batch.batch_id,
                "topic": "orders",
                "partition": 0,
                "start_offset": 10,
                "end_offset": 20,
                "cause": "expired",
                "decision": "skipped to the beginning offset (on_data_loss='skip')",
            }
        ]

    def test_a_gap_without_records_behind_it_moves_the_position(self, db: Database) -> None:
        held = db.claim()
        db.load(held)
        plan = Plan((offset_range(T0, 20, 20, how="skipped-gap"),), (Gap(*T0, 10, 20, "expired", "skipped"),))
        db.commit(held, db.plan(held, plan), write=lambda conn: 0)
        assert db.positions()[T0] == 20

    def test_a_gap_begins_at_the_stored_position_or_nothing_is_written(self, db: Database) -> None:
        held = db.claim()
        db.load(held)
        plan = Plan((offset_range(T0, 20, 25, how="skipped-gap"),), (Gap(*T0, 12, 20, "expired", "skipped"),))
        with pytest.raises(PositionConflictError, match="at offset 12, but the stored position is 10"):
            db.commit(held, db.plan(held, plan))


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
            match=f"Batch {batch.batch_id} of group '{GROUP}' was not committed: .*deadlock detected.*run the task again",
        ):
            db.commit(held, batch)
        assert db.dump() == before

    def test_an_attempt_that_is_taken_over_in_between_writes_nothing(self, db: Database) -> None:
        held = db.claim(FIRST_TRY)
        batch = db.plan(held)
        self.lose(db.engine, "INSERT INTO consumed_offsets", 1)

        @sa.event.listens_for(db.engine, "after_cursor_execute")
        def after(conn: object, cursor: object, statement: str, *_: object) -> None:
            if statement == "ROLLBACK":
                db.change("UPDATE consumer_groups SET epoch = epoch + 1")

        with pytest.raises(FencedError):
            db.commit(held, batch)
        assert db.output() == []

    @pytest.mark.parametrize(
        "step", ["init", "claim", "record_plan", "begin_staging", "mark_staged", "abandon", "renew", "release"]
    )
    def test_every_step_is_repeated(self, empty: Database, step: str) -> None:
        initialize(empty.engine, empty.tables)
        held = empty.claim()
        batch = empty.plan(held)
        fresh = Tables(prefix="more_")
        begin_staging(empty.engine, empty.tables, held, batch, "/staging/1", RECIPE)
        steps: dict[str, Callable[[], object]] = {
            "init": lambda: initialize(empty.engine, fresh),
            "claim": lambda: empty.claim(SECOND_TRY),
            "record_plan": lambda: record_plan(empty.engine, empty.tables, held, Plan(), RECIPE, 0),
            "begin_staging": lambda: begin_staging(empty.engine, empty.tables, held, batch, "/staging/2", RECIPE),
            "mark_staged": lambda: mark_staged(empty.engine, empty.tables, held, batch, 1),
            "abandon": lambda: abandon(empty.engine, empty.tables, held, batch, "a reason"),
            "renew": lambda: held.renew(empty.engine, empty.tables),
            "release": lambda: held.release(empty.engine, empty.tables),
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
            initialize(empty.engine, empty.tables)


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
