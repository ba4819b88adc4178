"""Rewinds on SQLite files: what is moved, removed and written down, in one transaction, and what is refused."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import OperationalError

from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.core.scope import Scope
from airflow_kafka_offsets.database import transactions
from airflow_kafka_offsets.exceptions import (
    ClusterChangedError,
    CommitUnknownError,
    ConfigurationError,
    DatabaseUnavailableError,
    FencedError,
    OpenBatchError,
    PositionConflictError,
    PositionsMovedError,
    RewindConflictError,
)
from airflow_kafka_offsets.ledger.batch_rows import Batch, Recipe
from airflow_kafka_offsets.ledger.batches import abandon_batch, open_batch, record_plan
from airflow_kafka_offsets.ledger.claims import GroupClaim, claim_group
from airflow_kafka_offsets.ledger.commit_transaction import commit_batch
from airflow_kafka_offsets.ledger.groups import read_generation
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.positions import RangeRead, read_positions
from airflow_kafka_offsets.ledger.replaced_output import replace_output
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.ledger.task_run import TaskRun
from airflow_kafka_offsets.replaying.replay_batches import record_replay
from airflow_kafka_offsets.replaying.request import Replay
from airflow_kafka_offsets.rewinding.decision import PartitionRewind, decide
from airflow_kafka_offsets.rewinding.execution import execute_rewind, executed_by
from airflow_kafka_offsets.rewinding.history import (
    LastRewind,
    count_removed,
    current_state,
    executed_preview,
    last_rewind,
    state_before,
)
from airflow_kafka_offsets.rewinding.loaded_ranges import loaded_within, with_loaded_ranges
from airflow_kafka_offsets.rewinding.preview import RewindPreview
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.verify import verify

GROUP, CLUSTER = "orders_loader", "MkU3OEVBNTcwNTJENDM2Qg"
ID, OTHER_ID = "vVZ4aDWLQP2NkY0pxyHJYA", "Xw-aDWLQP2NkY0pxyHJYBQ"
T0, T1, U0 = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("returns", 0)
MINUTE = timedelta(minutes=1)
LOADER, OTHER_RUN = TaskRun("run-1", "dag", "load", -1, 1), TaskRun("run-2", "dag", "load", -1, 1)
REWINDER = TaskRun("manual-1", "dag", "rewind", -1, 1)
TARGET = SqlTable("output")
Ends = Mapping[TopicPartition, int]


class Warehouse:
    """A database that loads and rewinds go into. Every offset holds a record."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.engine = sa.create_engine(f"sqlite:///{path}")
        self.tables = Tables()
        self.topic_id = ID
        initialize(self.engine, self.tables)
        self.create_target("output")

    def create_target(
        self, name: str, columns: str = "_kafka_topic TEXT, _kafka_partition INT, _kafka_offset INT,"
    ) -> None:
        self.change(f'CREATE TABLE "{name}" (id INTEGER, {columns} _batch_id INT)')

    # What a load does.

    def claim(self, group: str = GROUP, owner: TaskRun = LOADER) -> GroupClaim:
        return claim_group(self.engine, self.tables, group, owner, cluster_id=CLUSTER, lease=MINUTE)

    def plan(self, ends: Ends, group: str = GROUP, target: str = "output", **of_range: Any) -> tuple[GroupClaim, Batch]:
        stored = read_positions(self.engine, self.tables, group)
        ranges = tuple(
            OffsetRange(
                *tp,
                stored[tp].offset if tp in stored else 0,
                end,
                end,
                self.topic_id,
                **({"how": "stored" if tp in stored else "earliest"} | of_range),
            )
            for tp, end in ends.items()
        )
        held = self.claim(group)
        recipe = Recipe(target, None, "fingerprint")
        batch = record_plan(
            self.engine, self.tables, held, Plan(ranges), recipe, read_generation(self.engine, self.tables, group)
        )
        assert batch is not None
        return held, batch

    def commit(self, held: GroupClaim, batch: Batch, aside: Iterable[int] = (), columns: bool = True) -> int:
        reads: dict[TopicPartition, RangeRead] = {}
        rows: list[tuple[TopicPartition, int]] = []
        letters: list[tuple[TopicPartition, int]] = []
        for one in batch.ranges:
            records = list(range(one.start, one.end))
            bad = [offset for offset in records if offset in aside]
            rows += [(one.topic_partition, offset) for offset in records if offset not in bad]
            letters += [(one.topic_partition, offset) for offset in bad]
            reads[one.topic_partition] = RangeRead(len(records), dead_letters=len(bad))

        def write(conn: Connection) -> int:
            for tp, offset in rows:
                names, values = (
                    ("_kafka_topic, _kafka_partition, _kafka_offset,", (*tp, offset)) if columns else ("", ())
                )
                conn.exec_driver_sql(
                    f'INSERT INTO "{batch.target_table}" ({names} _batch_id) VALUES ({"?, " * len(values)}?)',
                    (*values, batch.batch_id),
                )
            for tp, offset in letters:
                conn.execute(
                    self.tables.dead_letters.insert().values(
                        batch_id=batch.batch_id,
                        topic=tp.topic,
                        partition=tp.partition,
                        offset_value=offset,
                        consumer_group=batch.group_id,
                        error="bad",
                    )
                )
            return len(rows)

        return commit_batch(self.engine, self.tables, held, batch, reads, write)

    def load(
        self,
        ends: Ends,
        group: str = GROUP,
        target: str = "output",
        aside: Iterable[int] = (),
        columns: bool = True,
        **of_range: Any,
    ) -> int:
        held, batch = self.plan(ends, group, target, **of_range)
        self.commit(held, batch, aside, columns)
        held.release(self.engine, self.tables)
        return batch.batch_id

    # What a rewind does.

    def preview(
        self,
        name: str,
        value: object = None,
        *,
        of: Iterable[TopicPartition] = (),
        logs: Mapping[TopicPartition, PartitionLog] | None = None,
        group: str = GROUP,
    ) -> RewindPreview:
        """As `preview_rewind` makes it, of logs with the offsets 0 to 1000."""
        scenario = Scenario.of(name, value)
        stand = current_state(self.engine, self.tables, group)
        stored = stand.positions if stand is not None else {}
        found: Mapping[TopicPartition, Position | None] = {}
        if name == "to-batch":
            assert isinstance(scenario.value, int)
            found = state_before(self.engine, self.tables, group, scenario.value)
        if isinstance(scenario.value, Mapping):
            found = {tp: Position(offset) for tp, offset in scenario.value.items()}
        if name == "undo":
            last = last_rewind(self.engine, self.tables, group)
            assert last is not None
            found = last.before
        partitions = sorted(of or found or stored)
        logs = logs if logs is not None else {tp: PartitionLog(0, 1000, self.topic_id) for tp in partitions}
        decided = decide(scenario, partitions, stored, logs, found)
        return RewindPreview(
            group,
            CLUSTER,
            stand.generation if stand is not None else None,
            scenario.text,
            name if name in ("undo", "import") else "rewind",
            with_loaded_ranges(self.engine, self.tables, group, decided, logs),
            open_batch=stand.open_batch if stand is not None else None,
        )

    def execute(self, preview: RewindPreview, **options: Any) -> int:
        done = execute_rewind(preview, engine=self.engine, tables=self.tables, **({"who": "ana@host"} | options))
        assert done.batch_id is not None
        return done.batch_id

    def rewind(
        self, name: str, value: object = None, *, replace: SqlTable | None = None, of: Iterable[TopicPartition] = ()
    ) -> int:
        return self.execute(self.preview(name, value, of=of), replace=replace)

    # What another program sees, and does.

    def rows(self, query: str, *values: object) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self.path)) as conn:
            conn.row_factory = sqlite3.Row
            return [dict(row) for row in conn.execute(query, values)]

    def change(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(self.path)) as conn, conn:
            conn.execute(statement, values)

    def dump(self) -> list[str]:
        with closing(sqlite3.connect(self.path)) as conn:
            return list(conn.iterdump())

    def batch(self, batch_id: int) -> dict[str, Any]:
        (row,) = self.rows("SELECT * FROM offset_batches WHERE batch_id = ?", batch_id)
        return row

    def ranges(self, batch_id: int) -> list[dict[str, Any]]:
        return self.rows("SELECT * FROM offset_ranges WHERE batch_id = ? ORDER BY topic, partition", batch_id)

    def positions(self, group: str = GROUP) -> dict[TopicPartition, int]:
        return {tp: at.offset for tp, at in read_positions(self.engine, self.tables, group).items()}

    def output(self, tp: TopicPartition = T0, target: str = "output") -> list[int]:
        query = (
            f'SELECT _kafka_offset AS at FROM "{target}" WHERE _kafka_topic = ? AND _kafka_partition = ? ORDER BY at'
        )
        return [row["at"] for row in self.rows(query, *tp)]

    def verify(self, target: str = "output", group: str = GROUP) -> None:
        verify(group, sink=SqlTable(target), engine=self.engine, tables=self.tables)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Warehouse]:
    warehouse = Warehouse(tmp_path / "warehouse.db")
    yield warehouse
    warehouse.engine.dispose()


@pytest.fixture
def loaded(db: Warehouse) -> Warehouse:
    """Two batches: orders[0] up to 10 and 20, orders[1] up to 5."""
    db.load({T0: 10, T1: 5})
    db.load({T0: 20})
    return db


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
        assert (one["replaced_from"], one["replaced_to"]) == (None, None)

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
            assert read_generation(loaded.engine, loaded.tables, GROUP) == number

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

        assert read_positions(db.engine, db.tables, GROUP) == {T0: Position(50, ID)}
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

        assert read_positions(loaded.engine, loaded.tables, GROUP) == {
            T0: Position(2, OTHER_ID),
            T1: Position(2, OTHER_ID),
        }
        assert [row["how"] for row in loaded.ranges(batch_id)] == ["recreated", "recreated"]
        loaded.load({T0: 9})
        loaded.verify()

    def test_what_is_passed_over_for_good_is_a_gap(self, loaded: Warehouse) -> None:
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

        with pytest.raises(RewindConflictError, match="it is of generation 0, the group of 2"):
            loaded.execute(preview)

    def test_partitions_that_are_named_say_how_they_moved(self, loaded: Warehouse) -> None:
        preview = loaded.preview("to-offset", 10, of=[T0, T1, U0])
        loaded.load({T0: 25, U0: 3})

        with pytest.raises(RewindConflictError) as raised:
            loaded.execute(preview)
        assert (
            "orders[0]: position 20 in the preview, position 25 now; returns[0]: no position in the preview, position 3 now"
            in str(raised.value)
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

        with pytest.raises(RewindConflictError, match="it is of generation 0, the group of none"):
            loaded.execute(preview)

    def test_a_plan_that_was_made_before_it_is_refused(self, loaded: Warehouse) -> None:
        held, plan = loaded.claim(), Plan((OffsetRange(*T0, 20, 25, 25, ID),))
        loaded.rewind("to-offset", 10)

        with pytest.raises(PositionsMovedError):
            record_plan(loaded.engine, loaded.tables, held, plan, Recipe("output", None, ""), 0)


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
        with pytest.raises(OpenBatchError, match=f"has the open batch {batch.batch_id}: it starts"):
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
        assert (row["state"], row["reason"]) == ("abandoned", "abandoned by ana@host: wrong day")
        assert open_batch(loaded.engine, loaded.tables, GROUP) is None
        assert batch_id > batch.batch_id
        loaded.verify()

    def test_the_next_run_need_not_wait_for_it(self, loaded: Warehouse) -> None:
        _, batch = loaded.plan({T0: 30})
        loaded.execute(loaded.preview("to-offset", 5), abandon=batch.batch_id)

        assert loaded.claim(owner=OTHER_RUN).epoch > 0

    def test_it_can_be_abandoned_alone(self, loaded: Warehouse) -> None:
        held, batch = loaded.plan({T0: 30})
        abandon_batch(loaded.engine, loaded.tables, GROUP, batch.batch_id, who="ana@host")

        with pytest.raises(FencedError):
            loaded.commit(held, batch)
        assert loaded.batch(batch.batch_id)["reason"] == "abandoned by ana@host"
        assert loaded.positions() == {T0: 20, T1: 5}
        assert read_generation(loaded.engine, loaded.tables, GROUP) == 0
        loaded.load({T0: 30})
        loaded.verify()

    @pytest.mark.parametrize(
        ("batch_id", "found"),
        [(2, "it is committed")] + [(number, "the group has no such batch") for number in (99, 0, 2**63, -(2**63) - 1)],
    )
    def test_only_an_open_batch_can_be_abandoned(self, loaded: Warehouse, batch_id: int, found: str) -> None:
        before = loaded.dump()
        with pytest.raises(OpenBatchError, match=found):
            abandon_batch(loaded.engine, loaded.tables, GROUP, batch_id, who="ana@host")
        assert loaded.dump() == before

    def test_a_batch_of_another_group_cannot_be_abandoned(self, loaded: Warehouse) -> None:
        _, batch = loaded.plan({T0: 3}, group="other")
        with pytest.raises(OpenBatchError, match="the group has no such batch"):
            abandon_batch(loaded.engine, loaded.tables, GROUP, batch.batch_id, who="ana@host")
        assert loaded.batch(batch.batch_id)["state"] == "planned"

    def test_abandoning_a_replay_does_not_disturb_a_load(self, loaded: Warehouse) -> None:
        replay = Replay(group_id=GROUP, owner=REWINDER, scenario="0..5", recipe=Recipe("elsewhere", None, "f"))
        (planned,) = record_replay(
            loaded.engine, loaded.tables, replay, [Plan((OffsetRange(*T0, 0, 5, 5, ID),))], cluster_id=CLUSTER
        )
        held, batch = loaded.plan({T0: 30})
        abandon_batch(loaded.engine, loaded.tables, GROUP, planned.batch.batch_id, who="ana@host")

        loaded.commit(held, batch)
        assert planned.claim is not None
        with pytest.raises(PositionConflictError, match="not open any more"):
            commit_batch(loaded.engine, loaded.tables, planned.claim, planned.batch, {}, lambda conn: 0)
        assert loaded.positions()[T0] == 30


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
            owner,
            GROUP,
            Scenario.of(*scenario.split()),
            engine=db.engine,
            tables=db.tables,
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

    def test_of_two_groups_each_is_rewound(self, loaded: Warehouse) -> None:
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
        assert current_state(db.engine, db.tables, GROUP) is None, (
            "the next preview would take the group for a known one"
        )


class TestReplace:
    def test_rows_that_are_read_again_are_removed(self, loaded: Warehouse) -> None:
        batch_id = loaded.rewind("to-offset", 3, replace=TARGET)

        assert (loaded.output(), loaded.output(T1)) == ([0, 1, 2], [0, 1, 2])
        assert [(row["replaced_from"], row["replaced_to"]) for row in loaded.ranges(batch_id)] == [(3, 20), (3, 5)]
        assert loaded.batch(batch_id)["target_table"] == "output"
        assert count_removed(loaded.engine, loaded.tables, batch_id) == (19, 0)
        loaded.verify()
        loaded.load({T0: 25, T1: 6})
        assert (loaded.output(), loaded.output(T1)) == (list(range(25)), list(range(6)))
        loaded.verify()

    def test_what_was_removed_is_counted_for_each_batch_and_partition(self, loaded: Warehouse) -> None:
        batch_id = loaded.rewind("to-offset", 3, replace=TARGET)

        rows = loaded.rows("SELECT * FROM replaced_output ORDER BY replaced_batch_id, partition")
        assert [tuple(row.values()) for row in rows] == [
            (batch_id, 1, "orders", 0, 7, 0),
            (batch_id, 1, "orders", 1, 2, 0),
            (batch_id, 2, "orders", 0, 10, 0),
        ]

    def test_dead_letters_are_removed_with_the_rows(self, db: Warehouse) -> None:
        db.load({T0: 10}, aside=[2, 6, 7])
        batch_id = db.rewind("to-offset", 5, replace=TARGET)

        assert db.output() == [0, 1, 3, 4]
        assert [row["offset_value"] for row in db.rows("SELECT * FROM dead_letters")] == [2]
        assert count_removed(db.engine, db.tables, batch_id) == (3, 2)
        db.verify()
        db.load({T0: 10}, aside=[6])
        db.verify()

    def test_dead_letters_alone_are_counted_too(self, db: Warehouse) -> None:
        db.load({T0: 5, T1: 3}, aside=[3, 4])
        batch_id = db.rewind("to-offset", 3, replace=TARGET, of=[T0])

        assert count_removed(db.engine, db.tables, batch_id) == (0, 2)
        db.verify()

    def test_a_second_one_removes_what_both_generations_left(self, loaded: Warehouse) -> None:
        loaded.rewind("to-offset", 8, of=[T0])
        loaded.load({T0: 20})
        loaded.rewind("to-offset", 5, of=[T0], replace=TARGET)

        assert loaded.output() == [0, 1, 2, 3, 4]
        loaded.verify()

    def test_rows_of_other_groups_and_programs_stay(self, loaded: Warehouse) -> None:
        loaded.load({T0: 7, U0: 2}, group="other")
        loaded.change(
            "INSERT INTO output (id, _kafka_topic, _kafka_partition, _kafka_offset) VALUES (5, 'orders', 0, 3)"
        )
        loaded.rewind("to-earliest", replace=TARGET)

        assert loaded.output() == sorted([3, *range(7)])
        assert loaded.output(U0) == [0, 1]
        loaded.verify(group="other")

    def test_rows_of_an_earlier_topic_of_the_same_name_stay(self, loaded: Warehouse) -> None:
        loaded.topic_id = OTHER_ID
        loaded.rewind("to-earliest", replace=TARGET)
        assert loaded.output() == list(range(20))

        loaded.load({T0: 6})
        loaded.rewind("to-offset", 2, of=[T0], replace=TARGET)
        assert loaded.output() == sorted([*range(20), 0, 1])
        loaded.verify()

    def test_rows_are_removed_where_the_broker_told_no_topic_id(self, db: Warehouse) -> None:
        db.load({T0: 5})
        db.change("UPDATE offset_ranges SET topic_id = NULL")
        db.change("UPDATE consumed_offsets SET topic_id = NULL")
        db.rewind("to-offset", 2, replace=TARGET)

        assert db.output() == [0, 1]

    def test_a_position_that_is_moved_forward_removes_nothing(self, db: Warehouse) -> None:
        db.load({T0: 10})
        db.rewind("to-offset", 12, replace=TARGET)

        assert db.output() == list(range(10))
        assert read_positions(db.engine, db.tables, GROUP)[T0] == Position(12, ID)

    def test_another_table_is_refused(self, loaded: Warehouse) -> None:
        loaded.create_target("elsewhere")
        before = loaded.dump()
        with pytest.raises(ConfigurationError, match=r"Batch 1 .* into table 'output'; the table named is 'elsewhere'"):
            loaded.rewind("to-offset", 3, replace=SqlTable("elsewhere"))
        assert loaded.dump() == before

    def test_another_table_of_batches_that_are_not_concerned_is_none(self, db: Warehouse) -> None:
        db.create_target("elsewhere")
        db.load({T0: 10}, target="elsewhere")
        db.load({T0: 20})
        db.rewind("to-offset", 10, replace=TARGET)

        assert (db.output(), db.output(target="elsewhere")) == ([], list(range(10)))

    @pytest.mark.parametrize("missing", ["_kafka_topic", "_kafka_partition", "_kafka_offset", "_batch_id"])
    def test_a_table_without_the_columns_is_refused(self, loaded: Warehouse, missing: str) -> None:
        loaded.change(f"ALTER TABLE output DROP COLUMN {missing}")
        before = loaded.dump()
        with pytest.raises(ConfigurationError, match=f"Table 'output' has no column {missing}:"):
            loaded.rewind("to-offset", 3, replace=TARGET)
        assert loaded.dump() == before

    @pytest.mark.parametrize("silent", ["_kafka_topic", "_kafka_partition", "_kafka_offset"])
    def test_a_row_that_does_not_say_where_it_is_from_is_refused(self, loaded: Warehouse, silent: str) -> None:
        loaded.change(f"UPDATE output SET {silent} = NULL WHERE _batch_id = 2 AND _kafka_offset = 15")
        before = loaded.dump()
        with pytest.raises(ConfigurationError, match="holds rows of batch 2 that do not say"):
            loaded.rewind("to-offset", 12, replace=TARGET)
        assert loaded.dump() == before

    def test_such_a_row_of_a_batch_that_is_not_concerned_is_not(self, loaded: Warehouse) -> None:
        loaded.change("UPDATE output SET _kafka_offset = NULL WHERE _batch_id = 1 AND _kafka_offset = 3")
        loaded.rewind("to-offset", 12, replace=TARGET, of=[T0])

        assert loaded.positions()[T0] == 12

    def test_a_table_that_was_dropped_holds_nothing(self, loaded: Warehouse) -> None:
        loaded.change("DROP TABLE output")
        assert count_removed(loaded.engine, loaded.tables, loaded.rewind("to-earliest", replace=TARGET)) == (0, 0)

    @pytest.mark.parametrize("name", ["loaded", "again", "left_by", "select", 'odd "name"'])
    def test_any_name_of_a_table_will_do(self, db: Warehouse, name: str) -> None:
        db.change(
            f'CREATE TABLE "{name.replace(chr(34), chr(34) * 2)}" (_kafka_topic, _kafka_partition, _kafka_offset, _batch_id)'
        )
        held, batch = db.plan({T0: 5}, target=name)
        table = sa.Table(name, sa.MetaData(), autoload_with=db.engine)

        def write(conn: Connection) -> int:
            rows = [dict(zip(table.columns.keys(), (*T0, offset, batch.batch_id), strict=True)) for offset in range(5)]
            return conn.execute(table.insert(), rows).rowcount

        commit_batch(db.engine, db.tables, held, batch, {T0: RangeRead(5)}, write)
        batch_id = db.rewind("to-offset", 2, replace=SqlTable(name))

        assert count_removed(db.engine, db.tables, batch_id) == (3, 0)

    def test_a_replay_replaces_what_all_generations_left(self, loaded: Warehouse) -> None:
        loaded.rewind("to-offset", 8, of=[T0])
        loaded.load({T0: 20})
        replay = Replay(
            group_id=GROUP, owner=REWINDER, scenario="5..15", recipe=Recipe("output", None, "f"), replace=True
        )
        (planned,) = record_replay(
            loaded.engine,
            loaded.tables,
            replay,
            [Plan((OffsetRange(*T0, 5, 15, 15, ID, "replay"),))],
            cluster_id=CLUSTER,
        )
        batch_id = planned.batch.batch_id

        def write(conn: Connection) -> int:
            replace_output(conn, loaded.tables, GROUP, batch_id, TARGET)
            for offset in range(5, 15):
                conn.exec_driver_sql("INSERT INTO output VALUES (1, 'orders', 0, ?, ?)", (offset, batch_id))
            return 10

        assert planned.claim is not None
        commit_batch(loaded.engine, loaded.tables, planned.claim, planned.batch, {T0: RangeRead(10)}, write)

        assert loaded.output() == sorted([*range(20), *range(15, 20)])
        loaded.verify()


class TestStateBefore:
    def test_it_is_where_the_batches_before_it_left_off(self, loaded: Warehouse) -> None:
        assert _offsets(state_before(loaded.engine, loaded.tables, GROUP, 2)) == {T0: 10, T1: 5}

    def test_a_partition_that_came_later_is_where_it_began(self, loaded: Warehouse) -> None:
        loaded.load({U0: 3}, how="new-partition")
        assert _offsets(state_before(loaded.engine, loaded.tables, GROUP, 1)) == {T0: 0, T1: 0, U0: 0}

    def test_a_gap_is_before_it(self, loaded: Warehouse) -> None:
        held = loaded.claim()
        plan = Plan((OffsetRange(*T0, 25, 30, 30, ID, "skipped-gap"),), (Gap(*T0, 20, 25, "expired", "skipped"),))
        batch = record_plan(loaded.engine, loaded.tables, held, plan, Recipe("output", None, "f"), 0)
        assert batch is not None
        loaded.commit(held, batch)

        assert _offsets(state_before(loaded.engine, loaded.tables, GROUP, batch.batch_id))[T0] == 20
        loaded.change("DELETE FROM offset_batches WHERE batch_id < 3")
        assert _offsets(state_before(loaded.engine, loaded.tables, GROUP, batch.batch_id))[T0] == 20

    def test_a_batch_that_was_abandoned_moved_nothing(self, loaded: Warehouse) -> None:
        _, batch = loaded.plan({T0: 30})
        abandon_batch(loaded.engine, loaded.tables, GROUP, batch.batch_id, who="ana@host")
        after = loaded.load({T0: 40})

        assert _offsets(state_before(loaded.engine, loaded.tables, GROUP, after)) == {T0: 20, T1: 5}
        assert _offsets(state_before(loaded.engine, loaded.tables, GROUP, batch.batch_id)) == {T0: 20, T1: 5}

    def test_rewinds_are_part_of_the_history(self, loaded: Warehouse) -> None:
        rewind = loaded.rewind("to-offset", 3, of=[T0])
        after = loaded.load({T0: 8})

        assert _offsets(state_before(loaded.engine, loaded.tables, GROUP, rewind)) == {T0: 20, T1: 5}
        assert _offsets(state_before(loaded.engine, loaded.tables, GROUP, after)) == {T0: 3, T1: 5}
        loaded.rewind("to-batch", rewind)
        assert loaded.positions() == {T0: 20, T1: 5}
        loaded.verify()

    def test_a_position_that_was_removed_is_not_there(self, loaded: Warehouse) -> None:
        loaded.execute(loaded.preview("to-earliest", logs={T0: PartitionLog(0, 1000, ID)}))
        after = loaded.load({T0: 8})

        assert _offsets(state_before(loaded.engine, loaded.tables, GROUP, after)) == {T0: 0}

    @pytest.mark.parametrize(
        ("group", "batch_id", "has"),
        [(GROUP, 99, "numbered 1 to 2"), (GROUP, 0, "numbered 1 to 2"), ("new", 1, "it has no batches")],
    )
    def test_a_batch_that_there_is_not_is_refused(self, loaded: Warehouse, group: str, batch_id: int, has: str) -> None:
        with pytest.raises(ConfigurationError, match=has):
            state_before(loaded.engine, loaded.tables, group, batch_id)

    def test_a_batch_of_another_group_is_refused(self, loaded: Warehouse) -> None:
        other = loaded.load({T0: 3}, group="other")
        with pytest.raises(ConfigurationError):
            state_before(loaded.engine, loaded.tables, GROUP, other)


class TestLastRewind:
    def test_there_is_none_before_the_first(self, loaded: Warehouse) -> None:
        assert last_rewind(loaded.engine, loaded.tables, GROUP) is None

    def test_an_undo_brings_everything_back(self, db: Warehouse) -> None:
        db.load({T0: 10, T1: 5})
        before = read_positions(db.engine, db.tables, GROUP)
        db.rewind("to-offset", 3)
        undo = db.rewind("undo")

        assert read_positions(db.engine, db.tables, GROUP) == before
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
        last = last_rewind(loaded.engine, loaded.tables, GROUP)

        assert last is not None
        assert _offsets(last.before) == {T1: 5}
        assert (last.scenario, last.replaced, last.moved_since, last.other_topic) == ("to-offset 3", False, (), ())

    def test_what_was_loaded_since_is_named(self, loaded: Warehouse) -> None:
        loaded.rewind("to-offset", 3)
        loaded.load({T1: 4})
        last = last_rewind(loaded.engine, loaded.tables, GROUP)

        assert last is not None
        assert last.moved_since == (T1,)

    def test_only_partitions_in_the_scope_are_looked_at(self, db: Warehouse) -> None:
        db.load({T0: 10, T1: 5, U0: 7})
        db.rewind("to-offset", 3)
        db.load({T1: 4})

        def found(scope: Scope) -> LastRewind:
            last = last_rewind(db.engine, db.tables, GROUP, scope)
            assert last is not None
            return last

        assert (found({"orders": frozenset({0})}).moved_since, found({"returns": None}).moved_since) == ((), ())
        assert (found({"orders": None}).moved_since, found({}).moved_since) == ((T1,), (T1,))
        assert _offsets(found({"orders": frozenset({0})}).before) == {T0: 10}

    def test_only_what_was_replaced_in_the_scope_is_told(self, loaded: Warehouse) -> None:
        loaded.rewind("from-file", {T0: 30, T1: 2}, replace=TARGET)

        for partition, replaced in ((0, False), (1, True)):
            last = last_rewind(loaded.engine, loaded.tables, GROUP, {"orders": frozenset({partition})})
            assert last is not None
            assert last.replaced == replaced

    def test_what_was_replaced_is_told(self, loaded: Warehouse) -> None:
        loaded.rewind("to-offset", 3, replace=TARGET)
        last = last_rewind(loaded.engine, loaded.tables, GROUP)

        assert last is not None
        assert last.replaced

    def test_a_chosen_position_is_taken_away_again(self, db: Warehouse) -> None:
        db.rewind("to-offset", 50, of=[T0])
        db.rewind("undo")

        assert db.positions() == {}
        db.verify()

    def test_and_brought_back(self, db: Warehouse) -> None:
        """The topic is still the same one: only the position was removed."""
        db.rewind("to-offset", 50, of=[T0])
        db.rewind("undo")
        last = last_rewind(db.engine, db.tables, GROUP)

        assert last is not None
        assert last.other_topic == ()
        db.rewind("undo")
        assert db.positions() == {T0: 50}
        db.verify()

    def test_positions_of_an_earlier_topic_are_named(self, loaded: Warehouse) -> None:
        loaded.topic_id = OTHER_ID
        loaded.rewind("to-offset", 2)
        last = last_rewind(loaded.engine, loaded.tables, GROUP)

        assert last is not None
        assert last.other_topic == (T0, T1)

    def test_rewinds_of_other_groups_are_not_meant(self, loaded: Warehouse) -> None:
        loaded.rewind("to-offset", 3)
        assert last_rewind(loaded.engine, loaded.tables, "other") is None


class TestCovered:
    def spans(self, db: Warehouse, start: int, end: int, topic_id: str | None = ID) -> list[tuple[int, int]]:
        found = loaded_within(db.engine, db.tables, GROUP, {T0: (start, end)}, {T0.topic: topic_id})
        return sorted(found.get(T0, []))

    def test_it_is_what_loads_loaded(self, loaded: Warehouse) -> None:
        assert self.spans(loaded, 0, 30) == [(0, 10), (10, 20)]

    def test_nothing_is_asked_for_nothing(self, loaded: Warehouse) -> None:
        assert loaded_within(loaded.engine, loaded.tables, GROUP, {}, {}) == {}

    def test_what_was_replaced_since_is_not(self, loaded: Warehouse) -> None:
        loaded.rewind("to-offset", 5, replace=TARGET)
        assert self.spans(loaded, 0, 30) == [(0, 5)]
        loaded.load({T0: 7})
        assert self.spans(loaded, 0, 30) == [(0, 5), (5, 7)]

    def test_going_forward_over_what_was_replaced_leaves_gaps(self, loaded: Warehouse) -> None:
        loaded.rewind("to-offset", 5, of=[T0], replace=TARGET)
        loaded.load({T0: 7})
        loaded.rewind("to-offset", 30, of=[T0])

        assert [(row["start_offset"], row["end_offset"]) for row in loaded.rows("SELECT * FROM offset_gaps")] == [
            (7, 30)
        ]

    def test_a_batch_that_was_abandoned_loaded_nothing(self, loaded: Warehouse) -> None:
        _, batch = loaded.plan({T0: 30})
        abandon_batch(loaded.engine, loaded.tables, GROUP, batch.batch_id, who="ana@host")
        assert self.spans(loaded, 20, 30) == [(0, 10), (10, 20)]

    def test_an_earlier_topic_of_the_same_name_does_not_count(self, loaded: Warehouse) -> None:
        assert self.spans(loaded, 0, 30, OTHER_ID) == []

    def test_a_topic_id_that_was_not_told_is_no_other_topic(self, loaded: Warehouse) -> None:
        assert self.spans(loaded, 0, 30, None) == [(0, 10), (10, 20)]

    def test_other_groups_and_partitions_do_not_count(self, db: Warehouse) -> None:
        db.load({T0: 10}, group="other")
        db.load({T1: 10})
        assert self.spans(db, 0, 30) == []


def _offsets(found: Mapping[TopicPartition, Position | None]) -> dict[TopicPartition, int | None]:
    return {tp: position.offset if position is not None else None for tp, position in found.items()}


def test_what_is_executed_is_told_as_a_preview(loaded: Warehouse) -> None:
    preview = loaded.preview("to-offset", 3)
    done = executed_preview(loaded.engine, loaded.tables, loaded.execute(preview))

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
