"""Rewinds that also take back what was loaded: exactly what is reopened."""

from __future__ import annotations

import sqlite3
from collections import Counter

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeadLetters, Limits, replay
from airflow_kafka_offsets.exceptions import ConfigurationError, RewindConflictError, TargetError
from airflow_kafka_offsets.ledger import replaced_output
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.rewinding.execution import executed_by
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.topics import create_topic, delete_topic
from tests.support.clients import produce
from tests.support.loads import BESIDE_OTHERS, TopicFactory, names, rows
from tests.support.rewinds import TARGET, Rewinder, once, only

pytestmark = pytest.mark.server


KEPT = {
    "postgresql": (
        "CREATE FUNCTION keep() RETURNS trigger AS 'BEGIN RETURN NULL; END' LANGUAGE plpgsql",
        "CREATE TRIGGER keeps BEFORE DELETE ON target FOR EACH ROW WHEN (OLD._kafka_offset <> 7) "
        "EXECUTE FUNCTION keep()",
    ),
    "sqlite": (
        "CREATE TRIGGER keeps BEFORE DELETE ON target WHEN OLD._kafka_offset <> 7 BEGIN SELECT RAISE(IGNORE); END",
    ),
}
"""Statements after which only one row of the target can be deleted."""


def dead_letters(rewinder: Rewinder) -> dict[int, int]:
    """How many dead letters there are of each offset."""
    found = rows(rewinder.loader.engine, "SELECT offset_value FROM dead_letters")
    return dict(sorted(Counter(offset for (offset,) in found).items()))


class TestReplace:
    VALUES = (*names(0, 3), b"{not json", *names(4, 3), b"[]", *names(8, 2))

    @pytest.mark.broker
    def test_dead_letters_go_with_the_rows(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name = topic()
        produce(rewinder.loader.kafka, name, self.VALUES)
        rewinder.loader(name, on_bad_record=DeadLetters())
        assert dead_letters(rewinder) == {3: 1, 7: 1}

        done = rewinder("to-offset", 5, replace=TARGET)

        assert (done.rows_removed, done.dead_letters_removed) == (4, 1)
        assert dead_letters(rewinder) == {3: 1}
        rewinder.prove()
        rewinder.loader(name, on_bad_record=DeadLetters())
        assert dead_letters(rewinder) == {3: 1, 7: 1}
        assert rewinder.times(name) == once((0, 3), (4, 7), (8, 10))
        rewinder.prove()

    def test_without_it_dead_letters_are_set_aside_again(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name = topic()
        produce(rewinder.loader.kafka, name, self.VALUES)
        rewinder.loader(name, on_bad_record=DeadLetters())

        rewinder("to-offset", 5)
        rewinder.loader(name, on_bad_record=DeadLetters())

        assert dead_letters(rewinder) == {3: 1, 7: 2}
        assert rewinder.times(name) == once((0, 3), (4, 7), (8, 10), (5, 7), (8, 10))
        rewinder.prove()

    def test_every_copy_of_what_is_reopened_goes(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name = topic()
        produce(rewinder.loader.kafka, name, names(0, 10))
        rewinder.loader(name, limits=Limits(max_records=4))
        rewinder("to-offset", 6)
        rewinder.loader(name)
        assert rewinder.times(name) == once((0, 10), (6, 10))

        assert rewinder("to-offset", 5, replace=TARGET).rows_removed == 9

        assert rows(
            rewinder.loader.engine,
            "SELECT replaced_batch_id, row_count FROM replaced_output ORDER BY replaced_batch_id",
        ) == [(2, 3), (3, 2), (5, 4)]
        rewinder.prove()
        rewinder.loader(name)
        assert rewinder.times(name) == once((0, 10))
        rewinder.prove()

    def test_forgotten_at_first_it_can_be_given_later(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name = topic()
        produce(rewinder.loader.kafka, name, names(0, 10))
        rewinder.loader(name)
        rewinder("to-offset", 5)
        assert only(rewinder.preview("to-offset", 5)).reread == (5, 10)

        done = rewinder("to-offset", 5, replace=TARGET)

        assert (done.moved, done.rows_removed) == (0, 5)
        assert rewinder.history()[-1] == (done.batch_id, "rewind", "committed")
        assert rewinder.times(name) == once((0, 5))
        rewinder.prove()
        with pytest.raises(RewindConflictError, match="removed the rows of the offsets to load again"):
            rewinder("undo")
        # There is nothing left to take back.
        assert rewinder("to-offset", 5, replace=TARGET).batch_id is None
        rewinder.loader(name)
        assert rewinder.times(name) == once((0, 10))
        rewinder.prove()

    @pytest.mark.parametrize("offset", [2, 7], ids=["further-back", "forward"])
    def test_replace_removes_rows_that_an_earlier_rewind_left(
        self, rewinder: Rewinder, topic: TopicFactory, offset: int
    ) -> None:
        name = topic()
        produce(rewinder.loader.kafka, name, names(0, 10))
        rewinder.loader(name)
        rewinder("to-offset", 5)

        assert rewinder("to-offset", offset, replace=TARGET).rows_removed == 10 - offset

        assert rewinder.times(name) == once((0, offset))
        rewinder.prove()
        rewinder.loader(name)
        assert rewinder.times(name) == once((0, 10))
        rewinder.prove()

    @pytest.mark.parametrize("engine", ["postgresql", "sqlite"], indirect=True)
    def test_a_table_that_keeps_its_rows_moves_nothing(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name, engine = topic(), rewinder.loader.engine
        produce(rewinder.loader.kafka, name, names(0, 10))
        rewinder.loader(name)
        with engine.begin() as conn:
            for statement in KEPT[engine.dialect.name]:
                conn.exec_driver_sql(statement)

        with pytest.raises(TargetError, match=r"Table 'target' keeps 4 rows of the offsets to replace: a trigger"):
            rewinder("to-offset", 5, replace=TARGET)

        assert rewinder.times(name) == once((0, 10))
        rewinder.prove()

    def test_replace_removes_output_of_the_scope_alone(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name = topic(partitions=3)
        for partition in range(3):
            produce(rewinder.loader.kafka, name, names(0, 10), partition)
        rewinder.loader(name)
        rewinder("to-offset", 4, f"{name}:0")
        rewinder("to-offset", 6, f"{name}:1")

        done = rewinder("to-offset", 4, replace=TARGET)

        assert (done.moved, done.rows_removed) == (2, 18)
        assert rewinder.positions(name) == {0: 4, 1: 4, 2: 4}
        rewinder.prove()
        rewinder.loader(name)
        assert rows(rewinder.loader.engine, "SELECT count(*) FROM target") == [(30,)]
        rewinder.prove()

    def test_replace_removes_rows_that_a_replay_left_beyond_the_position(
        self, rewinder: Rewinder, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(rewinder.loader.kafka, name, names(0, 10))
        rewinder.loader(name, start="latest")
        replay(
            rewinder.loader.pipeline([name]),
            {name: {0: (0, 10)}},
            kafka_config=rewinder.loader.config,
            engine=rewinder.loader.engine,
            launcher=rewinder.loader.launcher,
            replace=True,
        )
        rewinder("to-offset", 5)

        assert rewinder("to-offset", 3, replace=TARGET).rows_removed == 7

        rewinder.prove()
        rewinder.loader(name)
        assert rewinder.times(name) == once((0, 10))
        rewinder.prove()

    @pytest.mark.broker
    def test_only_the_rows_of_the_topic_that_is_there_now_go(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name = topic()
        servers = rewinder.loader.kafka.bootstrap_servers
        produce(rewinder.loader.kafka, name, names(0, 10))
        rewinder.loader(name)
        delete_topic(servers, name)
        create_topic(servers, name)
        produce(rewinder.loader.kafka, name, names(10, 6))
        rewinder("to-earliest")
        rewinder.loader(name)
        rewinder("to-offset", 4)

        assert rewinder("to-offset", 3, replace=TARGET).rows_removed == 3

        assert rewinder.times(name) == once((0, 10), (0, 3))
        rewinder.prove()

    def test_a_task_instance_that_only_replaced_does_not_again(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name, run = topic(), TaskRun("run", "dag", "task")
        produce(rewinder.loader.kafka, name, names(0, 10))
        rewinder.loader(name)
        rewinder("to-offset", 5)
        done = rewinder("to-offset", 5, replace=TARGET, run=run)
        rewinder.loader(name)

        found = executed_by(Ledger(rewinder.loader.engine), run, "loader", Scenario.of("to-offset", 5), {}, TARGET)

        assert found is not None
        assert found[1] == done
        assert rewinder("to-offset", 5, replace=TARGET, run=run).batch_id == done.batch_id
        assert rewinder.times(name) == once((0, 10))

    def test_only_the_rows_of_the_group_go(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name, apart = topic(), topic()
        other = Rewinder(rewinder.loader, "other")
        for one in (name, apart):
            produce(rewinder.loader.kafka, one, names(0, 10))
        rewinder.loader(name, apart, **BESIDE_OTHERS)
        rewinder.loader(name, group_id="other", **BESIDE_OTHERS)

        assert rewinder("to-offset", 4, name, replace=TARGET).rows_removed == 6

        assert rewinder.times(name) == once((0, 4), (0, 10))
        assert rewinder.times(apart) == once((0, 10))
        rewinder.prove()
        other.prove()
        rewinder.loader(name, apart, **BESIDE_OTHERS)
        assert rewinder.times(name) == once((0, 10), (0, 10))
        rewinder.prove()
        other.prove()

    @pytest.mark.parametrize("engine", ["sqlite"], indirect=True)  # which says of the smallest table how it is read
    @pytest.mark.parametrize("most", [500, 1], ids=["numbers", "query"])
    def test_only_the_batches_concerned_are_looked_at(
        self, rewinder: Rewinder, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch, most: int
    ) -> None:
        name = topic()
        produce(rewinder.loader.kafka, name, [*names(0, 11), b"{not json"])
        rewinder.loader(name, limits=Limits(max_records=4), on_bad_record=DeadLetters())
        monkeypatch.setattr(replaced_output, "_MOST_BOUND", most)
        plans: list[str] = []

        def explain(
            conn: object, cursor: sqlite3.Cursor, statement: str, values: tuple[object, ...], *_: object
        ) -> None:
            # One row is enough to find out whether the table was renamed.
            reads = "FROM target" in statement and "LIMIT" not in statement
            if reads or statement.startswith("DELETE FROM dead_letters"):
                steps = cursor.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
                plans.extend(step[3] for step in steps if {"target", "dead_letters"} & {*step[3].split()})

        sa.event.listen(rewinder.loader.engine, "before_cursor_execute", explain)
        done = rewinder("to-offset", 5, replace=TARGET)

        assert (done.rows_removed, done.dead_letters_removed) == (6, 1)
        assert len(plans) >= 4
        assert [plan for plan in plans if not plan.startswith("SEARCH")] == []
        rewinder.prove()

    def test_a_table_without_the_columns_is_refused(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name = topic()
        produce(rewinder.loader.kafka, name, names(0, 10))
        with rewinder.loader.engine.begin() as conn:
            conn.execute(sa.text("CREATE TABLE target (id BIGINT, name TEXT, _batch_id BIGINT, _kafka_topic TEXT)"))
        rewinder.loader(name)

        with pytest.raises(
            ConfigurationError,
            match=r"Table 'target' has no column _kafka_partition, _kafka_offset: .* Nothing was changed",
        ):
            rewinder("to-earliest", replace=TARGET)

        assert rewinder.positions(name) == {0: 10}
        assert rewinder.history() == [(1, "load", "committed")]
        assert rows(rewinder.loader.engine, "SELECT count(*) FROM target") == [(10,)]
        # Without replacing, it can be rewound.
        rewinder("to-offset", 5)
        rewinder.loader(name)
        assert rows(rewinder.loader.engine, "SELECT count(*) FROM target") == [(15,)]

    def test_rows_that_do_not_say_their_offset_are_refused(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name = topic()
        produce(rewinder.loader.kafka, name, names(0, 10))
        rewinder.loader(name)
        with rewinder.loader.engine.begin() as conn:
            conn.execute(sa.text("UPDATE target SET _kafka_offset = NULL WHERE id = 7"))

        with pytest.raises(ConfigurationError, match="holds rows of batch 1 without topic, partition and"):
            rewinder("to-earliest", replace=TARGET)

        assert rewinder.positions(name) == {0: 10}
        assert rows(rewinder.loader.engine, "SELECT count(*) FROM target") == [(10,)]

    def test_another_table_than_the_groups_is_refused(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name = topic()
        produce(rewinder.loader.kafka, name, names(0, 10))
        rewinder.loader(name)

        with pytest.raises(ConfigurationError, match=r"Batch 1 .* into 'target', not into 'elsewhere'"):
            rewinder("to-earliest", replace=SqlTable("elsewhere"))

        assert rewinder.positions(name) == {0: 10}

    def test_a_table_that_was_dropped_is_filled_again(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name = topic()
        produce(rewinder.loader.kafka, name, names(0, 10))
        rewinder.loader(name)
        with rewinder.loader.engine.begin() as conn:
            conn.execute(sa.text("DROP TABLE target"))

        assert rewinder("to-earliest", replace=TARGET).rows_removed == 0

        rewinder.loader(name)
        assert rewinder.times(name) == once((0, 10))
