"""Topics with transactions and compaction: offsets are not counts. Real transactions, real compaction."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer

from airflow_kafka_offsets import Limits, SqlTable, Staging
from airflow_kafka_offsets.core.offsets import Slice, TopicPartition
from airflow_kafka_offsets.exceptions import ReadError
from airflow_kafka_offsets.kafka import errors, reader
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.consumer import consumer_config
from airflow_kafka_offsets.kafka.reader import read
from airflow_kafka_offsets.lag.measure import measure_lag
from airflow_kafka_offsets.lag.report import LagQuestion, LagReport
from airflow_kafka_offsets.ledger.tables import Ledger
from devstack.kafka import KafkaBroker
from devstack.process import wait_until
from tests.support.clients import Kafka, Transactions, produce, producer
from tests.support.loads import BESIDE_OTHERS, Loader, TopicFactory, names, positions, rows
from tests.support.replays import Replayer

pytestmark = pytest.mark.server


@pytest.fixture
def mixed(kafka: KafkaBroker, topic: TopicFactory) -> tuple[str, Transactions]:
    """Offsets 0-2 committed, marker 3, aborted 4-5, marker 6, open transaction at 7, plain 8."""
    name = topic()
    transactions = Transactions(kafka, name)
    transactions.commit(names(0, 3))
    transactions.abort(names(4, 2))
    transactions.begin(names(7, 1))
    produce(kafka, name, names(8, 1))
    return name, transactions


def end(kafka: Kafka, topic: str, isolation_level: str) -> int:
    cluster = Cluster({"bootstrap.servers": kafka.bootstrap_servers}, isolation_level=isolation_level)
    return cluster.logs([topic])[TopicPartition(topic, 0)].end


def test_an_open_transaction_bounds_what_committed_readers_see(  # P01
    kafka: KafkaBroker, mixed: tuple[str, Transactions]
) -> None:
    name, transactions = mixed

    wait_until(lambda: end(kafka, name, "read_committed") == 7, 30, "the last stable offset")
    assert end(kafka, name, "read_uncommitted") == 9

    transactions.end()


@pytest.mark.parametrize("minutes", [14, 16])
def test_a_group_that_waits_for_a_transaction_for_long_is_told_so(
    loader: Loader, topic: TopicFactory, caplog: pytest.LogCaptureFixture, minutes: int
) -> None:
    name = topic(2)
    transactions = Transactions(loader.kafka, name)
    transactions.commit(names(0, 3))
    transactions.begin(names(4, 1))
    produce(loader.kafka, name, names(5, 2))
    wait_until(lambda: end(loader.kafka, name, "read_committed") == 4, 30, "the last stable offset")
    caplog.set_level("INFO")
    assert loader(name).rows == 3
    with loader.engine.begin() as conn:
        earlier = {"updated_at": datetime.now(UTC) - timedelta(minutes=minutes)}
        conn.execute(Ledger(loader.engine).tables.consumed_offsets.update(), earlier)

    assert loader(name).batches == ()

    told = f"Group 'loader' waits for open transactions: 3 offsets from {name}[0] 4. Its positions there have not"
    assert caplog.text.count(told) == (minutes > 15)
    report = measured(loader, name)
    assert (report.lag, report.flags) == (0, ("open transaction",) if minutes > 15 else ())
    # Those who read what is not committed do not wait.
    assert not measured(loader, name, isolation_level="read_uncommitted").flags

    transactions.end()
    wait_until(lambda: end(loader.kafka, name, "read_committed") == 8, 30, "the end of the transaction")
    assert not measured(loader, name).flags
    assert loader(name).rows == 3
    assert caplog.text.count(told) == (minutes > 15)


def measured(loader: Loader, topic: str, **options: Any) -> LagReport:
    cluster = Cluster({"bootstrap.servers": loader.kafka.bootstrap_servers}, **options)
    return measure_lag(Ledger(loader.engine), cluster, LagQuestion("loader", {topic: None}, times=True))


def test_aborted_records_and_markers_are_not_rows(  # P02
    loader: Loader, kafka: KafkaBroker, mixed: tuple[str, Transactions]
) -> None:
    name, transactions = mixed
    transactions.end()
    wait_until(lambda: end(kafka, name, "read_committed") == 10, 30, "the transaction to be visible")

    result = loader(name)

    assert (result.records, result.rows) == (5, 5)
    assert rows(loader.engine, "SELECT id, _kafka_offset FROM target ORDER BY 1") == [
        (0, 0),
        (1, 1),
        (2, 2),
        (7, 7),
        (8, 8),
    ]
    assert positions(loader.engine) == {(name, 0): 10}
    assert loader(name).batches == ()


def test_a_range_of_markers_and_aborted_records_moves_the_position(  # P03
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    transactions = Transactions(kafka, name)
    transactions.abort(names(0, 5))
    wait_until(lambda: end(kafka, name, "read_committed") == 6, 30, "the abort to be visible")

    def leader_epoch() -> int:
        log = Cluster({"bootstrap.servers": kafka.bootstrap_servers}).logs([name])[TopicPartition(name, 0)]
        assert log.leader_epoch is not None
        return log.leader_epoch

    begun = leader_epoch()
    result = loader(name)

    assert (len(result.batches), result.records, result.rows) == (1, 0, 0)
    assert positions(loader.engine) == {(name, 0): 6}
    # The epoch is the plan's, and needs no record: what comes next is read with it.
    ((stored,),) = rows(loader.engine, "SELECT leader_epoch FROM consumed_offsets")
    # The leader of a machine that stops for a while leads anew.
    assert begun <= stored <= leader_epoch()
    transactions.commit(names(6, 2))
    wait_until(lambda: end(kafka, name, "read_committed") == 9, 30, "the transaction to be visible")
    assert loader(name).rows == 2
    first, (start, end_) = rows(loader.engine, "SELECT leader_epoch, end_epoch FROM offset_ranges ORDER BY batch_id")
    assert (first, start) == ((None, stored), stored)
    assert stored <= end_ <= leader_epoch()


def test_slices_that_end_in_holes_are_read_to_their_end(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    transactions = Transactions(kafka, name)
    for first in range(0, 40, 4):
        transactions.commit(names(first, 2))
        transactions.abort(names(first + 2, 2))
    wait_until(lambda: end(kafka, name, "read_committed") == 60, 30, "the transactions to be visible")

    # Slices of 2 begin and end at every kind of offset there is.
    loader(name, staging=Staging(slice_offsets=2))

    assert rows(loader.engine, "SELECT count(*), count(DISTINCT id) FROM target") == [(20, 20)]
    assert positions(loader.engine) == {(name, 0): 60}


# A fetch brings a batch of the producer: the broker waits for more bytes than the client takes from the partition.
SLOW_FETCHES = {"fetch.message.max.bytes": 1000, "fetch.min.bytes": 1_000_000, "fetch.wait.max.ms": 250}


class SlowReader:
    """Reads slices of a broker. Each fetch takes as long as a read may be idle, by a clock that nothing else moves."""

    def __init__(self, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        config = {"bootstrap.servers": kafka.bootstrap_servers, **SLOW_FETCHES}
        self._config = consumer_config(config, "slow", "read_committed")
        self.fetched: list[int] = []
        monkeypatch.setattr(errors, "time", SimpleNamespace(monotonic=lambda: float(len(self.fetched))))
        monkeypatch.setattr(reader, "new_consumer", self._consumer)

    def _consumer(self, config: dict[str, Any]) -> Consumer:
        statistics = config["stats_cb"]

        def noted(text: str) -> None:
            for topic in json.loads(text)["topics"].values():
                if (reached := topic["partitions"]["0"]["next_offset"]) > max(self.fetched, default=0):
                    self.fetched.append(reached)
            statistics(text)

        return Consumer({**config, "stats_cb": noted})

    def offsets(self, one: Slice) -> list[int]:
        """Return the offsets of the records of a slice."""
        batches = read(one, self._config, idle_timeout=1.0)
        found = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
        assert len(self.fetched) > 2, "the read was not slow"
        return found


@pytest.fixture
def slow(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> SlowReader:
    return SlowReader(broker, monkeypatch)


def test_a_read_of_many_aborted_transactions_is_not_idle(
    broker: KafkaBroker, topic: TopicFactory, slow: SlowReader
) -> None:
    name = topic()
    transactions = Transactions(broker, name)
    for _ in range(10):
        transactions.abort([b"x" * 600])
    transactions.commit(names(0, 1))
    wait_until(lambda: end(broker, name, "read_committed") == 22, 60, "the transactions to be visible")

    assert slow.offsets(Slice(0, name, 0, 0, 22)) == [20]


def test_a_read_of_a_large_aborted_transaction_is_not_idle(
    broker: KafkaBroker, topic: TopicFactory, slow: SlowReader
) -> None:
    name = topic()
    # The client takes twice as much with each fetch that has aborted records only.
    transactions = Transactions(broker, name, **{"batch.num.messages": 1})
    transactions.abort([b"x" * 600] * 500)
    wait_until(lambda: end(broker, name, "read_committed") == 501, 60, "the transaction to be visible")

    assert slow.offsets(Slice(0, name, 0, 0, 501)) == []


def test_a_slice_of_aborted_records_ends_at_its_end(broker: KafkaBroker, topic: TopicFactory, slow: SlowReader) -> None:
    """Not at the end of the log."""
    name = topic()
    transactions = Transactions(broker, name)
    for _ in range(40):
        transactions.abort([b"x" * 600])
    wait_until(lambda: end(broker, name, "read_committed") == 80, 60, "the transactions to be visible")

    assert slow.offsets(Slice(0, name, 0, 0, 14)) == []
    # A machine that is busy may give the client time to fetch some more.
    assert slow.fetched[-1] < 60


def test_compaction_leaves_holes_that_are_read_over(loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic(
        cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01", max_compaction_lag_ms="100"
    )
    writer = producer(kafka)

    def write(first: int, count: int) -> None:
        for value in names(first, count):
            writer.produce(name, value, key=b"one key", partition=0)
        assert writer.flush(30) == 0

    def kept() -> int:
        # A record rolls the segment before it, and so makes that one compactable.
        write(1000, 1)
        config = consumer_config({"bootstrap.servers": kafka.bootstrap_servers}, "probe", "read_committed")
        try:
            return sum(batch.num_rows for batch in read(Slice(0, name, 0, 0, 50), config))
        except ReadError:
            # The record at the end is compacted in the moment between two looks at it.
            return 50

    write(0, 50)
    wait_until(lambda: kept() < 50, 120, "the first 50 records to be compacted", interval=0.3)

    loader(name)

    ends = positions(loader.engine)[name, 0]
    ((count, newest),) = rows(loader.engine, "SELECT count(*), max(_kafka_offset) FROM target")
    assert count < ends
    assert newest == ends - 1


def test_a_group_replays_a_marker_that_another_one_has_read_in_a_batch_with_records(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name, sink = topic(), SqlTable("target")
    Transactions(kafka, name).commit(names(0, 10))
    wait_until(lambda: end(kafka, name, "read_committed") == 11, 30, "the transaction to be visible")
    loader(name, group_id="one", limits=Limits(max_records=10), **BESIDE_OTHERS)
    loader(name, group_id="two", **BESIDE_OTHERS)
    ranges = "SELECT start_offset, end_offset, records FROM offset_ranges ORDER BY batch_id"
    assert rows(loader.engine, ranges) == [(0, 10, 10), (10, 11, 0), (0, 11, 10)]

    replayed = Replayer(loader)(name, {name: {0: (5, 11)}}, group_id="one", sink=sink, replace=True)

    assert replayed.rows == 5
    assert rows(loader.engine, "SELECT count(*), count(DISTINCT _kafka_offset) FROM target") == [(20, 10)]
