"""`kafka-offsets show` and `lag`: positions, ends of logs, and what lies between."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Reading
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.claims import claim_group
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger
from devstack.kafka import KafkaBroker
from devstack.topics import delete_records, delete_topic
from tests.support.clients import produce, producer
from tests.support.command_line import DB, CommandLine, data, failed, produce_at
from tests.support.loads import Loader, TopicFactory, names

pytestmark = pytest.mark.server


class TestShow:
    @pytest.mark.broker
    def test_L01_every_partition_with_both_ends_of_its_log(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic(partitions=2)
        produce(kafka, name, names(0, 5))
        inline_loader(name)
        delete_records(kafka.bootstrap_servers, name, 2)
        produce(kafka, name, names(5, 3))

        first, second = data(cli, "show", "loader")

        assert {key: first[key] for key in ("group", "topic", "partition")} == {
            "group": "loader",
            "topic": name,
            "partition": 0,
        }
        assert [first[key] for key in ("beginning_offset", "current_offset", "log_end_offset", "lag")] == [2, 5, 8, 3]
        assert (first["lost"], first["headroom"], first["flags"], first["error"]) == (0, 3, [], None)
        assert 0 < first["time_lag_seconds"] < 600
        # Kafka's own default.
        assert 6 * 86_400 < first["headroom_time_seconds"] <= 7 * 86_400
        assert (second["lag"], second["time_lag_seconds"], second["headroom_time_seconds"]) == (0, 0, None)

    def test_show_counts_expired_offsets_as_lost_and_not_as_lag(
        self, cli: CommandLine, kafka: KafkaBroker, loaded_topic: str
    ) -> None:
        produce(kafka, loaded_topic, names(5, 5))
        delete_records(kafka.bootstrap_servers, loaded_topic, 7)

        (one,) = data(cli, "show", "loader")

        assert (one["lag"], one["lost"], one["headroom"], one["headroom_time_seconds"]) == (3, 2, -2, 0)

    def test_L02_a_topic_without_positions_is_flagged(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        known, new = topic(), topic()
        produce(kafka, new, names(0, 4))
        inline_loader(known)

        (earliest,) = data(cli, "show", "loader", "--topic", new)
        (latest,) = data(cli, "show", "loader", "--topic", new, "--start", "latest")
        (since,) = data(cli, "show", "loader", "--topic", new, "--start", "PT1H")

        assert (earliest["current_offset"], earliest["lag"], earliest["flags"]) == (None, 4, ["no position"])
        assert (latest["lag"], since["lag"]) == (0, 4)

    @pytest.mark.broker
    def test_L07_the_end_is_that_of_the_isolation_level(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(kafka, name, names(0, 7))
        inline_loader(name)
        writer = producer(kafka, **{"transactional.id": name})
        writer.init_transactions()
        writer.begin_transaction()
        writer.produce(name, b"{}")
        writer.produce(name, b"{}")
        writer.flush()

        committed = data(cli, "show", "loader")
        everything = data(cli, "show", "loader", "--isolation-level", "read_uncommitted")
        writer.abort_transaction()

        assert (committed[0]["lag"], everything[0]["lag"]) == (0, 2)

    def test_headroom_in_time_follows_the_oldest_record_that_waits(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        """And not the newest that was committed: a quiet topic is no danger."""
        day = 86_400_000
        name = topic(retention_ms=10 * day)
        now_ms = int(datetime.now(UTC).timestamp() * 1000)
        produce_at(kafka, name, [now_ms - 9 * day])
        inline_loader(name)
        produce_at(kafka, name, [now_ms - 2 * day, now_ms - day])

        (one,) = data(cli, "show", "loader")

        assert one["headroom_time_seconds"] == pytest.approx(8 * 86_400, abs=600)
        assert one["time_lag_seconds"] == pytest.approx(9 * 86_400, abs=600)

    @pytest.mark.parametrize(
        "config",
        [{"retention_ms": -1}, {"retention_bytes": 10**9}, {"cleanup_policy": "compact"}],
        ids=["for ever", "size", "compaction"],
    )
    @pytest.mark.broker
    def test_headroom_in_time_is_unknown_where_time_is_not_what_decides(
        self,
        cli: CommandLine,
        inline_loader: Loader,
        kafka: KafkaBroker,
        topic: TopicFactory,
        config: dict[str, Any],
    ) -> None:
        name = topic(**config)
        keyed(kafka, name, 2)
        inline_loader(name)
        keyed(kafka, name, 2)

        (one,) = data(cli, "show", "loader")

        assert (one["lag"], one["headroom_time_seconds"]) == (2, None)

    @pytest.mark.broker
    @pytest.mark.usefixtures("unknown_at_once")
    def test_L08_a_topic_that_is_gone_leaves_the_others_counted(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name, gone = topic(), topic(partitions=2)
        produce(kafka, name, names(0, 2))
        inline_loader(name, gone)
        produce(kafka, name, names(2, 3))
        delete_topic(kafka.bootstrap_servers, gone)

        done = cli("show", "loader", *DB, "--output", "json")

        line = failed(done, "show")
        assert "2 of 3 partitions have an error" in line
        assert gone in line
        by_topic = {row["topic"]: row for row in done.json}
        assert (by_topic[name]["lag"], by_topic[name]["error"]) == (3, None)
        assert by_topic[gone]["lag"] is None
        assert gone in by_topic[gone]["error"]

        total = cli("lag", "loader", *DB, "--output", "json")
        assert "incomplete" in failed(total, "lag")
        assert [(row["topic"], row["lag"], row["complete"]) for row in total.json] == [
            *sorted([(name, 3, True), (gone, None, False)]),
            (None, 3, False),
        ]

    def test_L09_a_position_beyond_the_end_is_flagged_and_makes_the_total_incomplete(
        self, cli: CommandLine, inline_loader: Loader, loaded_topic: str
    ) -> None:
        with inline_loader.engine.begin() as conn:
            conn.execute(sa.text("UPDATE consumed_offsets SET offset_value = 8"))

        for command, table in (("show", "beyond the end"), ("lag", "beyond the end")):
            done = cli(command, "loader", *DB, "--output", "json")
            assert f"{loaded_topic}[0]: position 8 is beyond the end offset 5" in failed(done, command)
            assert done.status == 1
            assert [row["flags"] for row in done.json] == [["beyond the end"]] * len(done.json)
            assert table in cli(command, "loader", *DB).stdout
        assert [(row["topic"], row["complete"]) for row in done.json] == [(loaded_topic, False), (None, False)]

    @pytest.mark.broker
    def test_a_position_in_an_open_transaction_is_not_beyond_the_end(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic()
        writer = producer(kafka, **{"transactional.id": name})
        writer.init_transactions()
        writer.begin_transaction()
        for number in range(4):
            writer.produce(name, names(number, 1)[0])
        writer.flush()
        inline_loader(name, reading=Reading(isolation_level="read_uncommitted"))

        (committed,) = data(cli, "show", "loader")
        (uncommitted,) = data(cli, "show", "loader", "--isolation-level", "read_uncommitted")
        writer.abort_transaction()

        for found in (committed, uncommitted):
            assert (found["current_offset"], found["lag"], found["flags"], found["error"]) == (4, 0, [], None)

    def test_an_unknown_group_is_an_error_that_names_the_known_ones(
        self, cli: CommandLine, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        inline_loader(topic())
        for command in ("show", "lag", "history", "export", "plan"):
            line = failed(cli(command, "loder", *DB), command)
            assert "'loder'" in line
            assert "'loader'" in line

    def test_another_cluster_is_an_error(self, cli: CommandLine, inline_loader: Loader, topic: TopicFactory) -> None:
        inline_loader(topic())
        with inline_loader.engine.begin() as conn:
            conn.execute(sa.text("UPDATE consumer_groups SET cluster_id = 'elsewhere'"))

        assert "'elsewhere'" in failed(cli("show", "loader", *DB), "show")

    def test_some_partitions_of_a_topic(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic(partitions=3)
        inline_loader(name)
        for partition in range(3):
            produce(kafka, name, names(0, 1 + partition), partition)

        assert [row["lag"] for row in data(cli, "show", "loader", "--topic", f"{name}:1")] == [2]
        assert [row["lag"] for row in data(cli, "lag", "loader", "--topic", f"{name}: 0, 2")] == [4, 4]

    def test_a_topic_that_does_not_exist_is_an_error(
        self, cli: CommandLine, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        inline_loader(topic())
        assert "'no-such-topic'" in failed(cli("lag", "loader", *DB, "--topic", "no-such-topic"), "lag")


class TestLag:
    def test_by_topic_and_in_total(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        one, other = sorted((topic(partitions=2), topic()))
        inline_loader(one, other)
        produce(kafka, one, names(0, 3))
        produce(kafka, other, names(0, 4))

        found = data(cli, "lag", "loader")

        assert [(row["topic"], row["lag"], row["lost"], row["complete"]) for row in found] == [
            (one, 3, 0, True),
            (other, 4, 0, True),
            (None, 7, 0, True),
        ]

    def test_a_group_of_which_nothing_is_stored_is_not_up_to_date(
        self, cli: CommandLine, kafka: KafkaBroker, engine: Engine
    ) -> None:
        initialize(Ledger(engine))
        of = Cluster({"bootstrap.servers": kafka.bootstrap_servers}).cluster_id()
        claim_group(Ledger(engine), "empty", TaskRun("r"), cluster_id=of, lease=timedelta(0))

        done = cli("lag", "empty", *DB, "--output", "json")

        assert "There are no stored positions of group 'empty' yet: name the topics" in failed(done, "lag")
        assert [row["complete"] for row in done.json] == [False]


def keyed(kafka: KafkaBroker, topic: str, count: int) -> None:
    """Records with different keys, as a compacted topic wants them."""
    writer = producer(kafka)
    for number in range(count):
        writer.produce(topic, names(number, 1)[0], key=str(number))
    assert writer.flush(30) == 0
