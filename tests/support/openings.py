"""Openings of tests of loads: records of a certain time, a batch that is open."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_kafka_offsets.core.instants import milliseconds
from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.spark.job import StageJob
from devstack.process import wait_until
from tests.support.clients import Kafka, Transactions, producer
from tests.support.inline import Fails
from tests.support.loads import CountingLauncher, Loader, names, rows

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


KEPT: dict[str, Any] = {"retention_ms": "-1"}  # records of that day would expire at once


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def produce_at(kafka: Kafka, topic: str, minutes: Sequence[float], *, first: int = 0, partition: int = 0) -> None:
    """Records with ids from `first` on, whose timestamps are so many minutes after noon."""
    writer = producer(kafka)
    for number, value in zip(minutes, names(first, len(minutes)), strict=True):
        writer.produce(topic, value, partition=partition, timestamp=milliseconds(at(number)))
    assert writer.flush(30) == 0


def one_record_transactions(kafka: Kafka, topic: str, minutes: Sequence[float]) -> None:
    """Records as `produce_at` writes them, each in a transaction of its own: at even offsets, with markers of now at
    odd ones.
    """
    writer = Transactions(kafka, topic)
    for number, minute in enumerate(minutes):
        writer.commit(names(number, 1), milliseconds(at(minute)))
    wait_until(lambda: end(kafka, topic) == 2 * len(minutes), 30, "the transactions to be visible")


def end(kafka: Kafka, topic: str) -> int:
    """The end of partition 0 as readers of committed records see it."""
    return Cluster({"bootstrap.servers": kafka.bootstrap_servers}).logs([topic])[TopicPartition(topic, 0)].end


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


class Dies(CountingLauncher):
    """Spark that ends before it has staged anything."""

    def __call__(self, job: StageJob) -> None:
        raise RuntimeError("no executor left")


def die_after_the_plan(loader: Loader, *topics: str) -> None:
    with pytest.raises(StagingError, match="no executor left"):
        Loader(loader.kafka, loader.engine, Dies(loader.launcher._spark))(*topics)
