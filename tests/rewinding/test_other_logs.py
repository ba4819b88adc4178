"""Positions of a log that is another one now: new partitions, recreated and truncated topics, another cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.exceptions import (
    ClusterChangedError,
    ConfigurationError,
    LogTruncatedError,
    TopicRecreatedError,
    UnknownTopicError,
)
from devstack.kafka import KafkaBroker
from devstack.topics import create_topic, delete_topic
from tests.support.clients import commit_to_kafka, more_partitions, produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names
from tests.support.rewinds import TARGET, Rewinder, once, only

pytestmark = pytest.mark.server


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
        shifted = rewinder.preview("shift-by", -1)
        assert [one.new and one.new.offset for one in shifted.partitions] == [9, None, None]
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
            TopicRecreatedError, match=r"shift-by counts from stored positions, and a topic was recreated"
        ):
            rewinder.preview("shift-by", -2)
        with pytest.raises(TopicRecreatedError, match=r"to-batch 1 uses positions of an earlier topic"):
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
    @pytest.mark.usefixtures("unknown_at_once")
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
        with pytest.raises(ConfigurationError, match="uses offsets of the cluster that group 'loader' was loaded"):
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
