"""A slice is read from the log in memory, and fails, as from a real broker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import DataLossError, LogTruncatedError, ReadError, UnknownTopicError
from airflow_kafka_offsets.kafka import errors
from devstack.topics import delete_records, delete_topic
from tests.support import clients
from tests.support.clients import Kafka, produce
from tests.support.loads import TopicFactory
from tests.support.reading import numbers, read_all

pytestmark = pytest.mark.server

NOON = 1_700_000_000_000
KEPT: dict[str, Any] = {"retention_ms": "-1"}


@pytest.fixture
def kafka(memory_and_broker: Kafka) -> Kafka:
    return memory_and_broker


def values(kafka: Kafka, one: Slice, **options: Any) -> list[tuple[int, bytes]]:
    return [(row["offset"], row["value"]) for row in read_all(kafka, one, **options)]


class TestReading:
    @pytest.mark.parametrize(
        ("start", "end", "expected"), [(0, 10, range(10)), (3, 7, range(3, 7)), (9, 10, range(9, 10)), (5, 5, range(0))]
    )
    def test_a_slice_is_read_to_its_end(
        self, kafka: Kafka, topic: TopicFactory, start: int, end: int, expected: Sequence[int]
    ) -> None:
        name = topic(partitions=2)
        produce(kafka, name, numbers(0, 10))
        produce(kafka, name, numbers(50, 10), 1)

        assert values(kafka, Slice(0, name, 0, start, end)) == [(number, str(number).encode()) for number in expected]

    def test_records_have_all_that_was_written(self, kafka: Kafka, topic: TopicFactory) -> None:
        name = topic(**KEPT)
        writer = clients.producer(kafka)
        writer.produce(name, b"\x00\xff", key="key", timestamp=NOON, headers=[("a", b"1"), ("a", None), ("b", "text")])
        writer.produce(name, None, key=b"", partition=0, timestamp=NOON + 1)
        writer.produce(name, "text", partition=0, timestamp=NOON + 2, headers={})
        assert writer.flush(30) == 0

        first, second, third = read_all(kafka, Slice(0, name, 0, 0, 3), with_headers=True)

        assert (first["key"], first["value"], int(first["timestamp"].timestamp() * 1000)) == (b"key", b"\x00\xff", NOON)
        assert first["headers"] == [
            {"key": "a", "value": b"1"},
            {"key": "a", "value": None},
            {"key": "b", "value": b"text"},
        ]
        assert (second["key"], second["value"], second["headers"]) == (b"", None, [])
        assert (third["key"], third["value"], third["headers"]) == (None, b"text", [])

    def test_a_start_that_expired_is_a_loss(self, kafka: Kafka, topic: TopicFactory) -> None:
        name = topic()
        produce(kafka, name, numbers(0, 10))
        delete_records(kafka.bootstrap_servers, name, 4)

        with pytest.raises(
            DataLossError, match=r"offsets 2\.\.10 were planned, but the log does not hold them any more"
        ):
            values(kafka, Slice(0, name, 0, 2, 10))
        assert values(kafka, Slice(0, name, 0, 4, 6)) == [(4, b"4"), (5, b"5")]

    def test_a_start_behind_the_end_is_a_cut_log(self, kafka: Kafka, topic: TopicFactory) -> None:
        name = topic()
        produce(kafka, name, numbers(0, 3))

        with pytest.raises(LogTruncatedError, match=r"offsets 5\.\.9 were planned, but the log ends before them"):
            values(kafka, Slice(0, name, 0, 5, 9))

    def test_records_that_do_not_come_are_waited_for(self, kafka: Kafka, topic: TopicFactory) -> None:
        name = topic()
        produce(kafka, name, numbers(0, 3))

        with pytest.raises(ReadError, match=r"no record came for 4 s at offset 3, 2 offsets before the end 5"):
            values(kafka, Slice(0, name, 0, 0, 5), idle_timeout=4)

    def test_a_deleted_topic_is_named(self, kafka: Kafka, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(errors, "_UNKNOWN_SECONDS", 0.2)
        name = topic()
        produce(kafka, name, numbers(0, 3))
        delete_topic(kafka.bootstrap_servers, name)

        with pytest.raises(UnknownTopicError, match=f"{re.escape(name)}.0.: the cluster has not known this partition"):
            values(kafka, Slice(0, name, 0, 0, 3), idle_timeout=30)
