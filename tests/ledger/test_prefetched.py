"""A batch that is planned ahead of the open one: one at most, opened by its commit, abandoned with it."""

import pytest
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.exceptions import BatchClosedError, FencedError, OpenBatchError, PositionConflictError
from airflow_kafka_offsets.ledger.batch_rows import Batch, has_prefetched_batch
from airflow_kafka_offsets.ledger.batches import abandon, begin_staging, mark_staged, open_batch, record_plan
from airflow_kafka_offsets.ledger.claims import GroupClaim
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from tests.support.ledgers import (
    FIRST_LOAD,
    GROUP,
    NEXT_LOAD,
    RECIPE,
    SECOND_TRY,
    T0,
    T1,
    Database,
    offset_range,
)

AFTER_NEXT = Plan((offset_range(T0, 15, 20, how="stored"),))


def plan_ahead(held: GroupClaim, plan: Plan = NEXT_LOAD) -> Batch:
    batch = record_plan(held, plan, RECIPE, 0, prefetched=True)
    assert batch is not None
    return batch


@pytest.fixture
def held(db: Database) -> GroupClaim:
    return db.claim()


@pytest.fixture
def opened(db: Database, held: GroupClaim) -> Batch:
    """A staged batch."""
    batch = db.plan(held)
    begin_staging(held, batch, "/staging/1", RECIPE)
    mark_staged(held, batch, 12)
    return batch


@pytest.fixture
def ahead(held: GroupClaim, opened: Batch) -> Batch:
    """A batch that is planned ahead of the staged one."""
    return plan_ahead(held)


def states(db: Database) -> list[str]:
    return [row["state"] for row in db.rows("SELECT state FROM offset_batches ORDER BY batch_id")]


def open_id(db: Database) -> int | None:
    batch = open_batch(db.ledger, GROUP)
    return batch.batch_id if batch is not None else None


def test_the_open_batch_is_the_one_before_it(db: Database, opened: Batch, ahead: Batch) -> None:
    assert (open_id(db), states(db)) == (opened.batch_id, ["staged", "prefetched"])
    assert has_prefetched_batch(db.ledger, GROUP)


def test_one_prefetched_batch_at_most(db: Database, held: GroupClaim, ahead: Batch) -> None:
    before = db.dump()
    with pytest.raises(IntegrityError):
        plan_ahead(held, AFTER_NEXT)
    assert db.dump() == before


def test_its_staging_leaves_it_ahead(db: Database, held: GroupClaim, ahead: Batch) -> None:
    assert begin_staging(held, ahead, "/staging/2", RECIPE) is None
    assert begin_staging(held, ahead, "/staging/3", RECIPE) == "/staging/2"
    assert (states(db), db.batch(ahead.batch_id)["attempt"]) == (["staged", "prefetched"], 2)


def test_prefetched_batch_waits_for_the_open_one(db: Database, held: GroupClaim, ahead: Batch) -> None:
    begin_staging(held, ahead, "/staging/2", RECIPE)
    before = db.dump()
    with pytest.raises(BatchClosedError):
        mark_staged(held, ahead, 5)
    with pytest.raises(PositionConflictError):
        db.commit(held, ahead)
    assert db.dump() == before


def test_the_commit_opens_it(db: Database, held: GroupClaim, opened: Batch, ahead: Batch) -> None:
    begin_staging(held, ahead, "/staging/2", RECIPE)

    db.commit(held, opened)

    assert (open_id(db), states(db)) == (ahead.batch_id, ["committed", "planned"])
    assert not has_prefetched_batch(db.ledger, GROUP)
    # Now the next one can be planned ahead.
    mark_staged(held, ahead, 5)
    last = plan_ahead(held, AFTER_NEXT)
    db.commit(held, ahead)
    db.commit(held, last)
    assert (states(db), db.positions()) == (["committed"] * 3, {T0: 20, T1: 7})


def test_a_commit_that_is_rolled_back_leaves_it(db: Database, held: GroupClaim, opened: Batch, ahead: Batch) -> None:
    def write(conn: Connection) -> int:
        raise RuntimeError("a row that the target refuses")

    before = db.dump()
    with pytest.raises(RuntimeError):
        db.commit(held, opened, write=write)
    assert db.dump() == before


def test_prefetched_batch_of_another_group_stays(db: Database, held: GroupClaim, opened: Batch, ahead: Batch) -> None:
    db.change("UPDATE offset_batches SET consumer_group = 'another' WHERE batch_id = ?", ahead.batch_id)
    db.commit(held, opened)
    assert states(db) == ["committed", "prefetched"]


class TestAbandoned:
    def test_by_the_attempt_with_the_open_one(
        self, db: Database, held: GroupClaim, opened: Batch, ahead: Batch
    ) -> None:
        begin_staging(held, ahead, "/staging/2", RECIPE)

        staged = abandon(held, opened, "its records expired")

        assert staged == {opened.batch_id: "/staging/1", ahead.batch_id: "/staging/2"}
        assert open_id(db) is None
        assert [db.batch(batch.batch_id)["reason"] for batch in (opened, ahead)] == [
            "its records expired",
            f"prefetched after batch {opened.batch_id}, which was abandoned: its records expired",
        ]
        # Where the open one began, and not where the one after it would have.
        assert db.positions() == {T0: 0, T1: 5}

    def test_by_a_user_with_the_open_one(self, db: Database, held: GroupClaim, opened: Batch, ahead: Batch) -> None:
        abandon_batch(GROUP, opened.batch_id, engine=db.engine, who="sasha", reason="a wrong topic")

        assert states(db)[:2] == ["abandoned", "abandoned"]
        reason = db.batch(ahead.batch_id)["reason"]
        assert reason.startswith(f"prefetched after batch {opened.batch_id}, which was abandoned by sasha")
        assert reason.endswith(": a wrong topic")
        with pytest.raises(FencedError, match=r"a wrong topic\. Nothing of the batch was written"):
            db.commit(held, opened)
        # Nothing is in the way of the next load.
        db.load(db.claim(SECOND_TRY), FIRST_LOAD)
        assert db.positions() == {T0: 10, T1: 7}

    def test_not_alone(self, db: Database, opened: Batch, ahead: Batch) -> None:
        before = db.dump()
        message = f"it is prefetched after batch {opened.batch_id}; abandon that one, and both are abandoned"
        with pytest.raises(OpenBatchError, match=message):
            abandon_batch(GROUP, ahead.batch_id, engine=db.engine)
        assert db.dump() == before


class TestFenced:
    @pytest.fixture
    def later(self, db: Database, ahead: Batch) -> GroupClaim:
        return db.claim(SECOND_TRY)

    def test_fenced_prefetch_writes_nothing(
        self, db: Database, held: GroupClaim, ahead: Batch, later: GroupClaim
    ) -> None:
        before = db.dump()
        with pytest.raises(FencedError):
            begin_staging(held, ahead, "/staging/2", RECIPE)
        with pytest.raises(FencedError):
            plan_ahead(held, AFTER_NEXT)
        assert db.dump() == before

    def test_the_later_attempt_finishes_both_in_order(
        self, db: Database, held: GroupClaim, opened: Batch, ahead: Batch, later: GroupClaim
    ) -> None:
        db.commit(later, opened)
        found = open_batch(db.ledger, GROUP)
        assert found is not None
        assert found.ranges == ahead.ranges
        begin_staging(later, found, "/staging/3", RECIPE)
        mark_staged(later, found, 5)
        db.commit(later, found)
        with pytest.raises(FencedError):
            mark_staged(held, ahead, 5)
        assert (states(db), db.positions()) == (["committed"] * 2, {T0: 15, T1: 7})
