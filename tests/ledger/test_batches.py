"""A batch is written ahead of its load: planned and staged, with the ends that its task instance captured."""

from dataclasses import replace

import pytest
from sqlalchemy.exc import IntegrityError

from airflow_kafka_offsets.core.offsets import Gap, Position, TopicPartition
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.exceptions import BatchClosedError
from airflow_kafka_offsets.formats.read_schemas import ReadSchema
from airflow_kafka_offsets.ledger import batch_notes
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.batches import begin_staging, captured_targets, mark_staged, open_batch, record_plan
from airflow_kafka_offsets.ledger.positions import read_positions
from tests.support.ledgers import (
    FIRST_LOAD,
    FIRST_TRY,
    GROUP,
    NEXT_LOAD,
    OTHER_RUN,
    RECIPE,
    SECOND_TRY,
    T0,
    T1,
    TOPIC_ID,
    Database,
    offset_range,
)


class TestRecordPlan:
    def test_the_open_batch_is_what_was_planned(self, db: Database) -> None:
        plan = Plan(
            (offset_range(T0, 20, 30, target=90, how="skipped-gap"), offset_range(T1, 5, 5, target=8, how="stored")),
            (Gap(*T0, 10, 20, "expired", "skipped"),),
        )
        batch = db.plan(db.claim(), plan)
        assert batch.ranges == plan.ranges
        assert batch.gaps == plan.gaps
        assert open_batch(db.ledger, GROUP) == batch

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
        assert record_plan(held, Plan(), RECIPE, 0) is None
        assert db.dump() == before

    def test_a_group_has_one_open_batch_at_most(self, db: Database) -> None:
        held = db.claim()
        first = db.plan(held)
        before = db.dump()
        with pytest.raises(IntegrityError):
            db.plan(held)
        assert db.dump() == before
        assert open_batch(db.ledger, GROUP) == first

    def test_a_group_without_a_batch_has_none_open(self, db: Database) -> None:
        db.claim()
        assert open_batch(db.ledger, GROUP) is None

    def test_P20_latest_stores_positions_without_a_load_batch(self, db: Database) -> None:
        at_end = offset_range(T0, 100, 100, how="latest")
        initial = (replace(at_end, end_epoch=4), offset_range(T1, 0, 0, how="latest"))
        held = db.claim()
        assert record_plan(held, Plan(initial=initial), RECIPE, 0) is None
        assert read_positions(db.ledger, GROUP) == {
            T0: Position(100, TOPIC_ID, 4),
            T1: Position(0, TOPIC_ID),
        }
        assert open_batch(db.ledger, GROUP) is None
        assert captured_targets(held) is None
        assert [(row["kind"], row["state"]) for row in db.rows("SELECT * FROM offset_batches")] == [
            ("initialize", "committed")
        ]

    def test_a_new_topic_at_its_end_and_a_load_are_recorded_together(self, db: Database) -> None:
        new = TopicPartition("new", 0)
        batch = db.plan(db.claim(), replace(FIRST_LOAD, initial=(offset_range(new, 9, 9, how="latest"),)))
        assert batch.ranges == FIRST_LOAD.ranges
        assert db.positions() == {new: 9}


class TestCapturedTargets:
    def test_no_captured_targets_before_the_first_batch(self, db: Database) -> None:
        assert captured_targets(db.claim()) is None

    def test_a_later_try_loads_up_to_the_ends_that_the_first_captured(self, db: Database) -> None:
        capped = Plan(
            (offset_range(T0, 0, 4, target=10, how="earliest"), offset_range(T1, 5, 5, target=7, how="earliest"))
        )
        db.plan(db.claim(FIRST_TRY), capped)
        assert captured_targets(db.claim(SECOND_TRY)) == {T0: 10, T1: 7}

    def test_captured_targets_of_the_first_batch_hold_for_all(self, db: Database) -> None:
        held = db.claim()
        db.load(held)
        db.load(held, Plan((offset_range(T0, 10, 15, target=99, how="stored"),)))
        assert captured_targets(held) == {T0: 10, T1: 7}

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
        held.release()
        assert captured_targets(db.claim(other)) is None

    def test_a_process_without_a_dag_captures_too(self, db: Database) -> None:
        run = TaskRun.of_this_process()
        db.plan(db.claim(run))
        assert captured_targets(db.claim(run)) == {T0: 10, T1: 7}


class TestStaging:
    def test_a_batch_knows_where_the_attempt_stages_before_it_does(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        begin_staging(held, batch, "/staging/1", RECIPE)
        assert open_batch(db.ledger, GROUP) == replace(batch, staging_uri="/staging/1")
        assert db.batch(batch.batch_id)["attempt"] == 1

    def test_a_staged_batch_is_open_until_it_is_committed(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        begin_staging(held, batch, "/staging/1", RECIPE)
        mark_staged(held, batch, 12)
        assert open_batch(db.ledger, GROUP) == replace(batch, state="staged", staging_uri="/staging/1")
        row = db.batch(batch.batch_id)
        assert row["records"] == 12
        assert row["staged_at"] is not None

    def test_a_new_attempt_begins_with_a_planned_batch_again(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        begin_staging(held, batch, "/staging/1", RECIPE)
        mark_staged(held, batch, 12)
        begin_staging(held, batch, "/staging/2", RECIPE)
        assert open_batch(db.ledger, GROUP) == replace(batch, staging_uri="/staging/2")
        assert db.batch(batch.batch_id)["attempt"] == 2

    def test_a_committed_batch_is_never_opened_again(self, db: Database) -> None:
        held = db.claim()
        batch = db.load(held)
        before = db.batch(batch.batch_id)
        with pytest.raises(BatchClosedError, match=r"^Batch 1 of group 'orders_loader' is not open any more"):
            begin_staging(held, batch, "/staging/2", RECIPE)
        with pytest.raises(BatchClosedError):
            mark_staged(held, batch, 12)
        assert db.batch(batch.batch_id) == before
        assert before["state"] == "committed"


def test_a_replay_takes_along_the_latest_schemas_up_to_a_size(
    db: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batch_notes, "_MOST_STORED", 2_500)
    held, tables = db.claim(), db.ledger.tables
    old, new = (ReadSchema("value", 1, "avro", text * 1_000) for text in "xy")
    batches = [db.load(held), db.load(held, NEXT_LOAD)]
    with db.engine.begin() as conn:
        batch_notes.store_schemas(conn, tables, batches[0].batch_id, [old, ReadSchema("value", 2, "avro", "z" * 1_000)])
        batch_notes.store_schemas(conn, tables, batches[1].batch_id, [new, ReadSchema("key", 3, "avro", "k")])
        found = batch_notes.schemas_of_group(conn, tables, held.group_id)
        assert found == [ReadSchema("key", 3, "avro", "k"), new, ReadSchema("value", 2, "avro", "z" * 1_000)]
        assert not caplog.text
        monkeypatch.setattr(batch_notes, "_MOST_STORED", 1_500)
        assert batch_notes.schemas_of_group(conn, tables, held.group_id) == found[:2]
    assert "has read more schemas than" in caplog.text
