"""Positions that a load mirrors to a consumer group in Kafka: what Kafka's own tools see, and what a load does where it
cannot.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Coordination, Limits
from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.exceptions import KafkaUnavailableError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.commit_transaction import commit_batch
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.loading import after_commit
from airflow_kafka_offsets.loading import commit as commit_step
from airflow_kafka_offsets.loading.after_commit import AFTER_COMMIT_SECONDS, mirror, mirror_after_commit
from devstack.kafka import KafkaBroker
from devstack.process import wait_until
from devstack.topics import create_topic
from tests.kafka.test_kafka_transactions import end
from tests.support.airflow_runs import airflow_runs, airflow_uri
from tests.support.clients import Transactions, produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, names, positions
from tests.support.mirrors import at, cluster_of, committed, consumer, described, warnings

pytestmark = pytest.mark.server

# How long a mirror is waited for where no load waits for it.
OTHERS_WAIT_SECONDS = 30.0


class TestLoad:
    def test_kafkas_tools_see_the_positions_and_the_lag(
        self, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, group: str
    ) -> None:
        name = topic(partitions=3)
        for partition in range(2):
            produce(kafka, name, names(10 * partition, 5 + partition), partition)

        inline_loader(name, coordination=Coordination(mirror_to=group))

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
        inline_loader(name, coordination=Coordination(mirror_to=group))
        assert described(kafka, group) == {(name, 0): (5, 5, 0), (name, 1): (10, 10, 0), (name, 2): (2, 2, 0)}

    def test_each_commit_is_mirrored_before_the_next_one(
        self, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, group: str
    ) -> None:
        name = topic()
        produce(kafka, name, names(0, 5))
        seen: list[dict[tuple[str, int], int]] = []

        inline_loader(
            name,
            limits=Limits(max_records=2),
            coordination=Coordination(mirror_to=group),
            on_commit=lambda _: seen.append(committed(kafka, group)),
        )

        assert seen == [{}, {(name, 0): 2}, {(name, 0): 4}]
        assert committed(kafka, group) == {(name, 0): 5}

    def test_positions_that_are_stored_without_loading_are_mirrored(
        self, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, group: str
    ) -> None:
        name = topic(partitions=2)
        produce(kafka, name, names(0, 3))

        inline_loader(name, start="latest", coordination=Coordination(mirror_to=group))

        assert inline_loader.launcher.jobs == []
        assert committed(kafka, group) == {(name, 0): 3, (name, 1): 0}

    def test_only_the_loads_own_topics_are_mirrored(
        self, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, group: str
    ) -> None:
        former, name = topic(), topic()
        inline_loader(former)

        inline_loader(name, coordination=Coordination(mirror_to=group))

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

        inline_loader(name, coordination=Coordination(mirror_to=group))

        # The command counts up to the high watermark, also where a transaction is open.
        assert described(kafka, group) == {(name, 0): (4, 6, 2)}
        transactions.end()
        wait_until(lambda: end(kafka, name, "read_committed") == 7, 30, "the transaction to be visible")
        inline_loader(name, coordination=Coordination(mirror_to=group))
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
            inline_loader(name, coordination=Coordination(mirror_to=group))

            (warning,) = warnings(caplog)
            assert (
                f"2 of 2 positions are not mirrored to consumer group '{group}' in Kafka: {name}[0], {name}[1]: the "
                "group "
                "has active members, and only they may commit; stop them, or choose another name." in warning
            )
            assert committed(kafka, group) == {}
        assert_exactly_once(inline_loader.engine)
        caplog.clear()

        assert inline_loader(name, coordination=Coordination(mirror_to=group)).batches == ()

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

            def commit_and_freeze(*args: Any, **options: Any) -> Any:
                committed = commit(*args, **options)
                kafka.pause()
                committed_at.append(time.monotonic())
                return committed

            class Thaw(logging.Handler):
                """The end of the mirror brings the broker back: the load looks for more."""

                def emit(self, record: logging.LogRecord) -> None:
                    committed_at.append(time.monotonic())
                    kafka.resume()

            thaw = Thaw(logging.WARNING)
            logging.getLogger("airflow_kafka_offsets.loading.after_commit").addHandler(thaw)
            try:
                with monkeypatch.context() as patch:
                    patch.setattr(commit_step, "commit_batch", commit_and_freeze)
                    patch.setattr(after_commit, "AFTER_COMMIT_SECONDS", 2.0)
                    loader = Loader(kafka, engine, InlineLauncher())
                    assert loader("orders", coordination=Coordination(mirror_to=group)).rows == 5
            finally:
                logging.getLogger("airflow_kafka_offsets.loading.after_commit").removeHandler(thaw)

            begun, ended = committed_at
            assert ended - begun < OTHERS_WAIT_SECONDS
            (warning,) = warnings(caplog)
            assert f"of group 'loader' are not mirrored to consumer group '{group}' in Kafka (orders[0] 5)" in warning
            assert "the next load mirrors them again" in warning
            assert_exactly_once(engine)

            assert loader("orders", coordination=Coordination(mirror_to=group)).batches == ()
            assert committed(kafka, group) == {("orders", 0): 5}

    def test_a_broker_that_died_is_a_warning(
        self, postgres_engine: Engine, group: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
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
            with monkeypatch.context() as patch:
                patch.setattr(after_commit, "AFTER_COMMIT_SECONDS", AFTER_COMMIT_SECONDS)
                mirror_after_commit(cluster, group, Ledger(postgres_engine), loader.pipeline(["orders"]))

            assert time.monotonic() - begun < OTHERS_WAIT_SECONDS
            (warning,) = warnings(caplog)
            assert f"consumer group '{group}' in Kafka (orders[0] 0)" in warning
            assert "Connection refused" in warning
            with pytest.raises(KafkaUnavailableError, match=f"took the positions for consumer group '{group}'"):
                mirror(cluster, group, at("orders", 0), timeout=1)

    def test_a_database_that_cannot_be_asked_is_a_warning(
        self, inline_loader: Loader, cluster: Cluster, group: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        broken = sa.create_engine("sqlite:////nowhere/at/all.db")

        mirror_after_commit(cluster, group, Ledger(broken), inline_loader.pipeline(["orders"]))

        (warning,) = warnings(caplog)
        assert f"consumer group '{group}' in Kafka (they could not be read)" in warning
        assert "unable to open database file" in warning


@pytest.mark.long
def test_the_operator_mirrors_to_the_group_of_its_template(
    kafka: KafkaBroker, topic: TopicFactory, postgres_engine: Engine, group: str
) -> None:
    name = topic()
    produce(kafka, name, names(0, 5))

    with airflow_runs(kafka, airflow_uri(postgres_engine)) as runs:
        status, output = runs.begin("2026-01-02", topics=[name], coordination={"mirror_to": group + "-{{ ds }}"}).end()

    assert status == 0, output[-5000:]
    assert committed(kafka, f"{group}-2026-01-02") == {(name, 0): 5}
