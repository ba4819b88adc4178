"""What an executed rewind writes: positions, the history, gaps, and the rows that it leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kafka_offsets.core.offsets import PartitionLog, Position
from airflow_kafka_offsets.ledger.groups import read_generation
from airflow_kafka_offsets.ledger.positions import read_positions
from tests.support.warehouse import (
    CLUSTER,
    GROUP,
    ID,
    OTHER_ID,
    REWINDER,
    T0,
    T1,
    TARGET,
    U0,
    Warehouse,
)


class TestExecute:
    def test_positions_are_moved_and_rows_stay(self, loaded: Warehouse) -> None:
        loaded.rewind("to-offset", 3)

        assert loaded.positions() == {T0: 3, T1: 3}
        assert loaded.output() == list(range(20))
        loaded.verify()
        loaded.load({T0: 20, T1: 5})
        assert loaded.output() == sorted([*range(20), *range(3, 20)])
        loaded.verify()

    def test_the_history_says_who_and_why_and_what(self, loaded: Warehouse) -> None:
        batch_id = loaded.execute(loaded.preview("to-offset", 3, of=[T0]), run=REWINDER, reason="wrong day")

        row = loaded.batch(batch_id)
        names = (
            "consumer_group",
            "kind",
            "state",
            "generation",
            "scenario",
            "who",
            "reason",
            "dag_id",
            "task_id",
            "run_id",
            "target_table",
            "row_count",
        )
        assert [row[name] for name in names] == [
            GROUP,
            "rewind",
            "committed",
            1,
            "to-offset 3",
            "ana@host",
            "wrong day",
            "dag",
            "rewind",
            "manual-1",
            None,
            None,
        ]
        (one,) = loaded.ranges(batch_id)
        assert (one["topic"], one["partition"], one["start_offset"], one["end_offset"], one["how"]) == (
            "orders",
            0,
            20,
            3,
            "rewind",
        )
        assert (one["replaced_start_offset"], one["replaced_end_offset"]) == (None, None)

    @pytest.mark.parametrize("name", ["undo", "import", "to-earliest"])
    def test_the_history_tells_the_kinds_apart(self, loaded: Warehouse, name: str) -> None:
        if name == "undo":
            loaded.rewind("to-offset", 3)
        batch_id = loaded.execute(
            replace(loaded.preview("to-earliest"), kind=name if name != "to-earliest" else "rewind")
        )
        assert loaded.batch(batch_id)["kind"] == {"to-earliest": "rewind"}.get(name, name)

    def test_every_rewind_begins_a_generation(self, loaded: Warehouse) -> None:
        for number in (1, 2, 3):
            loaded.rewind("to-offset", number)
            assert read_generation(loaded.ledger, GROUP) == number

    def test_only_partitions_that_change_are_written_down(self, loaded: Warehouse) -> None:
        batch_id = loaded.rewind("to-offset", 5)

        assert [(row["topic"], row["partition"]) for row in loaded.ranges(batch_id)] == [T0]
        assert loaded.positions() == {T0: 5, T1: 5}

    def test_positions_of_other_topics_and_groups_stay(self, loaded: Warehouse) -> None:
        loaded.load({U0: 7})
        loaded.load({T0: 9}, group="other")
        loaded.rewind("to-earliest", of=[T0])

        assert loaded.positions() == {T0: 0, T1: 5, U0: 7}
        assert loaded.positions("other") == {T0: 9}

    def test_a_new_group_can_begin_with_a_rewind(self, db: Warehouse) -> None:
        """R01."""
        batch_id = db.execute(db.preview("to-offset", 50, of=[T0]))

        assert read_positions(db.ledger, GROUP) == {T0: Position(50, ID)}
        assert db.ranges(batch_id)[0]["how"] == "chosen"
        assert db.rows("SELECT group_id, cluster_id, generation FROM consumer_groups") == [
            {"group_id": GROUP, "cluster_id": CLUSTER, "generation": 1}
        ]
        db.load({T0: 60})
        db.verify()

    def test_a_position_of_a_partition_that_is_gone_is_removed(self, loaded: Warehouse) -> None:
        batch_id = loaded.execute(loaded.preview("to-earliest", logs={T0: PartitionLog(0, 1000, ID)}))

        assert loaded.positions() == {T0: 0}
        assert [row["how"] for row in loaded.ranges(batch_id)] == ["rewind", "removed"]
        loaded.verify()

    def test_a_topic_that_was_made_anew_begins_anew(self, loaded: Warehouse) -> None:
        loaded.topic_id = OTHER_ID
        batch_id = loaded.rewind("to-offset", 2)

        assert read_positions(loaded.ledger, GROUP) == {
            T0: Position(2, OTHER_ID),
            T1: Position(2, OTHER_ID),
        }
        assert [row["how"] for row in loaded.ranges(batch_id)] == ["recreated", "recreated"]
        gaps = loaded.rows("SELECT partition, start_offset, end_offset FROM offset_gaps ORDER BY partition")
        assert [tuple(gap.values()) for gap in gaps] == [(0, 0, 2), (1, 0, 2)]
        loaded.load({T0: 9})
        loaded.verify()

    def test_offsets_that_a_rewind_skips_for_good_are_a_gap(self, loaded: Warehouse) -> None:
        loaded.rewind("to-offset", 10, of=[T0])
        batch_id = loaded.rewind("to-offset", 30, of=[T0])

        assert loaded.rows("SELECT * FROM offset_gaps") == [
            {
                "batch_id": batch_id,
                "topic": "orders",
                "partition": 0,
                "start_offset": 20,
                "end_offset": 30,
                "cause": "passed over",
                "decision": "moved forward by ana@host (to-offset 30)",
            }
        ]
        loaded.verify()

    @pytest.mark.parametrize(
        "group", ["o'hara", 'the "group"', "søren%s", "{x}:y", " g ", "x" * 250], ids=lambda name: name[:9]
    )
    def test_any_name_of_a_group_will_do(self, db: Warehouse, group: str) -> None:
        db.load({T0: 10}, group=group)
        db.execute(db.preview("to-offset", 4, group=group), replace=TARGET)

        assert db.positions(group) == {T0: 4}
        assert db.output() == [0, 1, 2, 3]
