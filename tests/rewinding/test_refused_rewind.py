"""A rewind is refused, and nothing is changed: positions moved since, another cluster, an open batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_kafka_offsets.core.offsets import OffsetRange
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.exceptions import (
    BatchClosedError,
    ClusterChangedError,
    ConfigurationError,
    FencedError,
    OpenBatchError,
    PositionsMovedError,
    RewindConflictError,
)
from airflow_kafka_offsets.ledger.batch_rows import Recipe, current_user
from airflow_kafka_offsets.ledger.batches import open_batch, record_plan
from airflow_kafka_offsets.ledger.commit_transaction import commit_batch
from airflow_kafka_offsets.ledger.groups import read_generation
from airflow_kafka_offsets.replaying.replay_batches import Replay, ReplayClaim
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from tests.support.ledgers import written
from tests.support.warehouse import (
    CLUSTER,
    GROUP,
    ID,
    OTHER_ID,
    OTHER_RUN,
    REWINDER,
    T0,
    T1,
    U0,
    Warehouse,
)


class TestConflict:
    @pytest.mark.parametrize(
        "change",
        [
            lambda db: db.load({T0: 25}),
            lambda db: db.rewind("to-offset", 15, of=[T0]),
            lambda db: db.change("DELETE FROM consumed_offsets WHERE partition = 0"),
            lambda db: db.change("UPDATE consumed_offsets SET topic_id = 'another' WHERE partition = 0"),
        ],
        ids=["load", "rewind", "removed", "topic"],
    )
    def test_r33_positions_that_moved_since_are_a_conflict(
        self, loaded: Warehouse, change: Callable[[Warehouse], object]
    ) -> None:
        preview = loaded.preview("to-offset", 10)
        change(loaded)
        before = loaded.dump()

        with pytest.raises(RewindConflictError, match="Nothing was changed; make a new preview"):
            loaded.execute(preview)
        assert loaded.dump() == before

    def test_a_rewind_and_its_undo_are_a_conflict_though_positions_are_the_same(self, loaded: Warehouse) -> None:
        preview = loaded.preview("to-offset", 10)
        loaded.rewind("to-offset", 5)
        loaded.rewind("undo")

        with pytest.raises(RewindConflictError, match="the preview is of generation 0, the group of 2"):
            loaded.execute(preview)

    def test_partitions_that_are_named_say_how_they_moved(self, loaded: Warehouse) -> None:
        preview = loaded.preview("to-offset", 10, of=[T0, T1, U0])
        loaded.load({T0: 25, U0: 3})

        with pytest.raises(RewindConflictError) as raised:
            loaded.execute(preview)
        assert (
            "orders[0]: position 20 in the preview, position 25 now; returns[0]: no position in the preview, position "
            "3 now" in str(raised.value)
        )

    def test_a_position_outside_of_the_scope_may_move(self, loaded: Warehouse) -> None:
        preview = loaded.preview("to-offset", 3, of=[T1])
        loaded.load({T0: 25})
        loaded.execute(preview)

        assert loaded.positions() == {T0: 25, T1: 3}

    def test_a_position_that_would_not_change_must_not_move_either(self, loaded: Warehouse) -> None:
        preview = loaded.preview("to-offset", 5)
        loaded.load({T1: 6})

        with pytest.raises(RewindConflictError, match=r"orders\[1\]"):
            loaded.execute(preview)

    def test_a_group_that_came_to_be_meanwhile_is_a_conflict(self, db: Warehouse) -> None:
        preview = db.preview("to-offset", 5, of=[T0])
        db.load({T0: 3})

        with pytest.raises(RewindConflictError):
            db.execute(preview)

    def test_a_group_that_is_gone_is_a_conflict(self, loaded: Warehouse) -> None:
        preview = loaded.preview("to-offset", 5)
        loaded.change("DELETE FROM consumer_groups")

        with pytest.raises(RewindConflictError, match="the preview is of generation 0, the group of none"):
            loaded.execute(preview)

    def test_a_plan_that_was_made_before_it_is_refused(self, loaded: Warehouse) -> None:
        held, plan = loaded.claim(), Plan((OffsetRange(*T0, 20, 25, 25, ID),))
        loaded.rewind("to-offset", 10)

        with pytest.raises(PositionsMovedError):
            record_plan(held, plan, Recipe("output", None, ""), 0)


class TestCluster:
    def test_another_cluster_is_refused(self, loaded: Warehouse) -> None:
        preview = replace(loaded.preview("to-earliest"), cluster_id="another")
        before = loaded.dump()

        with pytest.raises(ClusterChangedError):
            loaded.execute(preview)
        assert loaded.dump() == before

    def test_a_group_goes_over_to_another_cluster_on_purpose(self, loaded: Warehouse) -> None:
        loaded.topic_id = OTHER_ID
        loaded.execute(replace(loaded.preview("to-earliest"), cluster_id="another", moves_cluster=True))

        assert loaded.rows("SELECT cluster_id FROM consumer_groups") == [{"cluster_id": "another"}]

    @pytest.mark.parametrize("how", ["not-named", "left-as-it-is"])
    def test_no_position_stays_that_of_the_old_cluster(self, loaded: Warehouse, how: str) -> None:
        loaded.topic_id = OTHER_ID
        preview = replace(loaded.preview("to-earliest"), cluster_id="another", moves_cluster=True)
        first, second = preview.partitions
        stays = () if how == "not-named" else (replace(second, new=second.old),)
        before = loaded.dump()

        with pytest.raises(
            ConfigurationError, match=r"leaves positions of the old one where they are: orders\[1\]\. Nothing"
        ):
            loaded.execute(replace(preview, partitions=(first, *stays)))
        assert loaded.dump() == before

    def test_within_a_cluster_positions_may_stay(self, loaded: Warehouse) -> None:
        preview = loaded.preview("to-earliest", of=[T0])
        preview.refuse_left_behind(loaded.positions())
        preview.refuse_replace()
        with pytest.raises(ConfigurationError, match=r"orders\[1\]\. Nothing"):
            replace(preview, moves_cluster=True).refuse_left_behind(loaded.positions())


class TestOpenBatch:
    def test_r31_an_open_batch_is_in_the_way_and_named(self, loaded: Warehouse) -> None:
        _, batch = loaded.plan({T0: 30})
        preview = loaded.preview("to-offset", 5)
        before = loaded.dump()

        assert preview.open_batch == batch.batch_id
        with pytest.raises(OpenBatchError, match=f"has the open batch {batch.batch_id}, which starts"):
            loaded.execute(preview)
        assert loaded.dump() == before

    def test_another_one_is_not_abandoned(self, loaded: Warehouse) -> None:
        _, batch = loaded.plan({T0: 30})
        before = loaded.dump()

        with pytest.raises(OpenBatchError, match=f"open batch {batch.batch_id}, which is not batch 1"):
            loaded.execute(loaded.preview("to-offset", 5), abandon=1)
        assert loaded.dump() == before

    def test_a_batch_that_is_not_open_is_not_abandoned(self, loaded: Warehouse) -> None:
        with pytest.raises(OpenBatchError, match="Batch 2 of group 'orders_loader' is not open"):
            loaded.execute(loaded.preview("to-offset", 5), abandon=2)
        assert loaded.positions() == {T0: 20, T1: 5}

    @pytest.mark.parametrize("number", [2**63, 10**40])
    def test_a_number_that_no_batch_has_is_none(self, loaded: Warehouse, number: int) -> None:
        loaded.plan({T0: 30})
        with pytest.raises(OpenBatchError, match=f"which is not batch {number}"):
            loaded.execute(loaded.preview("to-offset", 5), abandon=number)

    def test_its_attempt_can_never_commit(self, loaded: Warehouse) -> None:
        held, batch = loaded.plan({T0: 30})
        batch_id = loaded.execute(loaded.preview("to-offset", 5, of=[T0]), abandon=batch.batch_id, reason="wrong day")

        with pytest.raises(FencedError):
            loaded.commit(held, batch)
        assert loaded.output() == list(range(20))
        row = loaded.batch(batch.batch_id)
        assert (row["state"], row["reason"]) == ("abandoned", f"abandoned by ana@host ({current_user()}): wrong day")
        assert open_batch(loaded.ledger, GROUP) is None
        assert batch_id > batch.batch_id
        loaded.verify()

    def test_the_next_run_need_not_wait_for_it(self, loaded: Warehouse) -> None:
        _, batch = loaded.plan({T0: 30})
        loaded.execute(loaded.preview("to-offset", 5), abandon=batch.batch_id)

        assert loaded.claim(owner=OTHER_RUN).epoch > 0

    def test_an_open_batch_can_be_abandoned_without_a_rewind(self, loaded: Warehouse) -> None:
        held, batch = loaded.plan({T0: 30})
        abandon_batch(GROUP, batch.batch_id, engine=loaded.engine, tables=loaded.tables, who="ana@host")

        with pytest.raises(FencedError):
            loaded.commit(held, batch)
        assert loaded.batch(batch.batch_id)["reason"] == f"abandoned by ana@host ({current_user()})"
        assert loaded.positions() == {T0: 20, T1: 5}
        assert read_generation(loaded.ledger, GROUP) == 0
        loaded.load({T0: 30})
        loaded.verify()

    @pytest.mark.parametrize(
        ("batch_id", "found"),
        [(2, "it is committed")] + [(number, "the group has no such batch") for number in (99, 0, 2**63, -(2**63) - 1)],
    )
    def test_only_an_open_batch_can_be_abandoned(self, loaded: Warehouse, batch_id: int, found: str) -> None:
        before = loaded.dump()
        with pytest.raises(OpenBatchError, match=found):
            abandon_batch(GROUP, batch_id, engine=loaded.engine, tables=loaded.tables, who="ana@host")
        assert loaded.dump() == before

    def test_a_batch_of_another_group_cannot_be_abandoned(self, loaded: Warehouse) -> None:
        _, batch = loaded.plan({T0: 3}, group="other")
        with pytest.raises(OpenBatchError, match="the group has no such batch"):
            abandon_batch(GROUP, batch.batch_id, engine=loaded.engine, tables=loaded.tables, who="ana@host")
        assert loaded.batch(batch.batch_id)["state"] == "planned"

    def test_abandoning_a_replay_does_not_disturb_a_load(self, loaded: Warehouse) -> None:
        replay = Replay(group_id=GROUP, owner=REWINDER, scenario="0..5", recipe=Recipe("elsewhere", None, "f"))
        (planned,) = replay.record(loaded.ledger, [Plan((OffsetRange(*T0, 0, 5, 5, ID),))], cluster_id=CLUSTER)
        held, batch = loaded.plan({T0: 30})
        abandon_batch(GROUP, planned.batch.batch_id, engine=loaded.engine, tables=loaded.tables, who="ana@host")

        loaded.commit(held, batch)
        assert isinstance(planned, ReplayClaim)
        with pytest.raises(BatchClosedError, match="not open any more"):
            commit_batch(planned, planned.batch, written({}, lambda conn: 0))
        assert loaded.positions()[T0] == 30
