"""Slices read in this process, and records that are numbers."""

from __future__ import annotations

from typing import Any

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.kafka.consumer import consumer_config
from airflow_kafka_offsets.kafka.reader import read
from tests.support.clients import Kafka


def read_all(kafka: Kafka, one: Slice, **options: Any) -> list[dict[str, Any]]:
    config = consumer_config({"bootstrap.servers": kafka.bootstrap_servers}, "reader", "read_committed")
    return [row for batch in read(one, config, **options) for row in batch.to_pylist()]


def numbers(first: int, count: int) -> list[bytes | None]:
    return [str(number).encode() for number in range(first, first + count)]
