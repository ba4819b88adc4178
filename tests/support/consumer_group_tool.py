"""Kafka's own ConsumerGroupCommand, and a topic that it and this package see alike."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.instants import milliseconds
from airflow_kafka_offsets.core.offsets import parse_scope
from airflow_kafka_offsets.rewinding.execution import execute_rewind
from airflow_kafka_offsets.rewinding.previewing import preview_rewind
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from devstack.java import QUICK_START
from devstack.kafka import KafkaBroker
from devstack.topics import create_topic, delete_records
from tests.support import clients
from tests.support.clients import commit_to_kafka

Offsets = dict[tuple[str, int], int]


# Records are a second apart, from here on; the last 40 of partition 0 are of now.
BEGUN = datetime.now(UTC).replace(microsecond=0) - timedelta(days=2)


COMMITTED = {0: 40, 1: 50, 2: 10, 3: 50, 5: 10}


WITH_COMMIT = "0,1,2,3,5"


class ConsumerGroupTool:
    """`kafka-consumer-groups`, which is asked every question once: a JVM takes a second or more."""

    def __init__(self, kafka: KafkaBroker) -> None:
        self._kafka = kafka
        self._said: dict[tuple[str, ...], str] = {}

    def __call__(self, *arguments: str) -> str:
        if arguments not in self._said:
            self._said[arguments] = self._kafka.run_class(
                "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
                "--bootstrap-server",
                self._kafka.bootstrap_servers,
                *arguments,
                java_options=QUICK_START,
            )
        return self._said[arguments]

    def new_offsets(self, group: str, *arguments: str) -> Offsets:
        """NEW-OFFSET by topic and partition."""
        said = self("--group", group, "--reset-offsets", "--dry-run", *arguments)
        found = re.findall(rf"^{group}\s+(\S+)\s+(\d+)\s+(\d+)\s*$", said, re.MULTILINE)
        return {(topic, int(partition)): int(offset) for topic, partition, offset in found}

    def exported(self, *arguments: str) -> str:
        """The CSV that it prints among its log."""
        said = self("--reset-offsets", "--dry-run", "--export", *arguments)
        return "".join(line + "\n" for line in said.splitlines() if re.fullmatch(r"(\S+,)?\S+,\d+,\d+", line))


class Subject:
    """A topic, what a consumer group committed of it, and the same positions in a group of ours, in both databases.

    | partition | log | committed | |
    | --- | --- | --- | --- |
    | 0 | [0, 100) | 40 | |
    | 1 | [20, 100) | 50 | its beginning was deleted |
    | 2 | [30, 60) | 10 | retention has passed the position |
    | 3 | [0, 50) | 50 | read to its end |
    | 4 | [0, 80) | - | never read |
    | 5 | [10, 10) | 10 | emptied |
    """

    def __init__(self, kafka: KafkaBroker, topic: str, engines: Mapping[str, Engine]) -> None:
        self.kafka, self.topic, self.group = kafka, topic, topic
        self.config: dict[str, Any] = {"bootstrap.servers": kafka.bootstrap_servers}
        create_topic(kafka.bootstrap_servers, topic, 6, {"retention.ms": "-1"})
        self._produce()
        for partition, beginning in {1: 20, 5: 10}.items():
            delete_records(kafka.bootstrap_servers, topic, beginning, partition)
        commit_to_kafka(kafka, self.group, topic, COMMITTED)
        for engine in engines.values():
            execute_rewind(
                preview_rewind(
                    "loader",
                    Scenario.of("import", self.group),
                    engine=engine,
                    kafka_config=self.config,
                    scope=parse_scope([topic]),
                ),
                engine=engine,
            )
        delete_records(kafka.bootstrap_servers, topic, 30, 2)

    def _produce(self) -> None:
        producer = clients.producer(self.kafka)
        for partition, count in enumerate((60, 100, 60, 50, 80, 10)):
            for number in range(count):
                timestamp = milliseconds(BEGUN + timedelta(seconds=number))
                producer.produce(self.topic, b"{}", partition=partition, timestamp=timestamp)
        for _ in range(40):
            producer.produce(self.topic, b"{}", partition=0)
        assert producer.flush(30) == 0
