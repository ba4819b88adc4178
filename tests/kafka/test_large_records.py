"""Producers that are not trusted: records that explode when they are decompressed, and those that the client
refuses.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats.columns import row_columns
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.kafka.consumer import consumer_config
from airflow_kafka_offsets.kafka.reader import read
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.staging.rows import TargetColumns
from tests.support.clients import Kafka, produce, producer
from tests.support.loads import TopicFactory
from tests.support.staged_alone import most_memory

pytestmark = pytest.mark.server

FORMAT = Json("id BIGINT, name STRING")
# A producer limits its records before it compresses them.
UNLIMITED: dict[str, Any] = {"message.max.bytes": 1_000_000_000}


def offsets(kafka: Kafka, one: Slice, **config: Any) -> list[int]:
    settings = consumer_config({"bootstrap.servers": kafka.bootstrap_servers, **config}, "reader", "read_committed")
    return [offset for batch in read(one, settings) for offset in batch.column("offset").to_pylist()]


@pytest.mark.parametrize(
    ("value", "writer", "reader"),
    [
        (bytes(120_000_000), {"compression.type": "zstd"}, {}),
        (
            os.urandom(3_000_000),
            {},
            {"receive.message.max.bytes": 1_000_512, "fetch.max.bytes": 1_000_000, "message.max.bytes": 1_000_000},
        ),
    ],
    ids=["exploding", "large"],
)
def test_a_record_that_the_client_refuses_is_an_error_that_names_the_setting(
    broker: Kafka, topic: TopicFactory, value: bytes, writer: dict[str, Any], reader: dict[str, Any]
) -> None:
    name = topic(max_message_bytes=10_000_000)
    produce(broker, name, [b"1", b"2"])
    produce(broker, name, [value], **UNLIMITED, **writer)
    produce(broker, name, [b"4"])

    with pytest.raises(
        ConfigurationError, match=rf"^{name}\[0\] cannot be read at offset 2: .*receive\.message\.max\.bytes"
    ) as caught:
        offsets(broker, Slice(0, name, 0, 0, 4), **reader)

    assert not caught.value.retriable
    # It matters to nobody who reads other records.
    assert offsets(broker, Slice(0, name, 0, 0, 2), **reader) == [0, 1]
    assert offsets(broker, Slice(0, name, 0, 3, 4), **reader) == [3]


@pytest.mark.parametrize(
    ("count", "megabytes", "most"),
    [pytest.param(8, 60, 1024, marks=pytest.mark.long), (8, 20, 600)],
    ids=["eight of 60 MB", "eight of 20 MB"],
)
def test_exploding_records_take_bounded_memory(
    broker: Kafka, topic: TopicFactory, tmp_path: Path, count: int, megabytes: int, most: int
) -> None:
    name = topic(max_message_bytes=10_000_000)
    value = b'{"id": 1, "name": "%s"}' % (b"x" * (megabytes * 1_000_000))
    for _ in range(count):
        produce(broker, name, [value], **UNLIMITED | {"compression.type": "gzip"})
    job = StageJob(
        batch_id=1,
        group_id="group",
        tasks=((Slice(0, name, 0, 0, count),),),
        kafka_config={"bootstrap.servers": broker.bootstrap_servers},
        isolation_level="read_committed",
        record_format=FORMAT,
        columns=row_columns(FORMAT),
        transform=None,
        target=TargetColumns("orders", None),
        fingerprint="f00d",
        staging_uri=str(tmp_path),
    )

    memory = most_memory(job)
    assert memory < most, memory


SEARCH = """
import sys
from pathlib import Path
from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.start_offsets import TimeSearch

servers, topic, partitions, timestamp = sys.argv[1:]
search = TimeSearch(Cluster({"bootstrap.servers": servers}), "search")
found = search.first_records({TopicPartition(topic, place): int(timestamp) for place in range(int(partitions))})
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(len(found), int(status["VmHWM"].split()[0]) >> 10)
"""


@pytest.mark.long
def test_a_search_by_time_looks_at_few_partitions_at_once(broker: Kafka, topic: TopicFactory) -> None:
    partitions, now = 6, int(time.time() * 1000)
    name = topic(partitions=partitions)
    whole: dict[str, Any] = {"linger.ms": 60_000, "batch.num.messages": 1_000_000, "batch.size": 100_000_000}
    writer = producer(broker, **whole, **{"compression.type": "zstd", "queue.buffering.max.messages": 0})
    for partition in range(partitions):
        for _ in range(400_000):
            writer.produce(name, b"", partition=partition, timestamp=now)
        assert writer.flush(60) == 0

    def searched(count: int) -> list[int]:
        command = [sys.executable, "-c", SEARCH, broker.bootstrap_servers, name, str(count), str(now)]
        return [int(word) for word in subprocess.check_output(command, text=True).split()]

    (found, most), (_, one) = searched(partitions), searched(1)
    assert found == partitions
    assert most < 2.5 * one, (most, one)
