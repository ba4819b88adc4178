"""A rewind with `replace` deletes the rows and dead letters of exactly the offsets that are read again."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import OffsetRange, Position
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
)
from airflow_kafka_offsets.ledger.batch_rows import Recipe
from airflow_kafka_offsets.ledger.commit_transaction import commit_batch
from airflow_kafka_offsets.ledger.positions import RangeRead, read_positions
from airflow_kafka_offsets.ledger.replaced_output import replace_output
from airflow_kafka_offsets.replaying.replay_batches import Replay, ReplayClaim
from airflow_kafka_offsets.rewinding.history import (
    count_removed,
)
from airflow_kafka_offsets.sinks.sql.connected_table import SqlTarget
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from tests.support.ledgers import written
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


class TestReplace:
    def test_rows_that_are_read_again_are_removed(self, loaded: Warehouse) -> None:
        batch_id = loaded.rewind("to-offset", 3, replace=TARGET)

        assert (loaded.output(), loaded.output(T1)) == ([0, 1, 2], [0, 1, 2])
        assert [(row["replaced_start_offset"], row["replaced_end_offset"]) for row in loaded.ranges(batch_id)] == [
            (3, 20),
            (3, 5),
        ]
        assert loaded.batch(batch_id)["target_table"] == "output"
        assert count_removed(loaded.ledger, batch_id) == (19, 0)
        loaded.verify()
        loaded.load({T0: 25, T1: 6})
        assert (loaded.output(), loaded.output(T1)) == (list(range(25)), list(range(6)))
        loaded.verify()

    def test_removed_output_is_counted_for_each_batch_and_partition(self, loaded: Warehouse) -> None:
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
        assert count_removed(db.ledger, batch_id) == (3, 2)
        db.verify()
        db.load({T0: 10}, aside=[6])
        db.verify()

    def test_dead_letters_alone_are_counted_too(self, db: Warehouse) -> None:
        db.load({T0: 5, T1: 3}, aside=[3, 4])
        batch_id = db.rewind("to-offset", 3, replace=TARGET, of=[T0])

        assert count_removed(db.ledger, batch_id) == (0, 2)
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
        assert read_positions(db.ledger, GROUP)[T0] == Position(12, ID)

    def test_another_table_is_refused(self, loaded: Warehouse) -> None:
        loaded.create_target("elsewhere")
        before = loaded.dump()
        with pytest.raises(ConfigurationError, match=r"Batch 1 .* into 'output', not into 'elsewhere'"):
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
        with pytest.raises(ConfigurationError, match="holds rows of batch 2 without topic"):
            loaded.rewind("to-offset", 12, replace=TARGET)
        assert loaded.dump() == before

    def test_such_a_row_of_a_batch_that_is_not_concerned_is_not(self, loaded: Warehouse) -> None:
        loaded.change("UPDATE output SET _kafka_offset = NULL WHERE _batch_id = 1 AND _kafka_offset = 3")
        loaded.rewind("to-offset", 12, replace=TARGET, of=[T0])

        assert loaded.positions()[T0] == 12

    def test_a_table_that_was_dropped_holds_nothing(self, loaded: Warehouse) -> None:
        loaded.change("DROP TABLE output")
        assert count_removed(loaded.ledger, loaded.rewind("to-earliest", replace=TARGET)) == (0, 0)

    @pytest.mark.parametrize("name", ["loaded", "again", "left_by", "select", 'odd "name"'])
    def test_any_name_of_a_table_will_do(self, db: Warehouse, name: str) -> None:
        db.change(
            f'CREATE TABLE "{name.replace(chr(34), chr(34) * 2)}" (_kafka_topic, _kafka_partition, _kafka_offset, '
            "_batch_id)"
        )
        held, batch = db.plan({T0: 5}, target=name)
        table = sa.Table(name, sa.MetaData(), autoload_with=db.engine)

        def write(conn: Connection) -> int:
            rows = [dict(zip(table.columns.keys(), (*T0, offset, batch.batch_id), strict=True)) for offset in range(5)]
            return conn.execute(table.insert(), rows).rowcount

        commit_batch(held, batch, written({T0: RangeRead(5)}, write))
        batch_id = db.rewind("to-offset", 2, replace=SqlTable(name))

        assert count_removed(db.ledger, batch_id) == (3, 0)

    def test_a_replay_replaces_what_all_generations_left(self, loaded: Warehouse) -> None:
        loaded.rewind("to-offset", 8, of=[T0])
        loaded.load({T0: 20})
        replay = Replay(
            group_id=GROUP, owner=REWINDER, scenario="5..15", recipe=Recipe("output", None, "f"), replace=True
        )
        (planned,) = replay.record(
            loaded.ledger,
            [Plan((OffsetRange(*T0, 5, 15, 15, ID, "replay"),))],
            cluster_id=CLUSTER,
        )
        batch_id = planned.batch.batch_id

        def write(conn: Connection) -> int:
            replace_output(
                conn, loaded.tables, GROUP, batch_id, TARGET.name, SqlTarget(conn, TARGET.connect(conn.engine)).remove
            )
            for offset in range(5, 15):
                conn.exec_driver_sql("INSERT INTO output VALUES (1, 'orders', 0, ?, ?)", (offset, batch_id))
            return 10

        assert isinstance(planned, ReplayClaim)
        commit_batch(planned, planned.batch, written({T0: RangeRead(10)}, write))

        assert loaded.output() == sorted([*range(20), *range(15, 20)])
        loaded.verify()
