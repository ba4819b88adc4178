"""A rewind is done once: by the tries of a task instance, after a crash, and after a lost connection."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import OperationalError

from airflow_kafka_offsets.database import transactions
from airflow_kafka_offsets.exceptions import (
    CommitUnknownError,
    DatabaseUnavailableError,
)
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.rewinding.execution import executed_by
from airflow_kafka_offsets.rewinding.previewing import CurrentState, current_state
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from tests.support.warehouse import (
    GROUP,
    REWINDER,
    T0,
    TARGET,
    Warehouse,
)


class TestOnce:
    def test_a_later_try_of_the_same_task_instance_does_nothing_more(self, loaded: Warehouse) -> None:
        preview = loaded.preview("shift-by", -5)
        first = loaded.execute(preview, run=REWINDER)
        before = loaded.dump()

        assert loaded.execute(preview, run=replace(REWINDER, try_number=2)) == first
        assert loaded.execute(loaded.preview("shift-by", -5), run=replace(REWINDER, try_number=3)) == first
        assert loaded.dump() == before
        assert self.found(loaded) == first

    @staticmethod
    def found(
        db: Warehouse, owner: TaskRun = REWINDER, scenario: str = "shift-by -5", target: str | None = None
    ) -> int | None:
        done = executed_by(
            db.ledger,
            owner,
            GROUP,
            Scenario.of(*scenario.split()),
            scope={},
            replace=SqlTable(target) if target is not None else None,
        )
        return done[1].batch_id if done is not None else None

    def test_with_another_scenario_it_is_another_rewind(self, loaded: Warehouse) -> None:
        first = loaded.execute(loaded.preview("to-offset", 4, of=[T0]), run=REWINDER)

        again = replace(REWINDER, try_number=2)
        assert self.found(loaded, again, "to-offset 2") is None
        second = loaded.execute(loaded.preview("to-offset", 2, of=[T0]), run=again)
        assert (second > first, loaded.positions()[T0]) == (True, 2)
        # What is wanted is the first one again, and not what is there.
        assert self.found(loaded, again, "to-offset 4") is None
        loaded.execute(loaded.preview("to-offset", 4, of=[T0]), run=replace(REWINDER, try_number=3))
        assert loaded.positions()[T0] == 4

    def test_with_rows_to_replace_it_is_another_rewind(self, loaded: Warehouse) -> None:
        loaded.execute(loaded.preview("to-offset", 4, of=[T0]), run=REWINDER)
        loaded.load({T0: 20})

        again = loaded.execute(loaded.preview("to-offset", 4, of=[T0]), run=REWINDER, replace=TARGET)

        assert loaded.output() == list(range(4))
        assert self.found(loaded, scenario="to-offset 4", target="output") == again
        assert self.found(loaded, scenario="to-offset 4") is None

    @pytest.mark.parametrize(
        "owner",
        [
            replace(REWINDER, run_id="manual-2"),
            replace(REWINDER, task_id="x"),
            replace(REWINDER, dag_id="x"),
            replace(REWINDER, map_index=1),
        ],
        ids=["run", "task", "dag", "map-index"],
    )
    def test_another_one_does_it_again(self, loaded: Warehouse, owner: TaskRun) -> None:
        first = loaded.execute(loaded.preview("shift-by", -5, of=[T0]), run=REWINDER)

        assert self.found(loaded, owner) is None
        assert loaded.execute(loaded.preview("shift-by", -5, of=[T0]), run=owner) > first
        assert loaded.positions()[T0] == 10

    def test_a_task_that_rewinds_two_groups_rewinds_each(self, loaded: Warehouse) -> None:
        loaded.load({T0: 9}, group="other")
        loaded.execute(loaded.preview("to-earliest"), run=REWINDER)
        loaded.execute(loaded.preview("to-earliest", group="other"), run=REWINDER)

        assert loaded.positions("other") == {T0: 0}

    def test_two_processes_are_never_the_same(self, loaded: Warehouse) -> None:
        assert loaded.rewind("shift-by", -1) != loaded.rewind("shift-by", -1)


class InterruptionError(Exception):
    pass


class TestCrash:
    @pytest.mark.parametrize(
        "at",
        [
            "INSERT INTO offset_batches",
            "INSERT INTO offset_ranges",
            "DELETE FROM output",
            "INSERT INTO replaced_output",
            "DELETE FROM consumed_offsets",
            "INSERT INTO consumed_offsets",
            "UPDATE consumer_groups SET cluster_id",
        ],
    )
    def test_in_the_middle_it_leaves_nothing(self, loaded: Warehouse, at: str) -> None:
        _, batch = loaded.plan({T0: 30})
        preview = loaded.preview("to-offset", 3)
        before = loaded.dump()
        seen: list[str] = []

        def interrupt(conn: Connection, cursor: object, statement: str, *_: object) -> None:
            if statement.startswith(at):
                seen.append(statement)
                raise InterruptionError

        engine: Engine = loaded.engine
        sa.event.listen(engine, "after_cursor_execute", interrupt)
        try:
            with pytest.raises(InterruptionError):
                loaded.execute(preview, abandon=batch.batch_id, replace=TARGET)
        finally:
            sa.event.remove(engine, "after_cursor_execute", interrupt)
        assert seen
        assert loaded.dump() == before

        loaded.execute(preview, abandon=batch.batch_id, replace=TARGET)
        loaded.verify()


class TestLostConnection:
    """The connection breaks, and the history knows what became of the rewind."""

    @staticmethod
    def break_at(db: Warehouse, at: str) -> None:
        """Let the connection break once: before a statement is executed, or, at COMMIT, after it."""
        left = [at]

        def lost(statement: str, when: str) -> None:
            if left and statement.startswith(left[0]) and (when == "after") == (at == "COMMIT"):
                left.clear()
                raise OperationalError(statement, None, Exception("connection reset"), connection_invalidated=True)

        sa.event.listen(db.engine, "before_cursor_execute", lambda *args: lost(args[2], "before"))
        sa.event.listen(db.engine, "after_cursor_execute", lambda *args: lost(args[2], "after"))

    def test_a_rewind_whose_answer_was_lost_is_found(self, loaded: Warehouse) -> None:
        preview = loaded.preview("to-offset", 3)
        self.break_at(loaded, "COMMIT")
        assert loaded.batch(loaded.execute(preview))["kind"] == "rewind"
        assert loaded.positions()[T0] == 3

    def test_a_look_up_that_meets_a_lock_leaves_it_unknown(
        self, loaded: Warehouse, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transactions, "_SQLITE_PATIENCE_MS", 20)
        preview = loaded.preview("to-offset", 3)
        self.break_at(loaded, "COMMIT")
        with closing(sqlite3.connect(loaded.path, isolation_level=None)) as writer:
            locked: list[bool] = []

            @sa.event.listens_for(loaded.engine, "before_cursor_execute")
            def lock_for_the_look_up(conn: object, cursor: object, statement: str, *_: object) -> None:
                if statement == "BEGIN IMMEDIATE":
                    if locked:
                        writer.execute("BEGIN IMMEDIATE")
                    locked.append(True)

            with pytest.raises(
                CommitUnknownError, match=r"locked by another program.*Look at the history of the group"
            ):
                loaded.execute(preview)
        assert loaded.positions()[T0] == 3, "which the error must not deny"

    def test_a_look_up_for_a_group_that_is_new_leaves_nothing_of_it(self, db: Warehouse) -> None:
        preview = db.preview("to-offset", 3, of=[T0])
        before = db.dump()
        self.break_at(db, "INSERT INTO offset_batches")
        with pytest.raises(DatabaseUnavailableError, match="nothing was changed"):
            db.execute(preview)
        assert db.dump() == before
        assert current_state(db.ledger, GROUP, may_be_new=True) == CurrentState(), (
            "the next preview would take the group for a known one"
        )
