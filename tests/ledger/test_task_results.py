"""What a task instance loaded in all its tries, however many partitions and batches that are."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.ledger import overview
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.overview import TaskResult, read_task_result
from tests.support.ledgers import GROUP, NEXT_LOAD, OTHER_RUN, SECOND_TRY, T0, T1, Database, offset_range


def result(db: Database, first: int | None = None, run: TaskRun = SECOND_TRY) -> TaskResult:
    return read_task_result(db.ledger, GROUP, run, "load", first)


def test_a_try_that_finds_nothing_to_load_reports_what_earlier_ones_committed(db: Database) -> None:
    first = db.load(db.claim())

    found = result(db)
    assert found.batches == (first.batch_id,)
    assert found.ranges == {T0: (0, 10), T1: (5, 7)}
    assert found.rows == 1


def test_ranges_go_from_the_first_start_to_the_last_end(db: Database) -> None:
    held = db.claim()
    batches = [db.load(held).batch_id, db.load(held, NEXT_LOAD).batch_id]

    assert result(db).ranges == {T0: (0, 15), T1: (5, 7)}
    assert result(db).batches == tuple(batches)


def test_batches_of_other_runs_are_not_among_them_but_those_that_were_resumed(db: Database) -> None:
    first = db.load(db.claim())

    assert result(db, run=OTHER_RUN) == TaskResult((), 0, 0, 0, {})
    assert result(db, first.batch_id, run=OTHER_RUN).ranges == {T0: (0, 10), T1: (5, 7)}


def test_a_batch_that_is_not_committed_is_not_among_them(db: Database) -> None:
    db.plan(db.claim())

    assert result(db) == TaskResult((), 0, 0, 0, {})


def test_an_empty_range_is_none(db: Database) -> None:
    db.load(db.claim(), Plan((offset_range(T0, 0, 10, how="earliest"), offset_range(T1, 7, 7, how="earliest"))))

    assert result(db).ranges == {T0: (0, 10)}


def test_too_many_partitions_and_batches_are_left_to_the_history(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    held = db.claim()
    db.load(held)
    last = db.load(held, NEXT_LOAD)
    monkeypatch.setattr(overview, "MOST", 1)

    found = result(db)
    assert found.ranges is None
    assert found.batches == (last.batch_id,)
    assert found.rows == 2
