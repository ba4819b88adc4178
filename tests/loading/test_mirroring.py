"""Positions committed to a consumer group in Kafka and read back, and what of them a group refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Coordination
from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.exceptions import ConfigurationError, KafkaUnavailableError, MirrorError
from airflow_kafka_offsets.kafka.cluster import Cluster, ConsumerGroup
from airflow_kafka_offsets.loading.after_commit import mirror, mirror_stored
from devstack.kafka import KafkaBroker
from devstack.process import wait_until
from devstack.topics import create_topic, delete_topic
from tests.support import clients
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory
from tests.support.mirrors import at, cluster_of, committed, warnings

pytestmark = pytest.mark.server


class TestMirror:
    def test_a_new_name_is_a_new_group(
        self, cluster: Cluster, kafka: KafkaBroker, topic: TopicFactory, group: str
    ) -> None:
        name = topic(partitions=2)
        assert cluster.consumer_group(group) is None

        assert cluster.commit(group, at(name, 7, 0)) == {}

        assert cluster.consumer_group(group) == ConsumerGroup("EMPTY", 0)
        assert committed(kafka, group) == {(name, 0): 7, (name, 1): 0}

    def test_leader_epochs_are_committed_where_they_are_known(
        self, cluster: Cluster, kafka: KafkaBroker, topic: TopicFactory, group: str
    ) -> None:
        name = topic(partitions=2)

        cluster.commit(
            group, {TopicPartition(name, 0): Position(1, leader_epoch=4), TopicPartition(name, 1): Position(2)}
        )

        admin = clients.admin(kafka)
        answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
        assert sorted((one.partition, one.offset, one.leader_epoch) for one in answer.topic_partitions) == [
            (0, 1, 4),
            (1, 2, None),
        ]

    def test_positions_that_went_back_are_mirrored(
        self, cluster: Cluster, kafka: KafkaBroker, topic: TopicFactory, group: str
    ) -> None:
        name = topic(partitions=2)
        mirror(cluster, group, at(name, 50, 60))

        done = mirror(cluster, group, at(name, 20, 60))

        assert done == {}
        assert committed(kafka, group) == {(name, 0): 20, (name, 1): 60}

    def test_no_positions_are_nothing_to_mirror(self, cluster: Cluster, group: str) -> None:
        assert mirror(cluster, group, {}) == {}
        assert cluster.consumer_group(group) is None

    def test_partitions_of_a_deleted_topic_are_refused_and_the_others_are_not(
        self, cluster: Cluster, kafka: KafkaBroker, topic: TopicFactory, group: str
    ) -> None:
        kept, deleted = topic(), topic(partitions=2)
        stored = at(kept, 5) | at(deleted, 6, 7)
        assert mirror(cluster, group, stored) == {}
        delete_topic(kafka.bootstrap_servers, deleted)

        wait_until(lambda: len(mirror(cluster, group, stored)) == 2, 30, "the deletion")

        reason = "the cluster has no such partition"
        assert mirror(cluster, group, stored) == {TopicPartition(deleted, n): reason for n in range(2)}
        with pytest.raises(MirrorError) as raised:
            mirror_stored(cluster, group, lambda: stored)
        assert f"2 of 3 positions are not mirrored to consumer group '{group}' in Kafka" in str(raised.value)
        assert f"{deleted}[0], {deleted}[1]: {reason}." in str(raised.value)
        assert kept not in str(raised.value)

    def test_the_error_names_ten_partitions_and_counts_the_others(
        self, cluster: Cluster, topic: TopicFactory, group: str
    ) -> None:
        name = topic()

        with pytest.raises(MirrorError, match=r"12 of 13 positions") as raised:
            mirror_stored(cluster, group, lambda: at(name, *range(13)))

        assert f"{name}[10]: the cluster has no such partition; and 2 more" in str(raised.value)
        assert f"{name}[11]" not in str(raised.value)

    def test_mirrored_offsets_were_read_back(self, kafka: KafkaBroker, topic: TopicFactory, group: str) -> None:
        name = topic(partitions=2)

        class Contested(Cluster):
            """Somebody else commits to the group right after each commit."""

            def commit(
                self, group_id: str, positions: Mapping[TopicPartition, Position], *, timeout: float | None = None
            ) -> dict[TopicPartition, str]:
                refused = super().commit(group_id, positions, timeout=timeout)
                super().commit(group_id, at(name, 99))
                return refused

        done = mirror(cluster_of(kafka, Contested), group, at(name, 5, 6))

        (refused,) = done.items()
        assert refused[0] == TopicPartition(name, 0)
        assert "the group shows 99 instead of 5: another client commits to it" in refused[1]

    def test_an_attempt_that_slept_before_its_commit_leaves_the_latest_positions(
        self, cluster: Cluster, kafka: KafkaBroker, topic: TopicFactory, group: str
    ) -> None:
        name = topic()
        stored = at(name, 10)

        class Sleeping(Cluster):
            """While it sleeps before its first commit, a later attempt stores and mirrors newer positions."""

            slept = False

            def commit(
                self, group_id: str, positions: Mapping[TopicPartition, Position], *, timeout: float | None = None
            ) -> dict[TopicPartition, str]:
                nonlocal stored
                if not self.slept:
                    self.slept = True
                    stored = at(name, 25)
                    mirror_stored(cluster, group, lambda: stored)
                return super().commit(group_id, positions, timeout=timeout)

        mirror_stored(cluster_of(kafka, Sleeping), group, lambda: stored)

        assert committed(kafka, group) == {(name, 0): 25}

    def test_positions_that_never_rest_end_with_the_time(
        self, cluster: Cluster, topic: TopicFactory, group: str
    ) -> None:
        name = topic()
        looks: list[int] = []

        def moving() -> dict[TopicPartition, Position]:
            looks.append(1)
            return at(name, len(looks))

        with pytest.raises(KafkaUnavailableError, match=f"consumer group '{group}'"):
            mirror_stored(cluster, group, moving, timeout=0.5)


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaBroker]:
    """A broker with ACLs that forbid to commit offsets of the topic `secret`, and anything to the group `theirs`."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    settings = {"authorizer.class.name": authorizer, "allow.everyone.if.no.acl.found": "true"}
    with KafkaBroker(config=settings) as broker:
        for name in ("orders", "secret"):
            create_topic(broker.bootstrap_servers, name)
        admin = clients.admin(broker)
        denied = [(ResourceType.TOPIC, "secret"), (ResourceType.GROUP, "theirs")]
        rules = [
            AclBinding(
                kind,
                name,
                ResourcePatternType.LITERAL,
                "User:ANONYMOUS",
                "*",
                AclOperation.READ,
                AclPermissionType.DENY,
            )
            for kind, name in denied
        ]
        for future in admin.create_acls(rules).values():
            future.result(30)
        # The broker hears of them a moment after the controller took them.
        cluster = cluster_of(broker)
        wait_until(lambda: cluster.commit("probe", at("secret", 0)), 30, "the ACL of the topic")
        wait_until(lambda: cluster.commit("theirs", at("orders", 0)), 30, "the ACL of the group")
        yield broker


class TestWithoutPermission:
    def test_a_topic_that_may_not_be_committed_is_refused_and_the_others_are_not(
        self, guarded: KafkaBroker, group: str
    ) -> None:
        done = mirror(cluster_of(guarded), group, at("orders", 5) | at("secret", 6))

        assert done == {
            TopicPartition("secret", 0): "this user may not commit offsets of the topic (ACL: Read on the topic)"
        }
        assert committed(guarded, group) == {("orders", 0): 5}

    def test_a_group_that_may_not_be_committed_to_refuses_every_partition(
        self, guarded: KafkaBroker, engine: Engine, caplog: pytest.LogCaptureFixture
    ) -> None:
        loader = Loader(guarded, engine, InlineLauncher())

        loader("orders", coordination=Coordination(mirror_to="theirs"))

        (warning,) = warnings(caplog)
        assert "to consumer group 'theirs' in Kafka: orders[0]: this user may not commit for the group" in warning
        assert "(ACL: Read on the group)" in warning
        with pytest.raises(
            ConfigurationError, match=r"group 'theirs' committed.*needs the ACL Describe on group 'theirs'"
        ):
            cluster_of(guarded).committed("theirs", [TopicPartition("orders", 0)])
