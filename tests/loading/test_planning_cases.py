"""The cases of planning (`docs/semantics.md`) against a real broker: starts, bounds, caps, identity, lost records."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from confluent_kafka.admin import NewPartitions, NewTopic

from airflow_kafka_offsets.core.instants import CommittedBy, Start, milliseconds
from airflow_kafka_offsets.core.offsets import TopicPartition as Partition
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    DataLossError,
    DeadLetterError,
    LogTruncatedError,
    NoPositionError,
    OlderLedgerError,
    RecordError,
    StagingError,
    TopicRecreatedError,
    UnknownTopicError,
)
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.ledger.task_run import TaskRun
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.verification.verify import verify
from devstack.kafka import KafkaBroker
from devstack.process import wait_until
from devstack.topics import create_topic, delete_records, delete_topic
from tests.support import clients
from tests.support.clients import Kafka, Transactions, commit_to_kafka, produce, producer
from tests.support.inline import Fails, InlineLauncher
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, names, positions, rows
from tests.support.rewinds import Rewinder

pytestmark = pytest.mark.server

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEPT: dict[str, Any] = {"retention_ms": "-1"}  # records of that day would expire at once


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def produce_at(kafka: Kafka, topic: str, minutes: Sequence[float], *, first: int = 0, partition: int = 0) -> None:
    """Records with ids from `first` on, whose timestamps are so many minutes after noon."""
    writer = producer(kafka)
    for number, value in zip(minutes, names(first, len(minutes)), strict=True):
        writer.produce(topic, value, partition=partition, timestamp=milliseconds(at(number)))
    assert writer.flush(30) == 0


def left_open(loader: Loader, *topics: str, **options: Any) -> int:
    """Plan a batch that is not staged.

    :return: its number
    """
    with pytest.raises(StagingError, match="no executor left"):
        Loader(loader.kafka, loader.engine, Fails())(*topics, **options)
    ((batch,),) = rows(loader.engine, "SELECT batch_id FROM offset_batches WHERE state = 'planned'")
    return int(batch)


def ids(loader: Loader, table: str = "target") -> list[int]:
    return [found for (found,) in rows(loader.engine, f"SELECT id FROM {table} ORDER BY id")]


class TestFirstRun:
    @pytest.mark.parametrize(
        ("start", "expected"),
        [
            ("2026-03-01T12:02:00", [2, 3]),
            (at(2), [2, 3]),
            (at(2.5), [3]),
            ("2026-03-01T13:32:00+01:30", [2, 3]),
            (at(60), []),
        ],
    )
    def test_a_timestamp_is_the_first_record_at_or_after_it(
        self, inline_loader: Loader, topic: TopicFactory, start: str | datetime, expected: list[int]
    ) -> None:
        name = topic(**KEPT)
        produce_at(inline_loader.kafka, name, [0, 1, 2, 3])

        inline_loader(name, start=start)

        assert ids(inline_loader) == expected
        # Where no record is that new, the end is stored: what comes next is not missed.
        produce_at(inline_loader.kafka, name, [61], first=100)
        inline_loader(name, start=start)
        assert ids(inline_loader) == [*expected, 100]

    def test_a_duration_counts_back_from_now(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic(**KEPT)
        produce_at(inline_loader.kafka, name, [0])  # months ago
        produce(inline_loader.kafka, name, names(1, 2))  # now

        inline_loader(name, start=timedelta(hours=1))

        assert ids(inline_loader) == [1, 2]

    @pytest.mark.broker
    def test_a_record_of_the_future_hides_what_is_behind_it(  # P07
        self, inline_loader: Loader, topic: TopicFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        name = topic(message_timestamp_after_max_ms=str(2**62), **KEPT)
        kafka = inline_loader.kafka
        produce_at(kafka, name, [0])
        produce_at(kafka, name, [10 * 365 * 24 * 60], first=1)
        produce(kafka, name, names(2, 1))

        with caplog.at_level(logging.WARNING):
            inline_loader(name, start=timedelta(minutes=1))

        assert ids(inline_loader) == [1, 2]
        (warning,) = [record.getMessage() for record in caplog.records if "lies in the future" in record.getMessage()]
        assert f"{name}[0]: the first record at or after" in warning
        assert "is at offset 1" in warning

    @pytest.mark.broker
    def test_a_timestamp_behind_all_dates_is_found_by_a_search_by_time(
        self, inline_loader: Loader, topic: TopicFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        name = topic(message_timestamp_after_max_ms=str(2**63 - 1), **KEPT)
        produce(inline_loader.kafka, name, names(0, 1), timestamp=milliseconds(NOON) * 1000)

        with pytest.raises(RecordError, match=f"{name}' partition 0 offset 0"):
            inline_loader(name, start=timedelta(hours=1))

        assert "its timestamp 9999-12-31 23:59:59 UTC lies in the future" in caplog.text

    @pytest.mark.broker
    def test_another_groups_commits(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic(partitions=3)
        for partition in range(3):
            produce(inline_loader.kafka, name, names(partition * 10, 5), partition)
        commit_to_kafka(inline_loader.kafka, f"old-{name}", name, {0: 3, 1: 5})

        inline_loader(name, start=CommittedBy(f"old-{name}"))

        # Partition 2, of which the group committed nothing, from its beginning.
        assert ids(inline_loader) == [3, 4, *range(20, 25)]
        assert positions(inline_loader.engine) == {(name, partition): 5 for partition in range(3)}

    def test_a_group_that_committed_nothing_is_named(self, inline_loader: Loader, topic: TopicFactory) -> None:
        with pytest.raises(NoPositionError, match="Consumer group 'no-such-group' has committed nothing of"):
            inline_loader(topic(), start=CommittedBy("no-such-group"))

    def test_commits_outside_of_the_log_are_not_taken(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic(partitions=2)
        kafka = inline_loader.kafka
        for partition in range(2):
            produce(kafka, name, names(partition * 10, 5), partition)
        group = f"old-{name}"
        commit_to_kafka(kafka, group, name, {0: 2, 1: 5})
        delete_records(kafka.bootstrap_servers, name, 4)

        with pytest.raises(DataLossError, match=rf"{name}\[0\]: position 2, beginning offset 4, 2 offsets gone"):
            inline_loader(name, start=CommittedBy(group))
        commit_to_kafka(kafka, group, name, {1: 9})
        with pytest.raises(LogTruncatedError, match=rf"{name}\[1\]: position 9 is beyond the end offset 5"):
            inline_loader(name, start=CommittedBy(group), on_data_loss="skip")
        commit_to_kafka(kafka, group, name, {1: 5})
        inline_loader(name, start=CommittedBy(group), on_data_loss="skip")

        assert ids(inline_loader) == [4]
        assert rows(inline_loader.engine, "SELECT start_offset, end_offset FROM offset_gaps") == [(2, 4)]

    @pytest.mark.parametrize(
        ("start", "begun"),
        [(at(20), {0: 3, 1: 2}), (CommittedBy("old"), {0: 1, 1: 3}), ("earliest", {0: 0, 1: 0})],
        ids=["time", "group", "earliest"],
    )
    def test_where_a_group_begins_is_decided_once(
        self, inline_loader: Loader, topic: TopicFactory, start: Start, begun: dict[int, int]
    ) -> None:
        name = topic(partitions=3, **KEPT)
        kafka = inline_loader.kafka
        produce_at(kafka, name, [0, 1, 2, 30, 31])
        produce_at(kafka, name, [0, 1, 30, 31, 32], first=10, partition=1)
        if isinstance(start, CommittedBy):
            start = CommittedBy(f"old-{name}")
            commit_to_kafka(kafka, start.group_id, name, begun)
        batch = left_open(inline_loader, name, start=start)
        # The partition without records has its position; the others have none before their first batch is committed.
        assert positions(inline_loader.engine) == {(name, 2): 0}

        abandon_batch("loader", batch, engine=inline_loader.engine, who="somebody")
        assert positions(inline_loader.engine) == {(name, 2): 0} | {(name, p): offset for p, offset in begun.items()}
        assert rows(
            inline_loader.engine, "SELECT kind, target_table, reason FROM offset_batches ORDER BY batch_id DESC LIMIT 1"
        ) == [("start", "target", f"where batch {batch} began")]
        inline_loader(name, start=start)

        assert ids(inline_loader) == [*range(begun[0], 5), *range(10 + begun[1], 15)]
        verify("loader", sink=SqlTable("target"), engine=inline_loader.engine, kafka_config=inline_loader.config)

    def test_a_first_batch_whose_records_expire_leaves_a_gap_from_where_it_began(
        self, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic(partitions=3, **KEPT)
        kafka = inline_loader.kafka
        produce_at(kafka, name, [0, 1, 2, 30, 31])
        produce_at(kafka, name, [0, 1, 30, 31, 32], first=10, partition=1)
        left_open(inline_loader, name, start=at(20))
        delete_records(kafka.bootstrap_servers, name, 3, 1)

        inline_loader(name, start=at(20), on_data_loss="skip")

        assert ids(inline_loader) == [3, 4, 13, 14]
        assert rows(inline_loader.engine, "SELECT partition, start_offset, end_offset FROM offset_gaps") == [(1, 2, 3)]
        verify("loader", sink=SqlTable("target"), engine=inline_loader.engine, kafka_config=inline_loader.config)

    def test_a_rewind_that_abandons_the_first_batch_chooses_where_it_says(
        self, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic(partitions=3, **KEPT)
        produce_at(inline_loader.kafka, name, [0, 1, 2, 30, 31])
        produce_at(inline_loader.kafka, name, [0, 1, 30, 31, 32], first=10, partition=1)
        batch = left_open(inline_loader, name, start=at(20))

        Rewinder(inline_loader)("to-offset", 4, f"{name}:0", abandon=batch)
        assert positions(inline_loader.engine) == {(name, 0): 4, (name, 1): 2, (name, 2): 0}
        inline_loader(name, start=at(20))

        assert ids(inline_loader) == [4, 12, 13, 14]
        verify("loader", sink=SqlTable("target"), engine=inline_loader.engine, kafka_config=inline_loader.config)

    @pytest.mark.parametrize("how", ["group", "time"])
    def test_a_first_offset_beyond_the_end_that_was_asked_for_before_is_no_cut_log(
        self, inline_loader: Loader, topic: TopicFactory, how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name, kafka = topic(**KEPT), inline_loader.kafka
        produce_at(kafka, name, [0, 1, 2])
        question: Any = Cluster.committed if how == "group" else Cluster.offsets_for_times
        start = CommittedBy(f"old-{name}") if how == "group" else at(30)

        def arrives_meanwhile(cluster: Cluster, *args: Any) -> Any:
            produce_at(kafka, name, [10, 20, 30, 40], first=3)
            commit_to_kafka(kafka, f"old-{name}", name, {0: 5})
            return question(cluster, *args)

        monkeypatch.setattr(Cluster, question.__name__, arrives_meanwhile)
        inline_loader(name, start=start)

        assert ids(inline_loader) == [5, 6]

    @pytest.mark.broker
    def test_a_commit_within_an_open_transaction_is_kept(
        self, inline_loader: Loader, topic: TopicFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        name, kafka = topic(), inline_loader.kafka
        produce(kafka, name, names(0, 3))
        transactions = Transactions(kafka, name)
        transactions.begin(names(3, 1))
        produce(kafka, name, names(4, 3))
        start = CommittedBy(f"old-{name}")
        commit_to_kafka(kafka, start.group_id, name, {0: 6})

        for told in (f"Nothing to load yet for group 'loader'; it begins at {name}[0] 6", "Nothing to load for group"):
            caplog.clear()
            with caplog.at_level(logging.INFO):
                assert inline_loader(name, start=start).batches == ()
            assert told in caplog.text
            assert positions(inline_loader.engine) == {(name, 0): 6}
        transactions.end()
        wait_until(lambda: inline_loader(name, start=start).rows == 1, 60, "the end of the transaction")

        assert ids(inline_loader) == [6]
        verify("loader", sink=SqlTable("target"), engine=inline_loader.engine, kafka_config=inline_loader.config)

    @pytest.mark.parametrize(
        ("start", "begun"),
        [("earliest", 0), ("latest", 3), (at(60), 3), (at(1), 1)],
        ids=["empty", "latest", "later", "until"],
    )
    def test_a_first_run_that_loads_nothing_says_where_it_begins(
        self,
        inline_loader: Loader,
        topic: TopicFactory,
        caplog: pytest.LogCaptureFixture,
        start: Start,
        begun: int,
    ) -> None:
        name = topic(**KEPT)
        if start != "earliest":
            produce_at(inline_loader.kafka, name, [0, 1, 2])

        with caplog.at_level(logging.INFO):
            inline_loader(name, start=start, until=at(1))

        assert f"Nothing to load yet for group 'loader'; it begins at {name}[0] {begun}" in caplog.text

    @pytest.mark.parametrize("start", ["yesterday", -1, "1969-12-31T23:59:59"])
    def test_what_is_no_start_is_refused(self, inline_loader: Loader, topic: TopicFactory, start: Any) -> None:
        with pytest.raises(ConfigurationError, match=f"got start={start!r}"):
            inline_loader(topic(), start=start)


class TestUntil:
    def test_a_run_loads_up_to_the_end_of_its_interval(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic(partitions=2, **KEPT)
        produce_at(inline_loader.kafka, name, [0, 20, 40, 60, 80])
        produce_at(inline_loader.kafka, name, [10, 70], first=10, partition=1)

        assert inline_loader(name, until=at(60)).rows == 4
        assert ids(inline_loader) == [0, 1, 2, 10]
        assert positions(inline_loader.engine) == {(name, 0): 3, (name, 1): 1}
        assert inline_loader(name, until=at(60)).batches == ()

        inline_loader(name, until=at(120))
        assert_exactly_once(inline_loader.engine)
        assert ids(inline_loader) == [0, 1, 2, 3, 4, 10, 11]

    @pytest.mark.broker
    def test_records_that_arrive_late_are_loaded_by_the_next_run(
        self, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic(**KEPT)
        # The records at 59, 30 and 10 arrive after the first of the next hour.
        produce_at(inline_loader.kafka, name, [50, 61, 59, 62, 30, 76, 10])

        inline_loader(name, until=at(60))
        assert ids(inline_loader) == [0]
        assert positions(inline_loader.engine) == {(name, 0): 1}

        produce_at(inline_loader.kafka, name, [121, 80], first=7)
        inline_loader(name, until=at(120))
        assert ids(inline_loader) == [0, 1, 2, 3, 4, 5, 6]

        inline_loader(name)
        assert ids(inline_loader) == list(range(9))
        assert rows(inline_loader.engine, "SELECT count(*) FROM target") == [(9,)]

    def test_a_retry_keeps_the_ends_of_the_first_try(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name, run = topic(**KEPT), TaskRun("run", "dag", "task", -1, 1)
        produce_at(inline_loader.kafka, name, [0, 61, 1])
        options: dict[str, Any] = {"until": at(60), "run": run}
        inline_loader(name, **options)
        produce_at(inline_loader.kafka, name, [2], first=3)

        assert inline_loader(name, **options).batches == ()

    @pytest.mark.broker
    def test_open_transactions_bound_it_too(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        kafka = inline_loader.kafka
        produce(kafka, name, names(0, 2))
        transactions = Transactions(kafka, name)
        transactions.begin(names(2, 1))
        produce(kafka, name, names(3, 1))

        inline_loader(name, until=datetime.now(UTC) + timedelta(hours=1))
        assert ids(inline_loader) == [0, 1]
        transactions.end()


class TestCaps:
    def test_bytes_are_estimated_from_the_batches_before(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        value = json.dumps({"id": 1, "name": "x" * 980}).encode()
        produce(inline_loader.kafka, name, [value] * 10)
        inline_loader(name)
        assert rows(inline_loader.engine, "SELECT bytes FROM offset_ranges") == [(10 * len(value),)]
        produce(inline_loader.kafka, name, [value] * 60)

        inline_loader(name, max_bytes=20 * len(value))

        assert [len(job.slices) and job.offsets for job in inline_loader.launcher.jobs] == [10, 20, 20, 20]
        assert_exactly_once(inline_loader.engine)

    def test_a_time_budget_ends_the_load_at_a_batchs_edge(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        produce(inline_loader.kafka, name, names(0, 30))

        first = inline_loader(name, max_records=10, time_budget=timedelta(microseconds=1))
        assert (len(first.batches), first.rows, first.complete) == (1, 10, False)
        second = inline_loader(name, max_records=20, time_budget=timedelta(microseconds=1))
        assert (len(second.batches), second.rows, second.complete) == (1, 20, True)
        assert_exactly_once(inline_loader.engine)


class TestIdentity:
    @pytest.mark.broker
    def test_new_partitions_begin_at_their_beginning(  # P14
        self, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic()
        kafka = inline_loader.kafka
        produce(kafka, name, names(0, 3))
        # One client for both looks: one that lives long must see the new partitions.
        cluster = Cluster(inline_loader.config)
        assert list(cluster.logs([name])) == [Partition(name, 0)]
        inline_loader(name, start="latest")
        admin = clients.admin(inline_loader.kafka)
        admin.create_partitions([NewPartitions(name, 3)])[name].result()

        def three() -> bool:
            return list(cluster.logs([name])) == [Partition(name, partition) for partition in range(3)]

        wait_until(three, 120, "the new partitions")
        produce(kafka, name, names(10, 2), 2)
        inline_loader(name, start="latest")

        assert ids(inline_loader) == [10, 11]
        assert positions(inline_loader.engine) == {(name, 0): 3, (name, 1): 0, (name, 2): 2}

    @pytest.mark.parametrize("count", [2, 10], ids=["P11-shorter", "P12-longer"])
    @pytest.mark.broker
    def test_a_recreated_topic_is_an_error(self, inline_loader: Loader, topic: TopicFactory, count: int) -> None:
        name = topic()
        produce(inline_loader.kafka, name, names(0, 5))
        inline_loader(name)
        delete_topic(inline_loader.kafka.bootstrap_servers, name)
        create_topic(inline_loader.kafka.bootstrap_servers, name)
        produce(inline_loader.kafka, name, names(100, count))

        with pytest.raises(
            TopicRecreatedError, match=rf"{name}\[0\]: position 5 belongs to topic id \S+, the topic has"
        ):
            inline_loader(name, on_data_loss="skip")

        assert ids(inline_loader) == [0, 1, 2, 3, 4]

    @pytest.mark.broker
    def test_a_deleted_topic_is_an_error_and_no_hang(  # P15
        self, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(inline_loader.kafka, name, names(0, 5))
        inline_loader(name)
        delete_topic(inline_loader.kafka.bootstrap_servers, name)

        with pytest.raises(UnknownTopicError, match=f"has no topic '{name}'"):
            inline_loader(name)

    @pytest.mark.broker
    def test_a_topic_that_was_just_made_can_be_planned(self, inline_loader: Loader) -> None:  # P17
        admin = clients.admin(inline_loader.kafka)
        for number in range(5):
            name = f"just-made-{inline_loader.engine.dialect.name}-{number}"
            admin.create_topics([NewTopic(name, 8, 1)])
            # Its answer is not awaited: whatever the broker says of the topic in these moments is seen.
            assert len(Cluster(inline_loader.config).logs([name])) == 8

    @pytest.mark.broker
    def test_planning_2000_partitions_takes_three_requests(  # P21
        self, kafka: KafkaBroker, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = topic(partitions=2000)
        cluster = Cluster({"bootstrap.servers": kafka.bootstrap_servers})
        asked: list[str] = []
        client = cluster._admin._client

        class Counting:
            def __getattr__(self, question: str) -> Any:
                if question != "poll":
                    asked.append(question)
                return getattr(client, question)

        monkeypatch.setattr(cluster._admin, "_client", Counting())

        assert len(cluster.logs([name])) == 2000
        assert asked == ["describe_topics", "list_offsets", "list_offsets"]


class TestLostRecords:
    def test_an_expired_log_without_new_records_has_lost_nothing(  # P09
        self, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(inline_loader.kafka, name, names(0, 5))
        inline_loader(name)
        delete_records(inline_loader.kafka.bootstrap_servers, name, 5)

        assert inline_loader(name).batches == ()

    @pytest.mark.broker
    def test_records_that_expire_while_they_are_read(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        kafka = inline_loader.kafka
        produce(kafka, name, names(0, 20))

        class Expires(InlineLauncher):
            """Retention passes the start of the range between its planning and its being read."""

            def __call__(self, job: StageJob) -> None:
                delete_records(kafka.bootstrap_servers, name, 8)
                super().__call__(job)

        expiring = Loader(kafka, inline_loader.engine, Expires())
        with pytest.raises(DataLossError, match=rf"{name}\[0\]: position 0, beginning offset 8, 8 offsets gone"):
            expiring(name)
        assert ids(inline_loader) == []
        # By the user's decision, in the same load: the batch is given up, the gap recorded, the rest is loaded.
        result = expiring(name, on_data_loss="skip")

        assert ids(inline_loader) == list(range(8, 20))
        assert len(result.batches) == 1
        assert rows(inline_loader.engine, "SELECT start_offset, end_offset FROM offset_gaps") == [(0, 8)]
        assert rows(inline_loader.engine, "SELECT kind, state FROM offset_batches ORDER BY batch_id") == [
            ("load", "abandoned"),
            ("start", "committed"),
            ("load", "committed"),
        ]
        verify("loader", sink=SqlTable("target"), engine=inline_loader.engine, kafka_config=inline_loader.config)

    def test_a_gap_that_opens_while_reading_is_recorded(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        kafka = inline_loader.kafka
        produce(kafka, name, names(0, 5))
        inline_loader(name)
        produce(kafka, name, names(5, 15))

        class Expires(InlineLauncher):
            def __call__(self, job: StageJob) -> None:
                delete_records(kafka.bootstrap_servers, name, 8)
                super().__call__(job)

        Loader(kafka, inline_loader.engine, Expires())(name, on_data_loss="skip")

        assert ids(inline_loader) == [*range(5), *range(8, 20)]
        assert rows(inline_loader.engine, "SELECT start_offset, end_offset, cause FROM offset_gaps") == [
            (5, 8, "expired")
        ]

    @pytest.mark.broker
    def test_what_was_just_committed_may_be_invisible_and_is_never_a_failure(  # P04
        self, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic()
        transactions = Transactions(inline_loader.kafka, name)
        loaded = 0
        for number in range(10):
            transactions.commit(names(number, 1))
            loaded += inline_loader(name).rows

        wait_until(lambda: loaded + inline_loader(name).rows >= 10 or len(ids(inline_loader)) == 10, 30, "the last one")
        assert ids(inline_loader) == list(range(10))


class TestDeadLetters:
    BAD = (b"{not json", b'{"id": "text"}', b"\xff\xfe", b"[]")

    @pytest.mark.broker
    def test_bad_records_are_set_aside_with_the_batch(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic(partitions=2, **KEPT)
        kafka = inline_loader.kafka
        writer = producer(inline_loader.kafka)
        for number, value in enumerate([*names(0, 3), *self.BAD, *names(3, 2)]):
            writer.produce(
                name, value, key=b"key", partition=0, headers=[("h", b"1"), ("h", None)], timestamp=1_000 + number
            )
        assert writer.flush(30) == 0
        produce(kafka, name, names(10, 5), 1)

        result = inline_loader(name, on_bad_record="dead_letter")

        assert (result.records, result.rows, result.dead_letters) == (14, 10, 4)
        assert ids(inline_loader) == [0, 1, 2, 3, 4, *range(10, 15)]
        letters = rows(
            inline_loader.engine,
            "SELECT topic, partition, offset_value, value, key, headers, error FROM dead_letters ORDER BY offset_value",
        )
        assert [(t, p, o, bytes(v)) for t, p, o, v, *_ in letters] == [
            (name, 0, 3 + i, value) for i, value in enumerate(self.BAD)
        ]
        assert {bytes(key) for *_, key, _, _ in letters} == {b"key"}
        assert {headers for *_, headers, _ in letters} == {'[["h", "MQ=="], ["h", null]]'}
        assert "'id' is declared as number, but holds string" in letters[1][-1]
        assert rows(inline_loader.engine, "SELECT records, row_count, dead_letters FROM offset_batches") == [
            (14, 10, 4)
        ]

    def test_the_same_records_fail_the_batch_by_default(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        produce(inline_loader.kafka, name, [*names(0, 3), *self.BAD])

        with pytest.raises(RecordError, match=f"topic '{name}' partition 0 offset 3"):
            inline_loader(name)

        inline_loader(name, on_bad_record="dead_letter")
        assert rows(inline_loader.engine, "SELECT count(*) FROM dead_letters") == [(4,)]

    def test_too_many_fail_the_batch_and_name_the_first(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        produce(inline_loader.kafka, name, [*names(0, 3), *self.BAD])

        with pytest.raises(DeadLetterError, match=r"4 of 7 records of batch 1 .* max_dead_letters=3 .* offset 3"):
            inline_loader(name, on_bad_record="dead_letter", max_dead_letters=3, slice_offsets=3)
        assert ids(inline_loader) == []
        assert rows(inline_loader.engine, "SELECT count(*) FROM dead_letters") == [(0,)]

        inline_loader(name, on_bad_record="dead_letter", max_dead_letters=4)
        assert len(inline_loader.launcher.jobs) == 1, "the staged files were not used"
        assert rows(inline_loader.engine, "SELECT count(*) FROM dead_letters") == [(4,)]

    def test_too_many_of_one_slice_fail_the_batch_before_it_is_staged(
        self, postgres_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(postgres_loader.kafka, name, [*names(0, 3), *self.BAD])

        told = rf"More than 3 records of {name}\[0\] 0\.\.7 cannot be decoded, and max_dead_letters=3 .* partition 0 offset 3"
        with pytest.raises(DeadLetterError, match=told):
            postgres_loader(name, on_bad_record="dead_letter", max_dead_letters=3)
        assert rows(postgres_loader.engine, "SELECT state FROM offset_batches") == [("planned",)]

        postgres_loader(name, on_bad_record="dead_letter", max_dead_letters=4)
        assert rows(postgres_loader.engine, "SELECT count(*) FROM dead_letters") == [(4,)]


class TestOlderLedger:
    def test_state_that_is_older_than_the_target_is_refused(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        kafka = inline_loader.kafka
        produce(kafka, name, names(0, 5))
        inline_loader(name)
        backup = {
            table.name: rows(inline_loader.engine, f"SELECT * FROM {table.name}")
            for table in Tables().metadata.sorted_tables
        }
        produce(kafka, name, names(5, 5))
        inline_loader(name)
        restore(inline_loader, backup)

        with pytest.raises(OlderLedgerError, match=r"Table 'target' holds rows of batch 2, .* would be 2\."):
            inline_loader(name)
        assert ids(inline_loader) == list(range(10))

        with inline_loader.engine.begin() as conn:
            conn.execute(sa.text("DELETE FROM target WHERE _batch_id >= 2"))
        inline_loader(name)
        assert_exactly_once(inline_loader.engine)

    @pytest.mark.parametrize("constraint", ["PRIMARY KEY", "UNIQUE"], ids=["primary-key", "unique"])
    def test_the_index_of_a_constraint_is_enough_to_find_it_out(
        self, inline_loader: Loader, topic: TopicFactory, constraint: str
    ) -> None:
        name = topic()
        produce(inline_loader.kafka, name, names(0, 5))
        with inline_loader.engine.begin() as conn:
            conn.exec_driver_sql(
                f"CREATE TABLE target (id BIGINT, name TEXT, _batch_id BIGINT NOT NULL, {constraint} (_batch_id, id))"
            )
        inline_loader(name)
        with inline_loader.engine.begin() as conn:
            Tables().metadata.drop_all(conn)

        with pytest.raises(OlderLedgerError, match="Table 'target' holds rows of batch 1"):
            inline_loader(name)

    def test_two_groups_share_a_target(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        produce(inline_loader.kafka, name, names(0, 5))

        class LoadsTheOther(InlineLauncher):
            """The other group plans after, and commits before."""

            def __call__(self, job: StageJob) -> None:
                Loader(inline_loader.kafka, inline_loader.engine, InlineLauncher())(name, group_id="other")
                super().__call__(job)

        Loader(inline_loader.kafka, inline_loader.engine, LoadsTheOther())(name)

        assert rows(inline_loader.engine, "SELECT _batch_id, count(*) FROM target GROUP BY 1 ORDER BY 1") == [
            (1, 5),
            (2, 5),
        ]


def restore(loader: Loader, backup: dict[str, list[tuple[Any, ...]]]) -> None:
    """Put the state tables back as a backup of them alone would, the numbers of batches included."""
    tables = Tables().metadata.sorted_tables
    with loader.engine.begin() as conn:
        for table in tables:
            conn.execute(table.delete())
            values = [dict(zip(table.columns.keys(), row, strict=True)) for row in backup[table.name]]
            if values:
                columns: list[sa.Column[Any]] = [sa.Column(name) for name in table.columns.keys()]  # noqa: SIM118 - a ColumnCollection
                plain = sa.Table(table.name, sa.MetaData(), *columns)
                conn.execute(plain.insert(), values)
        if loader.engine.dialect.name == "postgresql":
            last = max(row[0] for row in backup["offset_batches"])
            conn.execute(sa.text(f"SELECT setval('offset_batches_batch_id_seq', {last})"))


class TestCleanUp:
    NAME = "batch-{}-" + "0123456789abcdef" * 2

    def test_what_nobody_names_goes_when_it_is_old_and_nothing_else_ever(
        self, inline_loader: Loader, topic: TopicFactory, tmp_path: Path
    ) -> None:
        import os

        staging = tmp_path / "staging"
        staging.mkdir()
        name = topic()
        produce(inline_loader.kafka, name, names(0, 5))
        old, young, foreign = (
            staging / self.NAME.format(9),
            staging / self.NAME.format(8),
            staging / "batch-7-mine",
        )
        for directory in (old, young, foreign):
            directory.mkdir()
            (directory / "part-1.arrow").write_text("rows")
        file = staging / self.NAME.format(6)
        file.write_text("no directory")
        eight_days_ago = datetime.now(UTC).timestamp() - 8 * 24 * 3600
        for path in (old / "part-1.arrow", old, foreign / "part-1.arrow", foreign, file):
            os.utime(path, (eight_days_ago, eight_days_ago))

        inline_loader(name, staging_dir=str(staging))

        assert sorted(staging.iterdir()) == sorted([young, foreign, file])

    def test_an_open_batch_keeps_its_files_and_a_closed_one_does_not(
        self, inline_loader: Loader, topic: TopicFactory, tmp_path: Path
    ) -> None:
        staging = tmp_path / "staging"
        name, other = topic(), topic()
        produce(inline_loader.kafka, name, [b"bad"])
        produce(inline_loader.kafka, other, names(0, 1))

        options: dict[str, Any] = {"staging_dir": str(staging), "staging_retention": timedelta(microseconds=1)}
        with pytest.raises(StagingError):
            Loader(inline_loader.kafka, inline_loader.engine, Fails())(name, **options)
        (kept,) = staging.iterdir()

        # The load of another group finds them: the batch is open, however old its files are.
        inline_loader(other, group_id="other", sink=SqlTable("other"), **options)
        assert list(staging.iterdir()) == [kept]
        with inline_loader.engine.begin() as conn:
            conn.execute(sa.text("UPDATE offset_batches SET state = 'abandoned' WHERE batch_id = 1"))
        inline_loader(other, group_id="other", sink=SqlTable("other"), **options)
        assert list(staging.iterdir()) == []


def test_code_that_changed_between_two_tries_is_warned_about(
    inline_loader: Loader, topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    produce(inline_loader.kafka, name, [b'{"id": "text"}'])
    with pytest.raises(RecordError):
        inline_loader(name)

    with caplog.at_level(logging.WARNING):
        inline_loader(name, on_bad_record="dead_letter")

    assert "Batch 1 was planned with other columns, another transform, or other code of the transform" in caplog.text
