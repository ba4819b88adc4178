"""Which table a group loads into, on SQLite files."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.exceptions import DoubleLoadError, FencedError, ForeignBatchError
from airflow_kafka_offsets.ledger.batch_rows import Batch, Recipe, TaskRun
from airflow_kafka_offsets.ledger.batches import abandon, record_plan
from airflow_kafka_offsets.ledger.claims import GroupClaim, claim_group
from airflow_kafka_offsets.ledger.commit_transaction import commit_batch
from airflow_kafka_offsets.ledger.group_table import GroupTable, group_table, keep_to_table, loads_into
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.positions import RangeRead
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.replaying.replay_batches import Replay
from tests.support.ledgers import written

GROUP, CLUSTER, TOPIC_ID = "loader", "MkU3OEVBNTcwNTJENDM2Qg", "vVZ4aDWLQP2NkY0pxyHJYA"
RUN = TaskRun("run-1", "dag", "load", -1, 1)
REPLAYER = TaskRun("run-1", "dag", "replay", -1, 1)


class Warehouse:
    """A database with the tables `old` and `new`."""

    def __init__(self, path: Path) -> None:
        self.engine = sa.create_engine(f"sqlite:///{path}")
        self.tables = Tables()
        self.ledger = Ledger(self.engine, self.tables)
        initialize(self.ledger)
        self.change("CREATE TABLE old (id INTEGER)")
        self.change("CREATE TABLE new (id INTEGER)")

    def change(self, statement: str) -> None:
        with self.engine.begin() as conn:
            conn.exec_driver_sql(statement)

    def claim(self) -> GroupClaim:
        return claim_group(self.ledger, GROUP, RUN, cluster_id=CLUSTER, lease=timedelta(minutes=1))

    def start(self, target: str) -> None:
        """Store where the group begins, as a first load does with `start="latest"`."""
        self.plan(target, Plan((), initial=(offsets(10, 10),)))

    def plan(self, target: str, plan: Plan, *, upsert: bool = False) -> Batch | None:
        held = self.claim()
        return record_plan(held, plan, Recipe(target, None, "fingerprint"), 0, upsert=upsert)

    def load(self, target: str, start: int, end: int) -> None:
        """Load offsets, of which nothing is written but the history."""
        batch = self.plan(target, Plan((offsets(start, end),)))
        assert batch is not None
        reads = {TopicPartition("orders", 0): RangeRead(end - start)}
        self.commit(self.claim(), batch, reads)

    def commit(self, held: object, batch: Batch, reads: dict[TopicPartition, RangeRead]) -> None:
        def write(conn: Connection) -> int:
            return end_rows

        end_rows = batch.offsets
        commit_batch(held, batch, written(reads, write))  # type: ignore[arg-type]

    def replay(self, target: str, start: int, end: int, *, replace: bool = False, run: TaskRun = REPLAYER) -> int:
        wanted = Replay(
            group_id=GROUP,
            owner=run,
            scenario=f"offsets {start}..{end}",
            recipe=Recipe(target, None, "fingerprint"),
            replace=replace,
        )
        (planned,) = wanted.record(self.ledger, [Plan((offsets(start, end),))], cluster_id=CLUSTER)
        self.commit(planned, planned.batch, {TopicPartition("orders", 0): RangeRead(end - start)})
        return planned.batch.batch_id

    def known(self) -> GroupTable | None:
        with self.engine.connect() as conn:
            return group_table(conn, self.tables, GROUP)

    def loads_into(self, target: str) -> bool:
        with self.engine.connect() as conn:
            return loads_into(conn, self.tables, GROUP, target)

    def keep_to(self, target: str) -> None:
        keep_to_table(self.claim(), ["orders"], target)


def offsets(start: int, end: int) -> OffsetRange:
    return OffsetRange("orders", 0, start, end, end, TOPIC_ID, "stored" if start else "earliest")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Warehouse]:
    warehouse = Warehouse(tmp_path / "warehouse.db")
    yield warehouse
    warehouse.engine.dispose()


class TestGroupTable:
    def test_a_group_without_a_batch_has_none(self, db: Warehouse) -> None:
        db.keep_to("old")
        assert db.known() is None

    def test_a_start_says_it_until_the_first_load(self, db: Warehouse) -> None:
        db.start("old")
        assert db.known() == (1, "initialize", "old")
        db.keep_to("new")  # nothing was loaded into the first
        db.load("new", 10, 20)

        assert db.known() == (2, "load", "new")
        assert not db.loads_into("old"), "a replay into it would be refused"
        assert db.replay("old", 0, 5) == 3
        assert db.loads_into("main.new")

    def test_an_open_load_says_it_and_an_abandoned_one_does_not(self, db: Warehouse) -> None:
        batch = db.plan("old", Plan((offsets(0, 10),)))
        assert batch is not None
        assert db.loads_into("old")

        abandon(db.claim(), batch, "of no use")
        assert db.known() == (2, "initialize", "old"), "where it began is kept"
        db.keep_to("new")


class TestKeepToTable:
    def test_another_table_is_refused(self, db: Warehouse) -> None:
        db.load("old", 0, 10)
        with pytest.raises(ForeignBatchError, match=r"'loader' loads into table 'old', last with batch 1; .* 'new'"):
            db.keep_to("new")
        assert db.loads_into("old")

    def test_a_name_of_the_same_table_is_not_another(self, db: Warehouse) -> None:
        db.load("old", 0, 10)
        db.keep_to("main.old")
        assert db.known() == (1, "load", "old")

    @pytest.mark.parametrize("name", ["old", "main.old"])
    def test_a_table_that_was_renamed_is_followed(
        self, db: Warehouse, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        db.load("old", 0, 10)
        db.replay("elsewhere", 0, 5)
        db.change("DROP TABLE new")
        db.change("ALTER TABLE old RENAME TO new")
        db.change(f"UPDATE offset_batches SET target_table = '{name}' WHERE batch_id = 1")

        with caplog.at_level(logging.WARNING):
            db.keep_to("new")

        assert db.known() == (1, "load", "new")
        assert not db.loads_into("elsewhere")
        assert f"'{name}' does not exist any more: it is assumed to be renamed to 'new'" in caplog.text

    def test_only_the_latest_attempt_follows_it(self, db: Warehouse) -> None:
        db.load("old", 0, 10)
        db.change("DROP TABLE old")
        fenced = db.claim()
        db.claim()
        with pytest.raises(FencedError):
            keep_to_table(fenced, ["orders"], "new")
        assert db.loads_into("old")

    def test_a_dot_may_be_part_of_a_name(self, db: Warehouse) -> None:
        db.change('CREATE TABLE "a.b" (id INTEGER)')
        db.load("a.b", 0, 10)
        with pytest.raises(ForeignBatchError):
            db.keep_to("new")


class TestReplayBeforeTheFirstLoad:
    def test_a_load_of_what_it_appended_is_refused(self, db: Warehouse) -> None:
        replayed = db.replay("old", 6, 10)
        with pytest.raises(
            DoubleLoadError,
            match=rf"Batch {replayed}, a replay .* orders\[0\] 6..10 to table 'old'.* another table.* upsert_key"
            r".* rewind loader --topic orders:0 --to-offset 10 ",
        ) as raised:
            db.load("main.old", 0, 20)
        assert not raised.value.retriable
        assert db.known() is None

    def test_also_where_a_later_batch_would_load_it(self, db: Warehouse) -> None:
        db.replay("old", 6, 10)
        with pytest.raises(DoubleLoadError, match="Group 'loader' begins at offset 0"):
            db.load("old", 0, 3)

    def test_the_ways_out(self, db: Warehouse) -> None:
        db.replay("old", 6, 10)
        assert db.plan("old", Plan((offsets(0, 20),)), upsert=True) is not None

    @pytest.mark.parametrize(("target", "start"), [("new", 0), ("old", 10)], ids=["another-table", "after-it"])
    def test_load_that_repeats_no_replay_is_accepted(self, db: Warehouse, target: str, start: int) -> None:
        db.replay("old", 6, 10)
        if start:
            db.start(target)
        db.load(target, start, 20)
        assert db.loads_into(target)

    def test_replaced_replay_does_not_count(self, db: Warehouse) -> None:
        replayed = db.replay("new", 6, 10)
        db.load("old", 0, 10)
        db.change(f"UPDATE offset_batches SET target_table = 'old' WHERE batch_id = {replayed}")
        db.replay("old", 5, 10, replace=True, run=TaskRun("run-2", "dag", "replay", -1, 1))
        db.change("UPDATE consumed_offsets SET offset_value = 5")
        db.load("old", 5, 20)

    def test_one_of_an_earlier_topic_does_not_matter(self, db: Warehouse) -> None:
        replayed = db.replay("old", 6, 10)
        db.change(f"UPDATE offset_ranges SET topic_id = 'earlier' WHERE batch_id = {replayed}")
        db.load("old", 0, 20)
