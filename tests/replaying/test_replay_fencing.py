"""A try of a replay that was taken over writes nothing, at whatever step it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.exceptions import FencedError
from airflow_kafka_offsets.ledger.batches import begin_staging, mark_staged
from airflow_kafka_offsets.ledger.commit_transaction import commit_batch
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.replaying.replay_batches import Replay, ReplayClaim
from tests.support.ledgers import CLUSTER, FIRST_TRY, GROUP, RECIPE, T0, Database, offset_range, written

REPLAY = Replay(group_id=GROUP, owner=FIRST_TRY, scenario="offsets 0..10", recipe=RECIPE)
PLAN = Plan((offset_range(T0, 0, 10, how="replay"),))


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "warehouse.db")
    initialize(database.ledger)
    database.change("CREATE TABLE output (id INTEGER)")
    yield database
    database.engine.dispose()


def claimed(db: Database, try_number: int) -> ReplayClaim:
    """Plan the replay as its first try does, or take it over as a later one does."""
    replay = replace(REPLAY, owner=replace(FIRST_TRY, try_number=try_number))
    (claim,) = replay.record(db.ledger, [PLAN] if try_number == 1 else (), cluster_id=CLUSTER)
    assert isinstance(claim, ReplayClaim)
    return claim


@pytest.mark.parametrize("step", ["begin_staging", "mark_staged", "plan_again", "commit"])
def test_a_try_that_was_taken_over_writes_nothing(db: Database, step: str) -> None:
    def write(conn: Connection) -> int:
        pytest.fail("rows were about to be written")

    first, second = claimed(db, 1), claimed(db, 2)
    steps: dict[str, Callable[[ReplayClaim], object]] = {
        "begin_staging": lambda claim: begin_staging(claim, claim.batch, "/staging/1", RECIPE),
        "mark_staged": lambda claim: mark_staged(claim, claim.batch, 10),
        "plan_again": lambda claim: claim.plan_again(PLAN, "records expired"),
        "commit": lambda claim: commit_batch(
            claim, claim.batch, written({}, write if claim is first else db.write_a_row)
        ),
    }
    before = db.dump()

    with pytest.raises(FencedError, match=r"taken over by a later attempt .* \(try 2, epoch 2\) .* \(try 1, epoch 1\)"):
        steps[step](first)

    assert db.dump() == before
    steps[step](second)
    assert db.dump() != before
