"""Topics that are recreated or grow, and records that are gone before they are loaded. The cases are those of
`docs/semantics.md`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import NewPartitions, NewTopic

from airflow_kafka_offsets import BatchBounds, Limits, OffsetBounds, Reading, Staging, replay
from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.offsets import TopicPartition as Partition
from airflow_kafka_offsets.exceptions import (
    DataLossError,
    KafkaUnavailableError,
    StagingError,
    TopicRecreatedError,
    UnknownTopicError,
)
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.loading.context import LoadResult
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark import tasks
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.verification.verify import verify
from devstack.kafka import KafkaBroker
from devstack.process import wait_until
from devstack.topics import create_topic, delete_records, delete_topic
from tests.support import clients
from tests.support.clients import Kafka, Transactions, produce
from tests.support.inline import Fails, InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.memory_clients import MemoryAdmin, failure
from tests.support.openings import ids
from tests.support.replays import Replayer
from tests.support.verifying import ON_ONE

pytestmark = pytest.mark.server

UNCOMMITTED = Reading(isolation_level="read_uncommitted")


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


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

    @pytest.mark.long  # tests/lag/test_measure.py counts the requests of fifty partitions every day
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


class TestPartitionsBesideABatch:
    """Spark has staged a batch. What becomes of partitions that are not in it meanwhile is not its concern."""

    @pytest.fixture
    def loader(self, inline_loader: Loader, monkeypatch: pytest.MonkeyPatch) -> Loader:
        """Topics and partitions beside the batch lose their leaders while Spark stages it."""
        ask = MemoryAdmin.list_offsets
        launcher = inline_loader.launcher

        def list_offsets(admin: MemoryAdmin, specs: Mapping[Any, Any], **options: Any) -> dict[Any, Future[Any]]:
            answers = ask(admin, specs, **options)
            staged = {
                (slice_.topic, slice_.partition) for job in launcher.jobs for task in job.tasks for slice_ in task
            }
            for key in answers:
                if staged and (key.topic, key.partition) not in staged:
                    answers[key] = Future()
                    answers[key].set_exception(failure(KafkaError.INVALID_REQUEST, "it has no leader"))
            return answers

        monkeypatch.setattr(MemoryAdmin, "list_offsets", list_offsets)
        return inline_loader

    def test_a_load_commits(self, loader: Loader, topic: TopicFactory) -> None:
        first, second = topic(partitions=2), topic()
        produce(loader.kafka, first, names(0, 3))

        with pytest.raises(KafkaUnavailableError, match="it has no leader"):
            # The next batch is planned of all partitions.
            loader(first, second)

        assert ids(loader) == [0, 1, 2]

    def test_a_replay_commits(self, loader: Loader, topic: TopicFactory) -> None:
        first, second = topic(partitions=2), topic()
        produce(loader.kafka, first, names(0, 3))
        pipeline = loader.pipeline([first, second], sink=SqlTable("elsewhere"))
        bounds = OffsetBounds({first: {0: (0, 3)}})

        replay(pipeline, bounds, kafka_config=loader.config, engine=loader.engine, launcher=loader.launcher)

        assert rows(loader.engine, "SELECT id FROM elsewhere ORDER BY id") == [(0,), (1,), (2,)]


def expire_while_read(kafka: Kafka, monkeypatch: pytest.MonkeyPatch, tp: Partition, after: int) -> None:
    """Have a record of a partition expire after so many records of any partition that are read."""
    read, count = tasks.read_slice, itertools.count(1)

    def read_slice(job: StageJob, slice_: Slice, *others: Any) -> Iterator[pa.RecordBatch]:
        yield from read(job, slice_, *others)
        for _ in range(len(slice_)):
            if (number := next(count)) % after == 0 and number // after <= 99:
                delete_records(kafka.bootstrap_servers, tp.topic, number // after, tp.partition)

    monkeypatch.setattr(tasks, "read_slice", read_slice)


class Expires(InlineLauncher):
    """Retention passes the start of a range between its planning and its being read.

    :param before: returns the offset before which the records of a job's topic are gone
    """

    def __init__(self, kafka: Kafka, topic: str, before: Callable[[StageJob], int]) -> None:
        super().__init__()
        self._kafka, self._topic, self._before = kafka, topic, before

    def __call__(self, job: StageJob) -> None:
        delete_records(self._kafka.bootstrap_servers, self._topic, self._before(job))
        super().__call__(job)


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

        expiring = Loader(kafka, inline_loader.engine, Expires(kafka, name, lambda _: 8))
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
            ("initialize", "committed"),
            ("load", "committed"),
        ]
        verify("loader", sink=SqlTable("target"), engine=inline_loader.engine, kafka_config=inline_loader.config)

    def test_a_gap_that_opens_while_reading_is_recorded(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        kafka = inline_loader.kafka
        produce(kafka, name, names(0, 5))
        inline_loader(name)
        produce(kafka, name, names(5, 15))

        Loader(kafka, inline_loader.engine, Expires(kafka, name, lambda _: 8))(name, on_data_loss="skip")

        assert ids(inline_loader) == [*range(5), *range(8, 20)]
        assert rows(inline_loader.engine, "SELECT start_offset, end_offset, cause FROM offset_gaps") == [
            (5, 8, "expired")
        ]

    def test_the_oldest_records_of_every_partition_are_read_first(
        self, inline_loader: Loader, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = topic(partitions=2)
        for partition in (0, 1):
            produce(inline_loader.kafka, name, names(100 * partition, 100), partition)
        expire_while_read(inline_loader.kafka, monkeypatch, Partition(name, 1), after=15)

        inline_loader(name, staging=Staging(slice_offsets=10))

        assert ids(inline_loader) == list(range(200))

    def test_batches_become_smaller_until_they_are_read_in_time(
        self, inline_loader: Loader, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = topic(partitions=2)
        for partition in (0, 1):
            produce(inline_loader.kafka, name, names(100 * partition, 100), partition)
        expire_while_read(inline_loader.kafka, monkeypatch, Partition(name, 1), after=8)

        inline_loader(name, staging=Staging(slice_offsets=10), on_data_loss="skip")

        engine = inline_loader.engine
        assert positions(engine) == {(name, 0): 100, (name, 1): 100}
        gaps = rows(engine, "SELECT start_offset, end_offset FROM offset_gaps ORDER BY start_offset")
        lost = {100 + offset for start, end in gaps for offset in range(start, end)}
        assert lost
        assert ids(inline_loader) == sorted(set(range(200)) - lost)
        verify("loader", sink=SqlTable("target"), engine=engine, kafka_config=inline_loader.config)

    @pytest.mark.parametrize("kind", ["load", "replay"])
    def test_records_that_expire_faster_than_they_are_read_are_an_error(
        self, inline_loader: Loader, topic: TopicFactory, kind: str
    ) -> None:
        name = topic()
        kafka, engine = inline_loader.kafka, inline_loader.engine
        produce(kafka, name, names(0, 100))

        loader = Loader(kafka, engine, Expires(kafka, name, lambda job: job.slices[0].start + 1))
        bounds = OffsetBounds({name: {0: (0, 100)}})
        run = partial(loader, name) if kind == "load" else partial(Replayer(loader), name, bounds)
        with pytest.raises(DataLossError, match="8 batches of group 'loader' in a row could not be read"):
            run(on_data_loss="skip")

        assert rows(engine, "SELECT count(*) FROM offset_batches WHERE state <> 'abandoned' AND row_count > 0") == [
            (0,)
        ]
        # The next run goes on.
        inline_loader(name, on_data_loss="skip")
        assert len(ids(inline_loader)) > 90

    def test_a_time_budget_ends_batches_whose_records_expired(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        kafka = inline_loader.kafka
        produce(kafka, name, names(0, 20))

        loader = Loader(kafka, inline_loader.engine, Expires(kafka, name, lambda _: 8))
        limits = Limits(time_budget=timedelta(microseconds=1))
        assert loader(name, on_data_loss="skip", limits=limits) == LoadResult(complete=False)
        assert inline_loader(name, on_data_loss="skip").rows == 12

    @pytest.mark.broker
    def test_records_not_yet_visible_are_no_failure(  # P04
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


@ON_ONE
@pytest.mark.broker
class TestOpenTransactions:
    """A transaction is open when a batch of `read_uncommitted` is planned, and when `read_committed` resumes it."""

    def test_an_open_batch_is_not_taken_for_one_of_a_truncated_log(
        self, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic()
        kafka = inline_loader.kafka
        transactions = Transactions(kafka, name)
        transactions.begin(names(0, 3))
        with pytest.raises(StagingError, match="no executor left"):
            Loader(kafka, inline_loader.engine, Fails())(name, reading=UNCOMMITTED)

        class Commits(InlineLauncher):
            def __call__(self, job: StageJob) -> None:
                transactions.end()
                super().__call__(job)
                # Open again, before the logs are compared once more.
                transactions.begin(names(4, 1))

        assert Loader(kafka, inline_loader.engine, Commits())(name).rows == 3

        assert ids(inline_loader) == [0, 1, 2]
        transactions.end()

    def test_verify_takes_positions_within_it(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        transactions = Transactions(inline_loader.kafka, name)
        transactions.begin(names(0, 3))
        inline_loader(name, reading=UNCOMMITTED)

        verify("loader", sink=SqlTable("target"), engine=inline_loader.engine, kafka_config=inline_loader.config)

        transactions.end()

    def test_a_batch_is_replayed(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        transactions = Transactions(inline_loader.kafka, name)
        transactions.begin(names(0, 3))
        (batch_id,) = inline_loader(name, reading=UNCOMMITTED).batches

        class Commits(InlineLauncher):
            def __call__(self, job: StageJob) -> None:
                transactions.end()
                super().__call__(job)

        assert Replayer(inline_loader)(name, BatchBounds(batch_id), launcher=Commits()).rows == 3
