"""Positions are taken from the history, from another group, or from a consumer group in Kafka."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    NoPositionError,
)
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.topics import delete_records
from tests.support.clients import commit_to_kafka, produce
from tests.support.loads import BESIDE_OTHERS, TopicFactory, names, positions
from tests.support.rewinds import TARGET, Rewinder, once, only

pytestmark = pytest.mark.server


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
        rewinder.loader(name, group_id="other", limits=Limits(max_records=10), **BESIDE_OTHERS)
        Rewinder(rewinder.loader, "other")("to-offset", 4, f"{name}:0")
        produce(kafka, name, names(10, 5))
        produce(kafka, name, names(20, 5), 1)
        rewinder.loader(name, **BESIDE_OTHERS)

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
        rewinder.loader(name, group_id="other", sink=SqlTable("elsewhere"))
        rewinder.loader(name, only_ours)

        preview = rewinder.preview("to-group", "other")

        left = next(one for one in preview.partitions if one.topic == only_ours)
        assert (left.changes, left.note) == (False, "group 'other' has no position of this partition: left as it is")


class TestImport:
    @pytest.mark.broker
    def test_an_import_begins_a_group_at_the_commits_of_a_consumer_group(
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

    def test_an_import_moves_a_group_that_has_positions(self, rewinder: Rewinder, half: str) -> None:
        commit_to_kafka(rewinder.loader.kafka, half, half, {0: 70})

        rewinder("import", half, replace=TARGET)

        assert rewinder.positions(half) == {0: 70}
        rewinder.loader(half)
        assert rewinder.times(half) == once((0, 200))
        rewinder.prove()
