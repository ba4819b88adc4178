"""A commit moves rows, positions and the batch together, or nothing."""

from dataclasses import replace

import pytest
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import Gap, Position, TopicPartition
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.exceptions import BatchClosedError, PositionConflictError
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.batches import open_batch
from airflow_kafka_offsets.ledger.claims import GroupClaim
from airflow_kafka_offsets.ledger.positions import RangeRead, read_positions
from tests.support.ledgers import (
    FIRST_LOAD,
    GROUP,
    MINUTE,
    NEW,
    NEXT_LOAD,
    OLD,
    T0,
    T1,
    TOPIC_ID,
    Database,
    offset_range,
)


class TestCommit:
    def test_rows_positions_and_the_batch_move_together(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        reads = {T0: RangeRead(8, OLD, NEW), T1: RangeRead(0)}
        assert db.commit(held, batch, reads) == 1
        assert db.output() == [1]
        assert read_positions(db.ledger, GROUP) == {T0: Position(10, TOPIC_ID), T1: Position(7, TOPIC_ID)}
        assert open_batch(db.ledger, GROUP) is None
        row = db.batch(batch.batch_id)
        assert (row["state"], row["records"], row["row_count"], row["dead_letters"]) == ("committed", 8, 1, 0)
        assert row["committed_at"] is not None

    def test_the_position_is_the_end_of_the_range_also_where_it_ends_without_records(self, db: Database) -> None:
        """P03: markers and aborted records only."""
        held = db.claim()
        assert db.commit(held, db.plan(held), {T0: RangeRead(0), T1: RangeRead(0)}, write=lambda conn: 0) == 0
        assert db.positions() == {T0: 10, T1: 7}

    def test_leader_epochs_of_the_plan_are_kept_and_stored_with_the_positions(self, db: Database) -> None:
        """Those of ends without a record, too; and one of which nothing was read leaves the epoch it had."""
        held = db.claim()
        first, second = FIRST_LOAD.ranges
        plan = Plan((replace(first, end_epoch=4), replace(second, end=5, leader_epoch=3, end_epoch=4)))
        db.plan(held, plan)
        batch = open_batch(db.ledger, GROUP)
        assert batch is not None
        assert batch.ranges == plan.ranges
        db.commit(held, batch, {T0: RangeRead(0)}, write=lambda conn: 0)
        assert read_positions(db.ledger, GROUP) == {
            T0: Position(10, TOPIC_ID, 4),
            T1: Position(5, TOPIC_ID, 3),
        }

    def test_an_exception_rolls_rows_and_positions_back(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        before = db.dump()

        def write(conn: Connection) -> int:
            self_written = db.write_a_row(conn)
            assert conn.exec_driver_sql("SELECT count(*) FROM output").scalar_one() == self_written
            raise RuntimeError("the disk is full")

        with pytest.raises(RuntimeError, match="the disk is full"):
            db.commit(held, batch, write=write)
        assert db.dump() == before
        assert open_batch(db.ledger, GROUP) == batch

    def test_a_process_that_is_killed_in_the_transaction_leaves_nothing(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        before = db.dump()

        def write(conn: Connection) -> int:
            db.write_a_row(conn)
            raise SystemExit

        with pytest.raises(SystemExit):
            db.commit(held, batch, write=write)
        assert db.dump() == before

    def test_rows_are_invisible_before_the_positions(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        seen: list[tuple[list[int], dict[TopicPartition, int]]] = []

        def write(conn: Connection) -> int:
            db.write_a_row(conn)
            seen.append((db.output(), db.positions()))
            return 1

        db.commit(held, batch, write=write)
        assert seen == [([], {})]

    def test_a_batch_is_committed_once(self, db: Database) -> None:
        held = db.claim()
        batch = db.load(held)
        before = db.dump()
        with pytest.raises(PositionConflictError):
            db.commit(held, batch)
        assert db.dump() == before

    def test_a_batch_that_moves_no_position_is_committed_once_too(self, db: Database) -> None:
        held = db.claim()
        db.load(held)
        batch = db.load(held, Plan((offset_range(T0, 10, 10, target=12, how="stored"),)))
        before = db.dump()
        with pytest.raises(BatchClosedError, match=f"Batch {batch.batch_id} .* is not open any more"):
            db.commit(held, batch)
        assert db.dump() == before

    def test_an_abandoned_batch_cannot_be_committed(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        db.change("UPDATE offset_batches SET state = 'abandoned'")
        before = db.dump()
        with pytest.raises(BatchClosedError, match="committed or abandoned"):
            db.commit(held, batch)
        assert db.dump() == before

    def test_ranges_remember_what_reading_them_showed(self, db: Database) -> None:
        held = db.claim()
        db.commit(held, db.plan(held), {T0: RangeRead(8, OLD, NEW), T1: RangeRead(None)})
        rows = db.rows("SELECT * FROM offset_ranges ORDER BY topic, partition")
        assert [row["records"] for row in rows] == [8, None]
        assert [row["first_timestamp"] for row in rows] == ["2024-05-06 07:08:09.123000", None]
        assert [row["last_timestamp"] for row in rows] == ["2024-05-06 08:00:00.000000", None]

    def test_the_newest_timestamp_stays_where_a_later_batch_has_none(self, db: Database) -> None:
        held = db.claim()
        db.commit(held, db.plan(held), {T0: RangeRead(8, OLD, NEW), T1: RangeRead(1)})
        db.commit(held, db.plan(held, NEXT_LOAD), {T0: RangeRead(0)})
        rows = db.rows("SELECT * FROM consumed_offsets ORDER BY partition")
        assert [row["record_timestamp"] for row in rows] == ["2024-05-06 08:00:00.000000", None]

    def test_partitions_that_a_batch_does_not_load_stay_where_they_are(self, db: Database) -> None:
        held = db.claim()
        db.load(held)
        db.load(held, NEXT_LOAD)
        assert db.positions() == {T0: 15, T1: 7}

    def test_positions_name_the_batch_that_moved_them(self, db: Database) -> None:
        held = db.claim()
        first = db.load(held)
        second = db.load(held, NEXT_LOAD)
        rows = db.rows("SELECT partition, batch_id FROM consumed_offsets ORDER BY partition")
        assert [row["batch_id"] for row in rows] == [second.batch_id, first.batch_id]

    def test_batches_are_numbered_upwards(self, db: Database) -> None:
        held = db.claim()
        assert db.load(held).batch_id < db.load(held, NEXT_LOAD).batch_id

    def test_the_lease_begins_anew_with_the_commit(self, db: Database) -> None:
        held = db.claim(lease=MINUTE)
        before = db.lease_ends()
        db.commit(replace(held, lease=60 * MINUTE), db.plan(held))
        after = db.lease_ends()
        assert before is not None
        assert after is not None
        assert after > before

    def test_another_groups_positions_are_its_own(self, db: Database) -> None:
        held = db.claim()
        db.load(held)
        assert read_positions(db.ledger, "another") == {}


class TestPositionConflict:
    """Somebody changed positions without this package."""

    @pytest.fixture
    def planned(self, db: Database) -> tuple[GroupClaim, Batch]:
        held = db.claim()
        db.load(held)
        return held, db.plan(held, NEXT_LOAD)

    @pytest.mark.parametrize("offset", [9, 11, 15])
    def test_a_position_that_moved_is_refused_with_both_offsets(
        self, db: Database, planned: tuple[GroupClaim, Batch], offset: int
    ) -> None:
        db.change("UPDATE consumed_offsets SET offset_value = ? WHERE partition = 0", offset)
        before = db.dump()
        with pytest.raises(PositionConflictError) as raised:
            db.commit(*planned)
        assert f"starts orders[0] at offset 10, but the stored position is {offset}" in str(raised.value)
        assert db.dump() == before

    def test_a_position_that_is_gone_is_refused(self, db: Database, planned: tuple[GroupClaim, Batch]) -> None:
        db.change("DELETE FROM consumed_offsets")
        with pytest.raises(PositionConflictError, match="the stored position is missing"):
            db.commit(*planned)
        assert db.output() == [1]

    def test_a_position_that_came_before_the_first_load_is_refused(self, db: Database) -> None:
        held = db.claim()
        batch = db.plan(held)
        db.change(
            "INSERT INTO consumed_offsets (consumer_group, topic, partition, offset_value, batch_id, updated_at) "
            "VALUES (?, 'orders', 0, 3, 0, '2024-01-01 00:00:00.000000')",
            GROUP,
        )
        with pytest.raises(PositionConflictError, match=r"orders\[0\] at offset 0, but the stored position is 3"):
            db.commit(held, batch)
        assert db.output() == []

    def test_a_position_of_another_partition_does_not_matter(
        self, db: Database, planned: tuple[GroupClaim, Batch]
    ) -> None:
        db.change("UPDATE consumed_offsets SET offset_value = 0 WHERE partition = 1")
        assert db.commit(*planned) == 1


class TestGaps:
    def test_P08_a_gap_is_stored_and_the_position_moves_over_it(self, db: Database) -> None:
        held = db.claim()
        db.load(held)
        gap = Gap(*T0, 10, 20, "expired", "skipped to the beginning offset (on_data_loss='skip')")
        batch = db.plan(held, Plan((offset_range(T0, 20, 25, how="skipped-gap"),), (gap,)))
        db.commit(held, batch)
        assert db.positions()[T0] == 25
        assert db.rows("SELECT * FROM offset_gaps") == [
            {
                "batch_id": batch.batch_id,
                "topic": "orders",
                "partition": 0,
                "start_offset": 10,
                "end_offset": 20,
                "cause": "expired",
                "decision": "skipped to the beginning offset (on_data_loss='skip')",
            }
        ]

    def test_a_gap_without_records_behind_it_moves_the_position(self, db: Database) -> None:
        held = db.claim()
        db.load(held)
        plan = Plan((offset_range(T0, 20, 20, how="skipped-gap"),), (Gap(*T0, 10, 20, "expired", "skipped"),))
        db.commit(held, db.plan(held, plan), write=lambda conn: 0)
        assert db.positions()[T0] == 20

    def test_a_gap_begins_at_the_stored_position_or_nothing_is_written(self, db: Database) -> None:
        held = db.claim()
        db.load(held)
        plan = Plan((offset_range(T0, 20, 25, how="skipped-gap"),), (Gap(*T0, 12, 20, "expired", "skipped"),))
        with pytest.raises(PositionConflictError, match="at offset 12, but the stored position is 10"):
            db.commit(held, db.plan(held, plan))
