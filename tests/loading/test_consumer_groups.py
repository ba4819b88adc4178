"""A consumer group in Kafka as the package sees it: its members and its commits."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.exceptions import ConfigurationError, NoPositionError
from airflow_kafka_offsets.kafka.cluster import Cluster, ConsumerGroup
from airflow_kafka_offsets.rewinding.previewing import import_offsets
from devstack.kafka import KafkaBroker
from devstack.process import wait_until
from tests.support.loads import TopicFactory
from tests.support.mirrors import at, consumer

pytestmark = pytest.mark.server


class TestConsumerGroup:
    @pytest.mark.parametrize("protocol", ["classic", "consumer"])
    def test_its_members_are_counted(
        self, cluster: Cluster, kafka: KafkaBroker, topic: TopicFactory, group: str, protocol: str
    ) -> None:
        name = topic()
        with consumer(kafka, group, name, protocol):
            wait_until(lambda: cluster.consumer_group(group) == ConsumerGroup("STABLE", 1), 30, "a stable group")

        assert cluster.consumer_group(group) == ConsumerGroup("EMPTY", 0)

    def test_its_commits_are_imported(self, cluster: Cluster, topic: TopicFactory, group: str) -> None:
        name = topic(partitions=3)
        cluster.commit(group, at(name, 4, 0))

        partitions = [TopicPartition(name, number) for number in range(3)]

        assert import_offsets(cluster, group, partitions) == {partitions[0]: 4, partitions[1]: 0}

    def test_importing_from_no_group_is_an_error(self, cluster: Cluster, group: str) -> None:
        with pytest.raises(NoPositionError, match=f"has no consumer group '{group}', or one that committed nothing"):
            import_offsets(cluster, group, [TopicPartition("orders", 0)])

    def test_importing_what_a_group_never_committed_is_an_error(
        self, cluster: Cluster, topic: TopicFactory, group: str
    ) -> None:
        name = topic()
        cluster.commit(group, at(name, 4))

        with pytest.raises(
            NoPositionError, match=rf"'{group}' \(state EMPTY, 0 members\) has committed nothing of a, b:"
        ):
            import_offsets(cluster, group, [TopicPartition("b", 0), TopicPartition("a", 0)])


def test_a_connection_that_no_consumer_takes_is_no_outage(kafka: KafkaBroker) -> None:
    config = {"bootstrap.servers": kafka.bootstrap_servers, "receive.message.max.bytes": 1_000_000}
    with pytest.raises(ConfigurationError, match=r"receive\.message\.max\.bytes"):
        Cluster(config).committed("anyone", [TopicPartition("orders", 0)])
