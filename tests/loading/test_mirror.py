"""Positions mirrored to a consumer group in Kafka: what Kafka's own tools see, and what a load does where it cannot."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.exceptions import KafkaUnavailableError, MirrorError, NoPositionError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.consumer_groups import ConsumerGroup
from airflow_kafka_offsets.ledger.commit_transaction import commit_batch
from airflow_kafka_offsets.loading import commit as commit_step
from airflow_kafka_offsets.loading.mirror import AFTER_COMMIT_SECONDS, mirror, mirror_after_commit, mirror_stored
from airflow_kafka_offsets.rewinding.lookups import import_offsets
from airflow_kafka_offsets.spark.job import StageJob
from devstack.kafka import QUICK_START, KafkaBroker
from devstack.process import wait_until
from devstack.topics import create_topic, delete_topic
from tests.kafka.test_kafka_transactions import end
from tests.support import clients
from tests.support.airflow_runs import airflow_runs, airflow_uri
from tests.support.clients import Transactions, produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, names, positions

pytestmark = pytest.mark.server


@pytest.fixture
def cluster(kafka: KafkaBroker) -> Cluster:
    return cluster_of(kafka)


def cluster_of(kafka: KafkaBroker, kind: type[Cluster] = Cluster) -> Cluster:
    return kind({"bootstrap.servers": kafka.bootstrap_servers})


@pytest.fixture
def group(topic: TopicFactory) -> str:
    """A name that no consumer group has."""
    return f"mirror-{topic()}"


def committed(kafka: KafkaBroker, group: str) -> dict[tuple[str, int], int]:
    """All that a group committed, as a client sees it that knows nothing of the package."""
    admin = clients.admin(kafka)
    answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
    return {(one.topic, one.partition): one.offset for one in answer.topic_partitions}


def described(kafka: KafkaBroker, group: str) -> dict[tuple[str, int], tuple[int, int, int]]:
    """Committed offset, end offset and lag of each partition, as Kafka's own command tells them."""
    printed = kafka.run_class(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", kafka.bootstrap_servers, "--describe", "--group", group),
        java_options=QUICK_START,
    )
    found = [line.split() for line in printed.splitlines() if line.startswith(f"{group} ")]
    return {(topic, int(partition)): tuple(map(int, told)) for _, topic, partition, *told in (one[:6] for one in found)}  # type: ignore[misc]


def at(topic: str, *offsets: int) -> dict[TopicPartition, Position]:
    """Positions by partition."""
    return {TopicPartition(topic, number): Position(offset) for number, offset in enumerate(offsets)}


@contextmanager
def consumer(kafka: KafkaBroker, group: str, topic: str, protocol: str) -> Iterator[None]:
    """An active member of a group, which left it when the context ends."""
    member = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
        }
    )
    member.subscribe([topic])

    def joined() -> bool:
        member.poll(0.1)
        return bool(member.assignment())

    try:
        wait_until(joined, 120, "the consumer to join its group")
        yield
    finally:
        member.close()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        one.getMessage()
        for one in caplog.records
        if one.levelno >= logging.WARNING
        and one.name.startswith("airflow_kafka_offsets.")
        and not one.name.endswith(".librdkafka")  # reaches nobody but this log
    ]


class TestLoad:
    def test_kafkas_tools_see_the_positions_and_the_lag(
        self, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, group: str
    ) -> None:
        name = topic(partitions=3)
        for partition in range(2):
            produce(kafka, name, names(10 * partition, 5 + partition), partition)

        inline_loader(name, mirror_to=group)

        stored = {(name, 0): 5, (name, 1): 6, (name, 2): 0}
        assert positions(inline_loader.engine) == stored
        assert committed(kafka, group) == stored
        produce(kafka, name, names(100, 4), 1)
        produce(kafka, name, names(200, 2), 2)
        logs = cluster_of(kafka).logs([name])
        assert described(kafka, group) == {
            tp: (offset, logs[TopicPartition(*tp)].end, logs[TopicPartition(*tp)].end - offset)
            for tp, offset in stored.items()
        }
        inline_loader(name, mirror_to=group)
        assert described(kafka, group) == {(name, 0): (5, 5, 0), (name, 1): (10, 10, 0), (name, 2): (2, 2, 0)}

    def test_each_commit_is_mirrored_before_the_next_batch(
        self, kafka: KafkaBroker, engine: Engine, topic: TopicFactory, group: str
    ) -> None:
        name = topic()
        produce(kafka, name, names(0, 5))
        seen: list[dict[tuple[str, int], int]] = []

        class Looking(InlineLauncher):
            def __call__(self, job: StageJob) -> None:
                seen.append(committed(kafka, group))
                super().__call__(job)

        Loader(kafka, engine, Looking())(name, max_records=2, mirror_to=group)

        assert seen == [{}, {(name, 0): 2}, {(name, 0): 4}]
        assert committed(kafka, group) == {(name, 0): 5}

    def test_positions_that_are_stored_without_loading_are_mirrored(
        self, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, group: str
    ) -> None:
        name = topic(partitions=2)
        produce(kafka, name, names(0, 3))

        inline_loader(name, start="latest", mirror_to=group)

        assert inline_loader.launcher.jobs == []
        assert committed(kafka, group) == {(name, 0): 3, (name, 1): 0}

    def test_only_the_loads_own_topics_are_mirrored(
        self, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, group: str
    ) -> None:
        former, name = topic(), topic()
        inline_loader(former)

        inline_loader(name, mirror_to=group)

        assert committed(kafka, group) == {(name, 0): 0}

    def test_no_group_is_made_where_none_is_asked_for(
        self, inline_loader: Loader, topic: TopicFactory, cluster: Cluster, group: str
    ) -> None:
        inline_loader(topic(), group_id=group)

        assert cluster.consumer_group(group) is None

    def test_the_position_behind_a_transactions_marker_is_no_lag(
        self, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, group: str
    ) -> None:
        name = topic()
        transactions = Transactions(kafka, name)
        transactions.commit(names(0, 3))
        wait_until(lambda: end(kafka, name, "read_committed") == 4, 30, "the transaction to be visible")
        transactions.begin(names(4, 2))

        inline_loader(name, mirror_to=group)

        # The command counts up to the high watermark, also where a transaction is open.
        assert described(kafka, group) == {(name, 0): (4, 6, 2)}
        transactions.end()
        wait_until(lambda: end(kafka, name, "read_committed") == 7, 30, "the transaction to be visible")
        inline_loader(name, mirror_to=group)
        assert described(kafka, group) == {(name, 0): (7, 7, 0)}

    @pytest.mark.parametrize("protocol", ["classic", "consumer"])
    def test_a_group_in_use_is_left_alone_until_its_consumers_stop(
        self,
        inline_loader: Loader,
        kafka: KafkaBroker,
        topic: TopicFactory,
        group: str,
        protocol: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        name = topic(partitions=2)
        produce(kafka, name, names(0, 5))
        with consumer(kafka, group, name, protocol):
            inline_loader(name, mirror_to=group)

            (warning,) = warnings(caplog)
            assert (
                f"2 of 2 positions are not mirrored to consumer group '{group}' in Kafka: {name}[0], {name}[1]: the group "
                "has active members, and only these may commit; stop them, or choose another name." in warning
            )
            assert committed(kafka, group) == {}
        assert_exactly_once(inline_loader.engine)
        caplog.clear()

        assert inline_loader(name, mirror_to=group).batches == ()

        assert committed(kafka, group) == {(name, 0): 5, (name, 1): 0}
        assert warnings(caplog) == []

    def test_a_broker_that_is_away_after_the_commit_delays_a_load_by_seconds(
        self,
        engine: Engine,
        group: str,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        committed_at: list[float] = []
        with KafkaBroker() as kafka:
            create_topic(kafka.bootstrap_servers, "orders")
            produce(kafka, "orders", names(0, 5))
            commit = commit_batch

            def commit_and_freeze(*args: Any, **options: Any) -> int:
                rows = commit(*args, **options)
                kafka.pause()
                committed_at.append(time.monotonic())
                return rows

            class Thaw(logging.Handler):
                """The end of the mirror brings the broker back: the load looks for more."""

                def emit(self, record: logging.LogRecord) -> None:
                    committed_at.append(time.monotonic())
                    kafka.resume()

            thaw = Thaw(logging.WARNING)
            logging.getLogger("airflow_kafka_offsets.loading.mirror").addHandler(thaw)
            try:
                with monkeypatch.context() as patch:
                    patch.setattr(commit_step, "commit_batch", commit_and_freeze)
                    loader = Loader(kafka, engine, InlineLauncher())
                    assert loader("orders", mirror_to=group).rows == 5
            finally:
                logging.getLogger("airflow_kafka_offsets.loading.mirror").removeHandler(thaw)

            begun, ended = committed_at
            assert ended - begun < AFTER_COMMIT_SECONDS + 3
            (warning,) = warnings(caplog)
            assert f"of group 'loader' are not mirrored to consumer group '{group}' in Kafka (orders[0] 5)" in warning
            assert "the next load mirrors them again" in warning
            assert_exactly_once(engine)

            assert loader("orders", mirror_to=group).batches == ()
            assert committed(kafka, group) == {("orders", 0): 5}

    def test_a_broker_that_died_is_a_warning(
        self, postgres_engine: Engine, group: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with KafkaBroker() as kafka:
            create_topic(kafka.bootstrap_servers, "orders")
            loader = Loader(kafka, postgres_engine, InlineLauncher())
            loader("orders")
            cluster = cluster_of(kafka)
            # The first group of a broker has to wait for its coordinator.
            assert mirror(cluster, group, at("orders", 0)) == {}
            kafka.kill()

            begun = time.monotonic()
            mirror_after_commit(cluster, group, postgres_engine, loader.pipeline(["orders"]))

            assert time.monotonic() - begun < AFTER_COMMIT_SECONDS + 3
            (warning,) = warnings(caplog)
            assert f"consumer group '{group}' in Kafka (orders[0] 0)" in warning
            assert "Connection refused" in warning
            with pytest.raises(KafkaUnavailableError, match=f"took the positions for consumer group '{group}'"):
                mirror(cluster, group, at("orders", 0), timeout=1)

    def test_a_database_that_cannot_be_asked_is_a_warning(
        self, inline_loader: Loader, cluster: Cluster, group: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        broken = sa.create_engine("sqlite:////nowhere/at/all.db")

        mirror_after_commit(cluster, group, broken, inline_loader.pipeline(["orders"]))

        (warning,) = warnings(caplog)
        assert f"consumer group '{group}' in Kafka (they could not be read)" in warning
        assert "unable to open database file" in warning


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

    def test_what_is_counted_as_mirrored_was_read_back(
        self, kafka: KafkaBroker, topic: TopicFactory, group: str
    ) -> None:
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

        begun = time.monotonic()
        loader("orders", mirror_to="theirs")

        assert time.monotonic() - begun < AFTER_COMMIT_SECONDS
        (warning,) = warnings(caplog)
        assert "to consumer group 'theirs' in Kafka: orders[0]: this user may not commit for the group" in warning
        assert "(ACL: Read on the group)" in warning
        with pytest.raises(
            KafkaUnavailableError, match=r"consumer group 'theirs' committed.*Group authorization failed"
        ):
            cluster_of(guarded).committed("theirs", [TopicPartition("orders", 0)])


@pytest.mark.long
def test_the_operator_mirrors_to_the_group_of_its_template(
    kafka: KafkaBroker, topic: TopicFactory, postgres_engine: Engine, group: str
) -> None:
    name = topic()
    produce(kafka, name, names(0, 5))

    with airflow_runs(kafka, airflow_uri(postgres_engine)) as runs:
        status, output = runs.begin("2026-01-02", topics=[name], mirror_to=group + "-{{ ds }}").end()

    assert status == 0, output[-5000:]
    assert committed(kafka, f"{group}-2026-01-02") == {(name, 0): 5}
