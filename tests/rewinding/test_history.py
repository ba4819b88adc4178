"""What the history says of positions: before a batch, before the last rewind, and which offsets were loaded."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, PartitionLog, Scope, TopicPartition
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    NoPositionError,
    RewindConflictError,
    TopicRecreatedError,
)
from airflow_kafka_offsets.ledger.batch_rows import Recipe
from airflow_kafka_offsets.ledger.batches import record_plan
from airflow_kafka_offsets.ledger.positions import read_positions
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.rewinding.history import (
    executed_preview,
    loaded_within,
    state_before,
    state_before_last_rewind,
)
from airflow_kafka_offsets.rewinding.preview import PartitionRewind, RewindPreview
from tests.support.warehouse import (
    CLUSTER,
    GROUP,
    ID,
    OTHER_ID,
    T0,
    T1,
    TARGET,
    U0,
    Warehouse,
    offsets_of,
)


class TestStateBefore:
    def test_the_state_before_a_batch_is_where_earlier_batches_ended(self, loaded: Warehouse) -> None:
        assert offsets_of(state_before(loaded.ledger, GROUP, 2)) == {T0: 10, T1: 5}

    def test_a_partition_that_came_later_is_where_it_began(self, loaded: Warehouse) -> None:
        loaded.load({U0: 3}, how="new-partition")
        assert offsets_of(state_before(loaded.ledger, GROUP, 1)) == {T0: 0, T1: 0, U0: 0}

    def test_a_gap_is_before_it(self, loaded: Warehouse) -> None:
        held = loaded.claim()
        plan = Plan((OffsetRange(*T0, 25, 30, 30, ID, "skipped-gap"),), (Gap(*T0, 20, 25, "expired", "skipped"),))
        batch = record_plan(held, plan, Recipe("output", None, "f"), 0)
        assert batch is not None
        loaded.commit(held, batch)

        assert offsets_of(state_before(loaded.ledger, GROUP, batch.batch_id))[T0] == 20
        loaded.change("DELETE FROM offset_batches WHERE batch_id < 3")
        assert offsets_of(state_before(loaded.ledger, GROUP, batch.batch_id))[T0] == 20

    def test_a_batch_that_was_abandoned_moved_nothing(self, loaded: Warehouse) -> None:
        _, batch = loaded.plan({T0: 30})
        abandon_batch(GROUP, batch.batch_id, engine=loaded.engine, tables=loaded.tables, who="ana@host")
        after = loaded.load({T0: 40})

        assert offsets_of(state_before(loaded.ledger, GROUP, after)) == {T0: 20, T1: 5}
        assert offsets_of(state_before(loaded.ledger, GROUP, batch.batch_id)) == {T0: 20, T1: 5}

    def test_rewinds_are_part_of_the_history(self, loaded: Warehouse) -> None:
        rewind = loaded.rewind("to-offset", 3, of=[T0])
        after = loaded.load({T0: 8})

        assert offsets_of(state_before(loaded.ledger, GROUP, rewind)) == {T0: 20, T1: 5}
        assert offsets_of(state_before(loaded.ledger, GROUP, after)) == {T0: 3, T1: 5}
        loaded.rewind("to-batch", rewind)
        assert loaded.positions() == {T0: 20, T1: 5}
        loaded.verify()

    def test_a_position_that_was_removed_is_not_there(self, loaded: Warehouse) -> None:
        loaded.execute(loaded.preview("to-earliest", logs={T0: PartitionLog(0, 1000, ID)}))
        after = loaded.load({T0: 8})

        assert offsets_of(state_before(loaded.ledger, GROUP, after)) == {T0: 0}

    @pytest.mark.parametrize(
        ("group", "batch_id", "has"),
        [(GROUP, 99, "numbered 1 to 2"), (GROUP, 0, "numbered 1 to 2"), ("new", 9, "it has no batches")],
    )
    def test_a_batch_that_there_is_not_is_refused(self, loaded: Warehouse, group: str, batch_id: int, has: str) -> None:
        with pytest.raises(ConfigurationError, match=has):
            state_before(loaded.ledger, group, batch_id)

    def test_a_batch_of_another_group_is_refused(self, loaded: Warehouse) -> None:
        other = loaded.load({T0: 3}, group="other")
        with pytest.raises(ConfigurationError, match="it is a batch of another group"):
            state_before(loaded.ledger, GROUP, other)


class TestLastRewind:
    @staticmethod
    def before(db: Warehouse, scope: Scope | None = None) -> dict[TopicPartition, int | None]:
        return offsets_of(state_before_last_rewind(db.ledger, GROUP, scope or {}))

    def test_no_last_rewind_before_the_first(self, loaded: Warehouse) -> None:
        with pytest.raises(NoPositionError, match="has no rewind that could be undone"):
            self.before(loaded)

    def test_an_undo_brings_everything_back(self, db: Warehouse) -> None:
        db.load({T0: 10, T1: 5})
        before = read_positions(db.ledger, GROUP)
        db.rewind("to-offset", 3)
        undo = db.rewind("undo")

        assert read_positions(db.ledger, GROUP) == before
        assert db.batch(undo)["kind"] == "undo"
        db.verify()
        db.load({T0: 30, T1: 30})
        assert db.output() == list(range(30))
        db.verify()

    def test_an_undo_can_be_undone(self, loaded: Warehouse) -> None:
        loaded.rewind("to-offset", 3)
        loaded.rewind("undo")
        loaded.rewind("undo")

        assert loaded.positions() == {T0: 3, T1: 3}
        loaded.verify()

    def test_only_what_was_moved_is_brought_back(self, loaded: Warehouse) -> None:
        loaded.rewind("to-offset", 3, of=[T1])
        loaded.load({T0: 30})

        assert self.before(loaded) == {T1: 5}, "nothing of it was replaced, recreated or moved since"

    def test_partitions_that_a_load_moved_since_the_last_rewind_are_named(self, loaded: Warehouse) -> None:
        loaded.rewind("to-offset", 3)
        loaded.load({T1: 4})

        with pytest.raises(
            RewindConflictError, match=r"\(to-offset 3\) cannot be undone .* have moved orders\[1\] since"
        ):
            self.before(loaded)

    def test_only_partitions_in_the_scope_are_looked_at(self, db: Warehouse) -> None:
        db.load({T0: 10, T1: 5, U0: 7})
        db.rewind("to-offset", 3)
        db.load({T1: 4})

        assert self.before(db, {"orders": frozenset({0})}) == {T0: 10}
        assert self.before(db, {"returns": None}) == {U0: 7}
        for scope in ({"orders": None}, {}):
            with pytest.raises(RewindConflictError, match=r"have moved orders\[1\] since"):
                self.before(db, scope)

    def test_only_what_was_replaced_in_the_scope_is_told(self, loaded: Warehouse) -> None:
        loaded.rewind("from-file", {T0: 30, T1: 2}, replace=TARGET)

        assert self.before(loaded, {"orders": frozenset({0})}) == {T0: 20}
        with pytest.raises(RewindConflictError, match="removed the rows of the offsets to load again"):
            self.before(loaded, {"orders": frozenset({1})})

    def test_a_last_rewind_that_replaced_rows_is_refused(self, loaded: Warehouse) -> None:
        loaded.rewind("to-offset", 3, replace=TARGET)

        with pytest.raises(RewindConflictError, match="removed the rows of the offsets to load again"):
            self.before(loaded)

    def test_a_chosen_position_is_taken_away_again(self, db: Warehouse) -> None:
        db.rewind("to-offset", 50, of=[T0])
        db.rewind("undo")

        assert db.positions() == {}
        db.verify()

    def test_and_brought_back(self, db: Warehouse) -> None:
        """The topic is still the same one: only the position was removed."""
        db.rewind("to-offset", 50, of=[T0])
        db.rewind("undo")

        assert self.before(db) == {T0: 50}, "no position of an earlier topic"
        db.rewind("undo")
        assert db.positions() == {T0: 50}
        db.verify()

    def test_positions_of_an_earlier_topic_are_named(self, loaded: Warehouse) -> None:
        loaded.topic_id = OTHER_ID
        loaded.rewind("to-offset", 2)

        with pytest.raises(
            TopicRecreatedError, match=r"an earlier topic of the same name.*: orders\[0\], orders\[1\]\."
        ):
            self.before(loaded)

    def test_rewinds_of_other_groups_are_not_meant(self, loaded: Warehouse) -> None:
        loaded.rewind("to-offset", 3)
        with pytest.raises(NoPositionError, match="'other' has no rewind"):
            state_before_last_rewind(loaded.ledger, "other", {})


class TestCovered:
    def spans(self, db: Warehouse, topic_id: str | None = ID) -> list[tuple[int, int]]:
        with db.engine.connect() as conn:
            found = loaded_within(conn, db.tables, GROUP, {T0: topic_id})
        return sorted(found.get(T0, []))

    def test_loaded_offsets_are_those_of_loads(self, loaded: Warehouse) -> None:
        assert self.spans(loaded) == [(0, 10), (10, 20)]

    def test_empty_scope_sends_no_query(self, loaded: Warehouse) -> None:
        with loaded.engine.connect() as conn:
            assert loaded_within(conn, loaded.tables, GROUP, {}) == {}

    def test_replaced_offsets_are_not_loaded_offsets(self, loaded: Warehouse) -> None:
        loaded.rewind("to-offset", 5, replace=TARGET)
        assert self.spans(loaded) == [(0, 5)]
        loaded.load({T0: 7})
        assert self.spans(loaded) == [(0, 5), (5, 7)]

    def test_going_forward_over_what_was_replaced_leaves_gaps(self, loaded: Warehouse) -> None:
        loaded.rewind("to-offset", 5, of=[T0], replace=TARGET)
        loaded.load({T0: 7})
        loaded.rewind("to-offset", 30, of=[T0])

        assert [(row["start_offset"], row["end_offset"]) for row in loaded.rows("SELECT * FROM offset_gaps")] == [
            (7, 30)
        ]

    def test_a_batch_that_was_abandoned_loaded_nothing(self, loaded: Warehouse) -> None:
        _, batch = loaded.plan({T0: 30})
        abandon_batch(GROUP, batch.batch_id, engine=loaded.engine, tables=loaded.tables, who="ana@host")
        assert self.spans(loaded) == [(0, 10), (10, 20)]

    def test_an_earlier_topic_of_the_same_name_does_not_count(self, loaded: Warehouse) -> None:
        assert self.spans(loaded, OTHER_ID) == []

    def test_a_topic_id_that_was_not_told_is_no_other_topic(self, loaded: Warehouse) -> None:
        assert self.spans(loaded, None) == [(0, 10), (10, 20)]

    def test_other_groups_and_partitions_do_not_count(self, db: Warehouse) -> None:
        db.load({T0: 10}, group="other")
        db.load({T1: 10})
        assert self.spans(db) == []


def test_an_executed_rewind_is_read_as_a_preview(loaded: Warehouse) -> None:
    preview = loaded.preview("to-offset", 3)
    done = executed_preview(loaded.ledger, loaded.execute(preview))

    assert (done.group_id, done.cluster_id, done.generation, done.scenario, done.kind) == (
        GROUP,
        CLUSTER,
        0,
        "to-offset 3",
        "rewind",
    )
    assert done.partitions == tuple(
        PartitionRewind(one.topic, one.partition, None, None, one.old, one.new) for one in preview.changed
    )
    assert RewindPreview.from_dict(done.as_dict()) == done
