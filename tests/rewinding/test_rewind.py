"""The cases of rewinds (`docs/semantics.md`) against a real broker, on Postgres and SQLite.

After each rewind the next load reads on from the new positions, and `verify` proves the group before and after it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.scope import parse_scope
from airflow_kafka_offsets.exceptions import (
    ClusterChangedError,
    ConfigurationError,
    LogTruncatedError,
    NoPositionError,
    OpenBatchError,
    RewindConflictError,
    StagingError,
    TopicRecreatedError,
    UnknownTopicError,
)
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.task_run import TaskRun
from airflow_kafka_offsets.rewinding import previewing
from airflow_kafka_offsets.rewinding.execution import abandon_batch, executed_by
from airflow_kafka_offsets.rewinding.offsets_file import write_offsets
from airflow_kafka_offsets.rewinding.preview import RewindPreview
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from devstack.kafka import KafkaBroker
from devstack.topics import create_topic, delete_records, delete_topic
from tests.support.clients import Kafka, commit_to_kafka, more_partitions, produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.openings import at, produce_at
from tests.support.rewinds import TARGET, Rewinder, once, only

pytestmark = pytest.mark.server


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


@pytest.fixture
def rewinder(inline_loader: Loader) -> Rewinder:
    return Rewinder(inline_loader)


@pytest.fixture
def half(rewinder: Rewinder, topic: TopicFactory) -> str:
    """A topic of 200 records, of which the group has loaded 100."""
    name = topic()
    produce(rewinder.loader.kafka, name, names(0, 100))
    rewinder.loader(name)
    produce(rewinder.loader.kafka, name, names(100, 100))
    return name


def test_R01_a_preview_stores_nothing(rewinder: Rewinder, topic: TopicFactory) -> None:
    name = topic()
    produce(rewinder.loader.kafka, name, names(0, 100))
    with pytest.raises(ConfigurationError, match="nothing was ever loaded into it"):
        rewinder.preview("to-offset", 50, name)

    preview = rewinder.preview("to-offset", 50, name, new_group=True)

    one = only(preview)
    assert (one.beginning, one.end, one.old, one.new and one.new.offset) == (0, 100, None, 50)
    assert (one.difference, one.offsets_reread, one.clamped) == (None, 0, False)
    assert sa.inspect(rewinder.loader.engine).get_table_names() == []

    rewinder.execute(preview)
    assert rewinder.positions(name) == {0: 50}
    rewinder.prove()
    rewinder.loader(name)
    assert rewinder.times(name) == once((50, 100))
    rewinder.prove()


@pytest.mark.parametrize("replace", [False, True], ids=["add", "replace"])
@pytest.mark.parametrize(
    ("name", "value", "offset", "note"),
    [
        pytest.param("to-earliest", None, 0, "", id="R03-to-earliest", marks=pytest.mark.broker),
        pytest.param("to-latest", None, 200, "", id="R04-to-latest", marks=pytest.mark.broker),
        pytest.param("to-current", None, 100, "", id="R05-to-current"),
        pytest.param("shift-by", 50, 150, "", id="R07-shift-forward"),
        pytest.param("shift-by", -50, 50, "", id="R07-shift-back", marks=pytest.mark.broker),
        pytest.param("shift-by", -150, 0, "clamped: -50 is before the beginning offset", id="R08-clamped-to-beginning"),
        pytest.param("shift-by", 150, 200, "clamped: 250 is beyond the end offset", id="R09-clamped-to-end"),
    ],
)
def test_positions_move_and_the_next_load_reads_on_from_there(
    rewinder: Rewinder, half: str, name: str, value: int | None, offset: int, note: str, replace: bool
) -> None:
    preview = rewinder.preview(name, value)
    one = only(preview)
    assert one.new is not None
    assert (one.new.offset, one.note, one.clamped) == (offset, note, bool(note))
    assert (one.difference, one.offsets_reread, one.offsets_skipped) == (
        offset - 100,
        max(0, 100 - offset),
        max(0, offset - 100),
    )

    done = rewinder.execute(preview, replace=TARGET if replace else None, who="somebody", reason="a test")

    again, removed = (offset, max(offset, 100)), max(0, 100 - offset) if replace else 0
    assert (done.rows_removed, done.dead_letters_removed) == (removed, 0)
    assert rewinder.positions(half) == {0: offset}
    if offset == 100:
        assert (done.batch_id, done.moved) == (None, 0)
        assert rewinder.history() == [(1, "load", "committed")]
    else:
        assert (done.batch_id, done.moved) == (2, 1)
        assert rewinder.history() == [(1, "load", "committed"), (2, "rewind", "committed")]
        assert rows(rewinder.loader.engine, "SELECT who, reason FROM offset_batches WHERE batch_id = 2") == [
            ("somebody", "a test")
        ]
    assert rewinder.gaps() == ([(0, 100, offset, "passed over")] if offset > 100 else [])
    assert rewinder.times(half) == once((0, min(offset, 100)) if replace else (0, 100))
    rewinder.prove()

    rewinder.loader(half)
    kept = (0, min(offset, 100)) if replace else (0, 100)
    assert rewinder.times(half) == once(kept, (offset, 200)), again
    rewinder.prove()


@pytest.mark.broker
def test_R12_each_partition_is_clamped_to_its_own_log(rewinder: Rewinder, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    kafka = rewinder.loader.kafka
    produce(kafka, name, names(0, 100))
    produce(kafka, name, names(100, 10), 1)
    rewinder.loader(name)
    delete_records(kafka.bootstrap_servers, name, 20)

    preview = rewinder.preview("to-offset", 5)

    first, second = preview.partitions
    assert (first.new and first.new.offset, first.clamped, first.note) == (
        20,
        True,
        "clamped: 5 is before the beginning offset",
    )
    assert (second.new and second.new.offset, second.clamped, second.note) == (5, False, "")
    assert preview.offsets_reread == 85
    assert rewinder.execute(preview, replace=TARGET).rows_removed == 85
    rewinder.loader(name)
    # What only the target has left of the records is not touched.
    assert (rewinder.times(name), rewinder.times(name, 1)) == (once((0, 100)), once((0, 10)))
    rewinder.prove()


@pytest.mark.broker
def test_R14_an_instant_is_the_first_record_at_or_after_it(rewinder: Rewinder, topic: TopicFactory) -> None:
    name = topic(retention_ms="-1")
    produce_at(rewinder.loader.kafka, name, [number / 60 for number in range(50)])
    produce_at(rewinder.loader.kafka, name, [60 + number / 60 for number in range(50)], first=50)
    rewinder.loader(name)

    preview = rewinder.preview("to-datetime", "2026-03-01T12:30:00")

    one = only(preview)
    assert (preview.instant, one.new and one.new.offset, one.offsets_reread) == (at(30), 50, 50)
    # The same instant in another zone, and one that a record has.
    for same in ("2026-03-01T14:00:00+01:30", at(30), "2026-03-01T13:00:00Z"):
        found = only(rewinder.preview("to-datetime", same)).new
        assert found is not None
        assert found.offset == 50
    rewinder.execute(preview, replace=TARGET)
    rewinder.loader(name)
    assert rewinder.times(name) == once((0, 100))
    rewinder.prove()


def test_R19_after_the_last_record_comes_the_end(rewinder: Rewinder, half: str) -> None:
    one = only(rewinder.preview("to-datetime", datetime.now().astimezone() + timedelta(days=1)))

    assert (one.new and one.new.offset, one.note) == (200, "no record at or after that instant: the end offset")
    assert one.skipped == ((100, 200),)


def test_a_duration_counts_back_from_the_databases_clock(rewinder: Rewinder, topic: TopicFactory) -> None:
    name = topic(retention_ms="-1")
    produce_at(rewinder.loader.kafka, name, [0, 1])
    produce(rewinder.loader.kafka, name, names(2, 2))
    rewinder.loader(name)

    preview = rewinder.preview("by-duration", "PT1H")

    assert preview.instant is not None
    assert abs(preview.instant + timedelta(hours=1) - datetime.now().astimezone()) < timedelta(minutes=1)
    rewinder.execute(preview)
    rewinder.prove()
    rewinder.loader(name)
    assert rewinder.times(name) == once((0, 4), (2, 4))
    rewinder.prove()


class TestScope:
    def test_R22_only_what_is_in_the_scope_moves(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name, other = topic(partitions=3), topic()
        for partition in range(3):
            produce(rewinder.loader.kafka, name, names(10 * partition, 10), partition)
        produce(rewinder.loader.kafka, other, names(100, 5))
        rewinder.loader(name, other)

        assert rewinder("to-earliest", None, f"{name}:1").moved == 1

        assert rewinder.positions(name) == {0: 10, 1: 0, 2: 10}
        assert rewinder.positions(other) == {0: 5}
        rewinder.prove()
        rewinder.loader(name, other)
        assert [rewinder.times(name, partition) for partition in range(3)] == [
            once((0, 10)),
            once((0, 10), (0, 10)),
            once((0, 10)),
        ]
        rewinder.prove()
        # Without a scope it is all topics of the group.
        assert rewinder("to-earliest").moved == 4

    def test_what_is_not_there_is_named(self, rewinder: Rewinder, half: str) -> None:
        with pytest.raises(UnknownTopicError, match=re.escape(f"no partition {half}[4] (the topic has 1: 0..0)")):
            rewinder.preview("to-earliest", None, f"{half}:0,4")
        with pytest.raises(UnknownTopicError, match="has no topic 'no-such-topic'"):
            rewinder.preview("to-earliest", None, "no-such-topic")
        with pytest.raises(ConfigurationError, match=r"no group 'nobody'.*'loader'"):
            Rewinder(rewinder.loader, "nobody").preview("to-earliest")
        assert rewinder.positions(half) == {0: 100}


class TestFiles:
    @pytest.mark.broker
    def test_R28_what_was_exported_changes_nothing(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name = topic(partitions=3)
        for partition in range(3):
            produce(rewinder.loader.kafka, name, names(10 * partition, 3 + partition), partition)
        rewinder.loader(name)
        exported = write_offsets({TopicPartition(*tp): one for tp, one in positions(rewinder.loader.engine).items()})

        preview = rewinder.preview("from-file", exported)

        assert len(preview.partitions) == 3
        assert preview.changed == ()
        assert rewinder.execute(preview).batch_id is None
        # After other moves, it is the way back.
        rewinder("to-earliest")
        assert rewinder("from-file", exported).moved == 3
        assert rewinder.positions(name) == {0: 3, 1: 4, 2: 5}
        assert rewinder.gaps() == [], "what was loaded before is not passed over"
        rewinder.prove()

    def test_a_scope_holds_for_a_file_too(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name, other = topic(partitions=2), topic()
        for partition in range(2):
            produce(rewinder.loader.kafka, name, names(10 * partition, 5), partition)
        produce(rewinder.loader.kafka, other, names(20, 5))
        rewinder.loader(name, other)
        text = f"TOPIC,PARTITION,OFFSET\r\n{name},0,1\r\n\r\n{name},1,2\r\n{other},0,99\r\n"

        assert [
            (one.topic, one.partition, one.new and one.new.offset)
            for one in rewinder.preview("from-file", text, f"{name}:1", other).partitions
        ] == [(name, 1, 2), (other, 0, 5)]
        with pytest.raises(ConfigurationError, match=r"Nothing of from-file \(3 partitions\) is in the scope"):
            rewinder.preview("from-file", text, topic())

        rewinder("from-file", text, f"{name}:1")
        assert rewinder.positions(name) == {0: 5, 1: 2}
        rewinder.loader(name, other)
        assert rewinder.times(name, 1) == once((0, 5), (2, 5))
        rewinder.prove()

    def test_an_unknown_partition_of_a_file_is_named(self, rewinder: Rewinder, half: str) -> None:
        with pytest.raises(UnknownTopicError, match=re.escape(f"no partition {half}[7] (the topic has 1: 0..0)")):
            rewinder.preview("from-file", f"{half},0,1\n{half},7,1\n")


class TestConflicts:
    @pytest.mark.broker
    def test_R31_an_open_batch_keeps_positions_where_they_are(self, rewinder: Rewinder, half: str) -> None:
        batch = left_open(rewinder, half)
        preview = rewinder.preview("to-offset", 50)
        assert preview.open_batch == batch

        with pytest.raises(OpenBatchError, match=rf"has the open batch {batch}: .* abandon batch {batch} together"):
            rewinder.execute(preview)
        with pytest.raises(OpenBatchError, match=rf"open batch {batch}, which is not batch {batch + 1}"):
            rewinder.execute(preview, abandon=batch + 1)
        assert rewinder.positions(half) == {0: 100}
        assert rewinder.history() == [(1, "load", "committed"), (batch, "load", "planned")]

        rewinder.execute(preview, abandon=batch, replace=TARGET, who="somebody")

        assert rewinder.history() == [
            (1, "load", "committed"),
            (batch, "load", "abandoned"),
            (batch + 1, "rewind", "committed"),
        ]
        rewinder.prove()
        rewinder.loader(half)
        assert rewinder.times(half) == once((0, 200))
        rewinder.prove()

    def test_an_open_batch_can_be_abandoned_alone(self, rewinder: Rewinder, half: str) -> None:
        batch = left_open(rewinder, half)

        abandon_batch("loader", batch, engine=rewinder.loader.engine, who="somebody", reason="enough")

        assert rows(rewinder.loader.engine, f"SELECT state, reason FROM offset_batches WHERE batch_id = {batch}") == [
            ("abandoned", "abandoned by somebody: enough")
        ]
        with pytest.raises(OpenBatchError, match="it is abandoned"):
            abandon_batch("loader", batch, engine=rewinder.loader.engine)
        rewinder.loader(half)
        assert rewinder.times(half) == once((0, 200))
        rewinder.prove()

    def test_R33_a_preview_of_positions_that_moved_is_refused(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name = topic()
        produce(rewinder.loader.kafka, name, names(0, 50))
        rewinder.loader(name)
        preview = rewinder.preview("to-offset", 20)
        produce(rewinder.loader.kafka, name, names(50, 10))
        rewinder.loader(name)

        with pytest.raises(
            RewindConflictError,
            match=rf"{name}\[0\]: position 50 in the preview, position 60 now\. Nothing was changed",
        ):
            rewinder.execute(preview, replace=TARGET)

        assert rewinder.positions(name) == {0: 60}
        assert rewinder.history() == [(1, "load", "committed"), (2, "load", "committed")]
        assert rewinder.times(name) == once((0, 60))
        rewinder.prove()

    def test_a_preview_from_before_another_rewind_is_refused(self, rewinder: Rewinder, half: str) -> None:
        preview = rewinder.preview("to-offset", 20)
        rewinder("to-offset", 50)
        rewinder("to-offset", 100)  # where it was

        with pytest.raises(RewindConflictError, match="were rewound since this preview was made"):
            rewinder.execute(preview)
        assert rewinder.positions(half) == {0: 100}

    def test_a_preview_of_a_group_that_began_meanwhile_is_refused(
        self, rewinder: Rewinder, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(rewinder.loader.kafka, name, names(0, 10))
        preview = rewinder.preview("to-offset", 5, name, new_group=True)
        rewinder.loader(name)

        with pytest.raises(RewindConflictError, match=rf"{name}\[0\]: no position in the preview, position 10 now"):
            rewinder.execute(preview)
        assert rewinder.positions(name) == {0: 10}

    def test_a_preview_is_executed_as_it_was_saved(self, rewinder: Rewinder, half: str) -> None:
        saved = json.dumps(rewinder.preview("to-datetime", "2026-03-01T12:00:00").as_dict())
        # What is in the topic by then is no matter.
        delete_records(rewinder.loader.kafka.bootstrap_servers, half, 10)

        rewinder.execute(RewindPreview.from_json(saved))

        assert rewinder.positions(half) == {0: 0}


def left_open(rewinder: Rewinder, topic: str) -> int:
    """Have a load fail while it stages.

    :return: the number of its batch
    """

    class Fails(InlineLauncher):
        def __call__(self, job: StageJob) -> None:
            raise RuntimeError("no executor left")

    with pytest.raises(StagingError):
        Loader(rewinder.loader.kafka, rewinder.loader.engine, Fails())(topic)
    ((batch,),) = rows(rewinder.loader.engine, "SELECT max(batch_id) FROM offset_batches WHERE state = 'planned'")
    return int(batch)


class TestTries:
    """Of one task instance, as `KafkaRewindOperator` has them."""

    RUN = TaskRun("run-1", "dag", "rewind", -1, 1)

    def tried(
        self, rewinder: Rewinder, name: str, value: object = None, *scopes: str, replace: SqlTable | None = None
    ) -> bool:
        """
        :return: whether it rewound
        """
        scenario, engine = Scenario.of(name, value), rewinder.loader.engine
        scope = parse_scope(scopes)
        if executed_by(self.RUN, rewinder.group, scenario, engine=engine, scope=scope, replace=replace) is not None:
            return False
        rewinder(name, value, *scopes, run=self.RUN, replace=replace)
        return True

    def test_what_was_done_is_not_done_again(self, rewinder: Rewinder, half: str) -> None:
        assert self.tried(rewinder, "shift-by", -10, half)
        assert not self.tried(rewinder, "shift-by", -10, half)
        rewinder.loader(half)
        assert not self.tried(rewinder, "shift-by", "-10", half)

        assert rewinder.positions(half) == {0: 200}

    def test_with_other_parameters_it_is_another_rewind(self, rewinder: Rewinder, half: str) -> None:
        first, second = {TopicPartition(half, 0): 7}, {TopicPartition(half, 0): 8}
        wishes: list[tuple[Any, ...]] = [
            ("shift-by", -10),
            ("shift-by", -20),
            ("shift-by", -20, half),
            ("shift-by", -20, f"{half}:0"),
            ("from-file", first),
            ("from-file", second),
            ("from-file", first),
        ]
        for wish in wishes:
            assert self.tried(rewinder, *wish), wish
            assert not self.tried(rewinder, *wish), wish
        assert rewinder.positions(half) == {0: 7}
        rewinder.loader(half)

        assert self.tried(rewinder, *wishes[-1], replace=TARGET)
        assert not self.tried(rewinder, *wishes[-1], replace=TARGET)
        rewinder.loader(half)
        assert rewinder.times(half) == once((0, 200))
        rewinder.prove()


class TestHistory:
    @pytest.mark.broker
    def test_to_batch_is_the_state_before_it(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name = topic()
        kafka = rewinder.loader.kafka
        for number in range(3):
            produce(kafka, name, names(10 * number, 10))
            rewinder.loader(name)

        assert only(rewinder.preview("to-batch", 3)).offsets_reread == 10
        rewinder("to-batch", 2, replace=TARGET)  # number 4
        assert rewinder.positions(name) == {0: 10}
        rewinder.prove()
        rewinder.loader(name)  # number 5
        assert rewinder.times(name) == once((0, 30))
        assert rewinder("to-batch", 5).moved == 1
        assert rewinder.positions(name) == {0: 10}
        rewinder("to-batch", 4)
        assert rewinder.positions(name) == {0: 30}
        rewinder("to-batch", 1)
        assert rewinder.positions(name) == {0: 0}
        rewinder.prove()
        with pytest.raises(ConfigurationError, match="Group 'loader' has no batch 99: its batches are numbered 1 to 8"):
            rewinder.preview("to-batch", 99)

    def test_a_partition_that_a_batch_did_not_know_goes_where_it_began(
        self, rewinder: Rewinder, topic: TopicFactory
    ) -> None:
        name = topic(partitions=2)
        other = topic()
        kafka = rewinder.loader.kafka
        produce(kafka, name, names(0, 10))
        rewinder.loader(name)
        produce(kafka, name, names(10, 10))
        produce(kafka, other, names(20, 5))
        (second,) = rewinder.loader(name, other, start="latest").batches
        produce(kafka, other, names(25, 5))
        rewinder.loader(name, other)

        rewinder("to-batch", second)

        assert positions(rewinder.loader.engine) == {(name, 0): 10, (name, 1): 0, (other, 0): 5}
        rewinder.prove()

    def test_to_group_takes_the_positions_of_another_one(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name = topic(partitions=2)
        kafka = rewinder.loader.kafka
        produce(kafka, name, names(0, 10))
        rewinder.loader(name, group_id="other", max_records=10)
        Rewinder(rewinder.loader, "other")("to-offset", 4, f"{name}:0")
        produce(kafka, name, names(10, 5))
        produce(kafka, name, names(20, 5), 1)
        rewinder.loader(name)

        preview = rewinder.preview("to-group", "other", f"{name}:0")

        assert only(preview).offsets_reread == 11
        rewinder.execute(preview, replace=TARGET)
        assert rewinder.positions(name) == {0: 4, 1: 5}
        # The rows of the other group are its own.
        assert rewinder.times(name) == once((0, 10), (0, 4))
        rewinder.prove()
        Rewinder(rewinder.loader, "other").prove()
        with pytest.raises(ConfigurationError, match="no group 'nobody'"):
            rewinder.preview("to-group", "nobody")

    def test_a_partition_that_the_other_group_has_no_position_of_is_left(
        self, rewinder: Rewinder, topic: TopicFactory
    ) -> None:
        name, only_ours = topic(), topic()
        kafka = rewinder.loader.kafka
        for one in (name, only_ours):
            produce(kafka, one, names(0, 5))
        rewinder.loader(name, group_id="other")
        rewinder.loader(name, only_ours)

        preview = rewinder.preview("to-group", "other")

        left = next(one for one in preview.partitions if one.topic == only_ours)
        assert (left.changes, left.note) == (False, "group 'other' has no position of this partition: left as it is")


class TestUndo:
    @pytest.mark.broker
    def test_it_takes_the_last_rewind_back_and_then_itself(self, rewinder: Rewinder, half: str) -> None:
        rewinder("to-offset", 30)
        assert rewinder.preview("undo").kind == "undo"

        rewinder("undo")
        assert rewinder.positions(half) == {0: 100}
        rewinder.prove()
        rewinder("undo")
        assert rewinder.positions(half) == {0: 30}
        rewinder.prove()

        assert [kind for _, kind, _ in rewinder.history()] == ["load", "rewind", "undo", "undo"]
        assert rewinder.gaps() == [], "nothing is passed over that was not loaded"
        rewinder.loader(half)
        assert rewinder.times(half) == once((0, 100), (30, 200))
        rewinder.prove()

    def test_after_that_of_a_part_the_state_before_the_rewind_brings_the_rest_back(
        self, rewinder: Rewinder, half: str, topic: TopicFactory
    ) -> None:
        other = topic()
        produce(rewinder.loader.kafka, other, names(0, 10))
        rewinder.loader(other)
        number = rewinder("to-offset", 5).batch_id

        rewinder("undo", None, other)
        assert (rewinder.positions(half), rewinder.positions(other)) == ({0: 5}, {0: 10})
        rewinder("to-batch", number)

        assert (rewinder.positions(half), rewinder.positions(other)) == ({0: 100}, {0: 10})
        rewinder.prove()

    def test_of_a_move_forward_it_brings_back_what_was_passed_over(self, rewinder: Rewinder, half: str) -> None:
        rewinder("to-latest")
        assert rewinder.gaps() == [(0, 100, 200, "passed over")]

        rewinder("undo")

        rewinder.prove()
        rewinder.loader(half)
        assert rewinder.times(half) == once((0, 200))
        rewinder.prove()

    def test_it_is_refused_once_a_load_has_moved_on(self, rewinder: Rewinder, half: str) -> None:
        number = rewinder("to-offset", 30).batch_id
        rewinder.loader(half)

        with pytest.raises(
            RewindConflictError,
            match=rf"Rewind {number} .*to-offset 30.* cannot be undone any more: .* moved {half}\[0\] since.*to-batch {number}",
        ):
            rewinder.preview("undo")

        assert rewinder.positions(half) == {0: 200}
        # What the message says works.
        rewinder("to-batch", number)
        assert rewinder.positions(half) == {0: 100}
        rewinder.prove()

    def test_what_moved_on_outside_of_its_scope_is_left_as_it_is(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name, other = topic(partitions=2), topic()
        kafka = rewinder.loader.kafka
        for at_topic, partition in ((name, 0), (name, 1), (other, 0)):
            produce(kafka, at_topic, names(0, 10), partition)
        rewinder.loader(name, other)
        rewinder("to-offset", 4)
        rewinder.loader(other)

        for scopes in ((), (other,), (name, other)):
            with pytest.raises(RewindConflictError, match=rf"batches have moved {other}\[0\] since"):
                rewinder.preview("undo", None, *scopes)
        rewinder("undo", None, f"{name}:1")

        assert (rewinder.positions(name), rewinder.positions(other)) == ({0: 4, 1: 10}, {0: 10})
        rewinder.prove()
        rewinder.loader(name, other)
        assert (rewinder.times(name), rewinder.times(name, 1)) == (once((0, 10), (4, 10)), once((0, 10)))
        rewinder.prove()

    def test_it_is_refused_where_rows_were_removed(self, rewinder: Rewinder, half: str) -> None:
        rewinder("to-offset", 30, replace=TARGET)

        with pytest.raises(RewindConflictError, match="removed the rows that are to be loaded again"):
            rewinder.preview("undo")

        rewinder.loader(half)
        assert rewinder.times(half) == once((0, 200))
        rewinder.prove()

    def test_it_is_refused_where_there_is_nothing_to_undo(self, rewinder: Rewinder, half: str) -> None:
        with pytest.raises(NoPositionError, match="The history of group 'loader' has no rewind that could be undone"):
            rewinder.preview("undo")
        assert rewinder.positions(half) == {0: 100}

    def test_of_positions_that_were_the_first_it_removes_them(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name = topic()
        produce(rewinder.loader.kafka, name, names(0, 10))
        rewinder("to-offset", 5, name, new_group=True)

        assert rewinder("undo").moved == 1

        assert rewinder.positions(name) == {}
        rewinder.prove()
        rewinder.loader(name)
        assert rewinder.times(name) == once((0, 10))
        rewinder.prove()


class TestImport:
    @pytest.mark.broker
    def test_it_begins_a_group_where_a_consumer_group_of_kafkas_stands(
        self, rewinder: Rewinder, topic: TopicFactory
    ) -> None:
        name, kafka = topic(partitions=4), rewinder.loader.kafka
        for partition in range(4):
            produce(kafka, name, names(100 * partition, 10), partition)
        # Inside; expired since; beyond the end; none.
        commit_to_kafka(kafka, name, name, {0: 4, 1: 2, 2: 15})
        delete_records(kafka.bootstrap_servers, name, 5, 1)

        preview = rewinder.preview("import", name, name)

        assert [(one.old, one.new and one.new.offset, one.clamped, one.note) for one in preview.partitions] == [
            (None, 4, False, ""),
            (None, 5, True, "clamped: 2 is before the beginning offset"),
            (None, 10, True, "clamped: 15 is beyond the end offset"),
            (
                None,
                None,
                False,
                f"consumer group {name!r} in Kafka has committed no offset of this partition: left as it is",
            ),
        ]
        assert preview.kind == "import"
        rewinder.execute(preview)
        rewinder.prove()
        rewinder.loader(name, start="latest")
        produce(kafka, name, names(1000, 1), 3)
        rewinder.loader(name)
        assert [rewinder.times(name, partition) for partition in range(4)] == [
            once((4, 10)),
            once((5, 10)),
            {},
            once((0, 11)),
        ]
        rewinder.prove()

    def test_a_group_that_is_new_takes_the_topics_too_of_one_answer(
        self, rewinder: Rewinder, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name, kafka = topic(partitions=2), rewinder.loader.kafka
        produce(kafka, name, names(0, 10), 1)
        commit_to_kafka(kafka, name, name, {1: 4})
        asked: list[str] = []
        committed = Cluster.committed

        def counting(cluster: Cluster, group_id: str, partitions: Any = None) -> dict[TopicPartition, int]:
            asked.append(group_id)
            return committed(cluster, group_id, partitions)

        monkeypatch.setattr(Cluster, "committed", counting)

        preview = rewinder.preview("import", name)

        assert [(one.topic_partition, one.new and one.new.offset) for one in preview.partitions] == [
            (TopicPartition(name, 0), None),
            (TopicPartition(name, 1), 4),
        ]
        assert asked == [name]

    def test_a_consumer_group_without_commits_is_an_error(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        with pytest.raises(NoPositionError, match="Kafka has no consumer group 'no-such-group'"):
            rewinder.preview("import", "no-such-group", topic())

    def test_it_moves_a_group_that_has_positions(self, rewinder: Rewinder, half: str) -> None:
        commit_to_kafka(rewinder.loader.kafka, half, half, {0: 70})

        rewinder("import", half, replace=TARGET)

        assert rewinder.positions(half) == {0: 70}
        rewinder.loader(half)
        assert rewinder.times(half) == once((0, 200))
        rewinder.prove()


class TestIdentity:
    @pytest.mark.broker
    def test_new_partitions_are_moved_as_well(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name, kafka = topic(), rewinder.loader.kafka
        produce(kafka, name, names(0, 10))
        rewinder.loader(name)
        more_partitions(kafka, name, 3)
        produce(kafka, name, names(10, 10), 2)

        current = rewinder.preview("to-current")
        assert [(one.new and one.new.offset, one.note) for one in current.partitions] == [
            (10, ""),
            (None, "no position is stored"),
            (None, "no position is stored"),
        ]
        with pytest.raises(NoPositionError, match=re.escape(f"none is stored of {name}[1], {name}[2]. Nothing was")):
            rewinder.preview("shift-by", -1)
        rewinder("to-offset", 4)

        assert rewinder.positions(name) == {0: 4, 1: 0, 2: 4}
        rewinder.prove()
        rewinder.loader(name)
        assert (rewinder.times(name), rewinder.times(name, 2)) == (once((0, 10), (4, 10)), once((4, 10)))
        rewinder.prove()

    @pytest.mark.parametrize("replace", [False, True], ids=["add", "replace"])
    def test_to_earliest_is_the_way_out_of_a_recreated_topic(
        self, rewinder: Rewinder, topic: TopicFactory, replace: bool
    ) -> None:
        name, kafka = topic(partitions=2), rewinder.loader.kafka
        for partition in range(2):
            produce(kafka, name, names(10 * partition, 10), partition)
        rewinder.loader(name)
        delete_topic(kafka.bootstrap_servers, name)
        create_topic(kafka.bootstrap_servers, name, 1)
        produce(kafka, name, names(100, 4))
        with pytest.raises(TopicRecreatedError):
            rewinder.loader(name)
        with pytest.raises(
            TopicRecreatedError, match=r"shift-by counts from stored positions, and a topic was deleted"
        ):
            rewinder.preview("shift-by", -2)
        with pytest.raises(TopicRecreatedError, match=r"to-batch 1 means positions of an earlier topic"):
            rewinder.preview("to-batch", 1)

        preview = rewinder.preview("to-earliest")
        first, second = preview.partitions
        assert (first.other_topic, first.difference, first.offsets_reread) == (True, None, 0)
        assert first.note == "the old position belongs to an earlier topic of this name"
        assert (second.new, second.note) == (None, "the topic has no such partition any more: its position is removed")
        done = rewinder.execute(preview, replace=TARGET if replace else None)

        assert (done.moved, done.rows_removed) == (2, 0)
        assert rewinder.positions(name) == {0: 0}
        rewinder.prove()
        with pytest.raises(TopicRecreatedError, match="left positions of an earlier topic of the same name"):
            rewinder.preview("undo")
        rewinder.loader(name)
        # The rows of the earlier topic stay, whatever their offsets.
        assert rewinder.times(name) == once((0, 10), (0, 4))
        rewinder.prove()
        # Of the new topic only its own are replaced.
        rewinder("to-offset", 1, replace=TARGET)
        assert rewinder.times(name) == once((0, 10), (0, 1))
        rewinder.loader(name)
        assert rewinder.times(name) == once((0, 10), (0, 4))
        rewinder.prove()

    @pytest.mark.broker
    def test_a_deleted_topic_is_an_error_and_others_can_be_moved(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name, other, kafka = topic(), topic(), rewinder.loader.kafka
        for one in (name, other):
            produce(kafka, one, names(0, 5))
        rewinder.loader(name, other)
        delete_topic(kafka.bootstrap_servers, name)

        with pytest.raises(UnknownTopicError, match=f"has no topic '{name}'"):
            rewinder.preview("to-earliest")

        rewinder("to-earliest", None, other)
        assert (rewinder.positions(name), rewinder.positions(other)) == ({0: 5}, {0: 0})

    def test_a_position_beyond_a_truncated_log_goes_to_its_end(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name = topic()
        produce(rewinder.loader.kafka, name, names(0, 10))
        rewinder.loader(name)
        with rewinder.loader.engine.begin() as conn:
            # As if the log had lost its last two records with the leader that had them.
            conn.execute(sa.text("UPDATE consumed_offsets SET offset_value = 12"))
            conn.execute(sa.text("UPDATE offset_ranges SET end_offset = 12"))
        with pytest.raises(LogTruncatedError):
            rewinder.loader(name)

        assert only(rewinder.preview("shift-by", 0)).note == "clamped: 12 is beyond the end offset"
        assert rewinder.preview("to-current").changed == ()
        rewinder("to-latest")

        assert rewinder.positions(name) == {0: 10}
        produce(rewinder.loader.kafka, name, names(10, 3))
        rewinder.loader(name)
        assert rewinder.times(name) == once((0, 13))


@pytest.fixture(scope="module")
def other_kafka() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker


@pytest.mark.broker
def test_a_group_leaves_for_another_cluster_only_when_told_to(
    rewinder: Rewinder, topic: TopicFactory, other_kafka: KafkaBroker
) -> None:
    name = topic()
    produce(rewinder.loader.kafka, name, names(0, 10))
    rewinder.loader(name)
    if create_topic(other_kafka.bootstrap_servers, name):
        produce(other_kafka, name, names(100, 4))
    moved = Rewinder(Loader(other_kafka, rewinder.loader.engine, InlineLauncher()))

    with pytest.raises(ClusterChangedError, match=r"belong to Kafka cluster .* Correct the connection"):
        moved.preview("to-earliest")
    with pytest.raises(ClusterChangedError):
        moved.loader(name)
    with pytest.raises(ConfigurationError, match="leave out the scope"):
        moved.preview("to-earliest", None, name, new_cluster=True)
    for relative, value in (("to-batch", 1), ("shift-by", -1), ("to-current", None), ("undo", None)):
        with pytest.raises(ConfigurationError, match="means offsets of the cluster that group 'loader' was loaded"):
            moved.preview(relative, value, new_cluster=True)
    preview = moved.preview("to-earliest", new_cluster=True)
    assert preview.moves_cluster
    with pytest.raises(ConfigurationError, match="replace cannot be combined with a change of the cluster"):
        moved.execute(preview, replace=TARGET)
    assert rewinder.positions(name) == {0: 10}

    moved.execute(preview)

    assert moved.positions(name) == {0: 0}
    moved.prove()
    moved.loader(name)
    assert moved.times(name) == once((0, 10), (0, 4))
    moved.prove()
    with pytest.raises(ClusterChangedError):
        rewinder.preview("to-earliest")


def test_the_preview_of_another_cluster_refuses_what_would_leave_positions_behind(
    rewinder: Rewinder, topic: TopicFactory, other_kafka: KafkaBroker
) -> None:
    name = topic(partitions=2)
    for partition in range(2):
        produce(rewinder.loader.kafka, name, names(100 * partition, 10), partition)
    rewinder.loader(name)
    create_topic(other_kafka.bootstrap_servers, name, partitions=2)
    produce(other_kafka, name, names(500, 5))
    commit_to_kafka(other_kafka, "other-job", name, {0: 3})
    moved = Rewinder(Loader(other_kafka, rewinder.loader.engine, InlineLauncher()))

    for scenario, value in (("from-file", {TopicPartition(name, 0): 2}), ("import", "other-job")):
        with pytest.raises(
            ConfigurationError,
            match=rf"{scenario} .*leaves positions of the old one .*: {name}\[1\]\. Nothing was changed",
        ):
            moved.preview(scenario, value, new_cluster=True)

    moved("from-file", {TopicPartition(name, 0): 2, TopicPartition(name, 1): 0}, new_cluster=True)
    assert moved.positions(name) == {0: 2, 1: 0}
    moved.prove()


@pytest.mark.parametrize(
    ("name", "value", "more"),
    [
        ("to-earliest", None, []),
        ("shift-by", -1, []),
        ("to-datetime", "2026-03-01T12:00:00", ["list_offsets"]),
    ],
    ids=["to-earliest", "shift-by", "to-datetime"],
)
def test_a_preview_of_many_partitions_takes_a_handful_of_requests(
    inline_loader: Loader,
    topic: TopicFactory,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: Any,
    more: list[str],
) -> None:
    many = topic(partitions=200)
    rewinder = Rewinder(inline_loader)
    rewinder("to-earliest", None, many, new_group=True)
    asked: list[str] = []

    class Counted(Cluster):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            client = self._admin._client

            class Counting:
                def __getattr__(self, question: str) -> Any:
                    if question != "poll":
                        asked.append(question)
                    return getattr(client, question)

            self._admin._client = Counting()

    monkeypatch.setattr(previewing, "Cluster", Counted)

    assert len(rewinder.preview(name, value).partitions) == 200
    assert asked == ["describe_cluster", "describe_topics", "list_offsets", "list_offsets", *more]
