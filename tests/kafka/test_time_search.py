"""The first record at or after an instant, where brokers report what is no record: real transactions, real
compaction.
"""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any

import pytest

from airflow_kafka_offsets.core.instants import milliseconds
from airflow_kafka_offsets.core.offsets import Slice, TopicPartition
from airflow_kafka_offsets.kafka.cluster import Cluster, TimedOffset
from airflow_kafka_offsets.kafka.start_offsets import TimeSearch
from devstack.process import wait_until
from devstack.topics import delete_records
from tests.support.clients import Kafka, Transactions, produce, producer
from tests.support.loads import TopicFactory, names
from tests.support.openings import KEPT, at, end, one_record_transactions, produce_at
from tests.support.reading import read_all

pytestmark = pytest.mark.server


def minute(minutes: float) -> int:
    return milliseconds(at(minutes))


def search(kafka: Kafka, **options: Any) -> TimeSearch:
    return TimeSearch(Cluster({"bootstrap.servers": kafka.bootstrap_servers}, **options), "search")


def first(kafka: Kafka, topic: str, minutes: float, begin: int = 0) -> int | None:
    """The offset of the first record at or after so many minutes after noon."""
    tp = TopicPartition(topic, 0)
    found = search(kafka).first_records({tp: minute(minutes)}, {tp: begin})
    if tp not in found:
        return None
    ((offset, timestamp),) = records(kafka, topic, found[tp].offset, found[tp].offset + 1)
    assert found[tp] == TimedOffset(offset, milliseconds(timestamp))
    return offset


def records(kafka: Kafka, topic: str, start: int, end: int) -> list[tuple[int, datetime]]:
    return [(row["offset"], row["timestamp"]) for row in read_all(kafka, Slice(0, topic, 0, start, end))]


@pytest.fixture
def transactions(broker: Kafka, topic: TopicFactory) -> str:
    """Ten transactions of one record each, a minute apart, of a day long ago: records at even offsets, markers at odd
    ones.
    """
    name = topic(**KEPT)
    one_record_transactions(broker, name, range(10))
    return name


def test_a_marker_is_not_taken_for_a_record(broker: Kafka, transactions: str) -> None:
    tp = TopicPartition(transactions, 0)
    reported = Cluster({"bootstrap.servers": broker.bootstrap_servers}).offsets_for_times({tp: minute(4)})
    assert reported[tp].offset == 1, "the broker does not report the marker of the first transaction any more"

    assert [first(broker, transactions, minutes) for minutes in (0, 0.5, 4, 8.5, 9)] == [0, 2, 8, 18, 18]
    assert first(broker, transactions, 9.5) is None


def test_no_record_is_looked_for_before_an_offset(broker: Kafka, transactions: str) -> None:
    assert [first(broker, transactions, 2, begin) for begin in (0, 4, 5, 13, 18)] == [4, 4, 6, 14, 18]
    # Only a marker, or nothing, comes after these.
    assert [first(broker, transactions, 2, begin) for begin in (19, 20, 30)] == [None, None, None]


def test_aborted_records_count_for_those_who_read_them(broker: Kafka, topic: TopicFactory) -> None:
    name = topic(**KEPT)
    writer = Transactions(broker, name)
    writer.abort(names(0, 2), minute(5))
    writer.commit(names(2, 1), minute(1))
    writer.commit(names(3, 1), minute(6))
    wait_until(lambda: end(broker, name) == 7, 30, "the transactions to be visible")

    assert first(broker, name, 4) == 5
    tp = TopicPartition(name, 0)
    uncommitted = search(broker, isolation_level="read_uncommitted")
    assert uncommitted.first_records({tp: minute(4)}) == {tp: TimedOffset(0, minute(5))}


def test_an_open_transaction_ends_the_search(broker: Kafka, topic: TopicFactory) -> None:
    name = topic(**KEPT)
    writer = Transactions(broker, name)
    writer.commit(names(0, 1), minute(0))
    writer.begin(names(1, 1), minute(5))
    wait_until(lambda: end(broker, name) == 2, 30, "the transaction to be visible")

    assert first(broker, name, 4) is None
    writer.end()
    wait_until(lambda: end(broker, name) == 4, 30, "the transaction to be visible")
    assert first(broker, name, 4) == 2


def test_any_mixture_gives_what_reading_everything_gives(broker: Kafka, topic: TopicFactory) -> None:
    name, choose = topic(**KEPT), random.Random(7)
    writer = Transactions(broker, name)
    for number in range(30):
        write = choose.choice([writer.commit, writer.commit, writer.abort, None])
        values, time = names(number, choose.randrange(1, 4)), minute(choose.randrange(10))
        if write is None:
            produce(broker, name, values, timestamp=time)
        else:
            write(values, time)
    log_end = end(broker, name)
    written = records(broker, name, 0, log_end)

    for begin in (0, log_end // 3):
        expected = [
            next((offset for offset, time in written if offset >= begin and time >= at(minutes)), None)
            for minutes in range(0, 11, 2)
        ]
        assert [first(broker, name, minutes, begin) for minutes in range(0, 11, 2)] == expected


def test_compacted_records_are_not_found(broker: Kafka, topic: TopicFactory) -> None:
    name = topic(
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="100",
    )
    writer = producer(broker)
    for minutes, key in ((5, b"a"), (1, b"b"), (6, b"c")):
        writer.produce(name, b"{}", key=key, partition=0, timestamp=minute(minutes))
    assert writer.flush(30) == 0
    assert first(broker, name, 4) == 0

    def compacted() -> bool:
        # A newer record of the key replaces the first one, and rolls the segment before it.
        writer.produce(name, b"{}", key=b"a", partition=0)
        assert writer.flush(30) == 0
        return records(broker, name, 0, 3)[0][0] != 0

    wait_until(compacted, 60, "the first record to be compacted", interval=0.3)

    assert first(broker, name, 4) == 2


def test_a_record_is_found_behind_a_segment_whose_newest_record_was_deleted(
    broker: Kafka, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch, server_versions: dict[str, str]
) -> None:
    if server_versions.get("kafka") == "2.8":
        pytest.skip("brokers before 3.0 do not tell the newest timestamp of a log")
    name = topic(**KEPT, segment_bytes="1048576")
    tp = TopicPartition(name, 0)
    produce_at(broker, name, [9, 1, 1, 1])
    for _ in range(2):
        # Of a segment of its own.
        produce(broker, name, [b"{}" + b" " * 700_000], timestamp=minute(0.5))
    produce_at(broker, name, [5, 6, 7])
    delete_records(broker.bootstrap_servers, name, 2)
    cluster = Cluster({"bootstrap.servers": broker.bootstrap_servers})
    assert cluster.offsets_for_times({tp: minute(4)}) == {}, "the broker finds it itself"

    assert [first(broker, name, minutes) for minutes in (4, 5.5, 6.5)] == [6, 7, 8]
    assert [first(broker, name, 4, begin) for begin in (6, 7, 8, 9)] == [6, 7, 8, None]
    assert first(broker, name, 8) is None

    # What a broker knows to have nothing as new is not read.
    monkeypatch.setattr(TimeSearch, "_read", None)
    assert [first(broker, name, minutes) for minutes in (9.5, 10)] == [None, None]


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_a_record_that_arrives_during_the_search_is_not_taken_for_a_hidden_one(
    broker: Kafka, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch, isolation_level: str
) -> None:
    name = topic(**KEPT)
    tp = TopicPartition(name, 0)
    produce_at(broker, name, [1, 2])
    newest = Cluster.newest_timestamps

    def arrives(cluster: Cluster, partitions: Any) -> Any:
        produce_at(broker, name, [5])
        return newest(cluster, partitions)

    monkeypatch.setattr(Cluster, "newest_timestamps", arrives)
    monkeypatch.setattr(TimeSearch, "_read", None)

    assert search(broker, isolation_level=isolation_level).not_found({tp: minute(4)}) == {}


@pytest.mark.parametrize("deleted", [1, 5, 10])
def test_records_that_expire_meanwhile_are_searched_for_again(
    broker: Kafka, transactions: str, deleted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = Cluster.offsets_for_times

    def expire(cluster: Cluster, asked: Any, **options: Any) -> Any:
        found = reported(cluster, asked, **options)
        delete_records(broker.bootstrap_servers, transactions, deleted)
        return found

    monkeypatch.setattr(Cluster, "offsets_for_times", expire)

    assert first(broker, transactions, 0) == deleted + deleted % 2


def test_many_partitions_are_looked_at_together(
    broker: Kafka, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(partitions=20, **KEPT)
    for partition in range(19):
        produce_at(broker, name, [partition, 50], partition=partition)
    # The ends of the logs are not asked for where what is reported is a record.
    monkeypatch.delattr(Cluster, "logs")

    found = search(broker).first_records({TopicPartition(name, partition): minute(10) for partition in range(20)})

    assert {tp.partition: record.offset for tp, record in found.items()} == {
        partition: int(partition < 10) for partition in range(19)
    }
