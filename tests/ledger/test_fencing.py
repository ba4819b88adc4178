"""An attempt that was taken over writes nothing."""

from collections.abc import Callable

import pytest
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.exceptions import FencedError
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.batches import begin_staging, mark_staged, open_batch, record_plan
from airflow_kafka_offsets.ledger.claims import GroupClaim
from tests.support.ledgers import FIRST_TRY, GROUP, NEXT_LOAD, RECIPE, SECOND_TRY, T0, T1, Database, offset_range


class TestFencing:
    """Whoever was taken over writes nothing, whatever it was about to do."""

    @pytest.fixture
    def fenced(self, db: Database) -> tuple[GroupClaim, Batch]:
        first = db.claim(FIRST_TRY)
        batch = db.plan(first)
        db.claim(SECOND_TRY)
        return first, batch

    @pytest.mark.parametrize("step", ["record_plan", "begin_staging", "mark_staged", "commit"])
    def test_fenced_attempt_writes_nothing(self, db: Database, fenced: tuple[GroupClaim, Batch], step: str) -> None:
        held, batch = fenced
        steps: dict[str, Callable[[], object]] = {
            "record_plan": lambda: db.plan(held, NEXT_LOAD),
            "begin_staging": lambda: begin_staging(held, batch, "/staging/1", RECIPE),
            "mark_staged": lambda: mark_staged(held, batch, 1),
            "commit": lambda: db.commit(held, batch),
        }
        before = db.dump()
        with pytest.raises(FencedError) as raised:
            steps[step]()
        assert db.dump() == before
        assert f"Group '{GROUP}' was taken over by dag 'dag' task 'load' run 'run-1' (epoch 2)" in str(raised.value)
        assert "epoch 1" in str(raised.value)

    def test_fenced_attempt_prefetches_nothing(self, db: Database, fenced: tuple[GroupClaim, Batch]) -> None:
        held, _ = fenced
        with pytest.raises(FencedError):
            record_plan(held, Plan(initial=(offset_range(T0, 9, 9, how="latest"),)), RECIPE, 0)
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
        batch = open_batch(db.ledger, GROUP)
        assert batch is not None
        assert db.commit(second, batch) == 1
        assert db.positions() == {T0: 10, T1: 7}
