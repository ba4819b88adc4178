"""A Kafka cluster in memory: topics, records, deleted records and the commits of consumer groups, without a broker.

Product code and test helpers use it through the clients of `confluent_kafka`, which `MemoryLog.install` replaces for
its own address alone; a real broker can be used beside it. What it cannot do (transactions, compaction, retention by
time, several brokers, other processes) it refuses. Its clients are in `memory_clients`.
`tests/kafka/test_memory_log.py` runs the same cases against it and a real broker.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Uuid

from airflow_kafka_offsets.kafka import admin, consumer, errors
from airflow_kafka_offsets.kafka import producer as kafka_producer
from devstack import topics
from devstack.kafka import new_cluster_id
from tests.support import clients
from tests.support.memory_clients import MemoryAdmin, MemoryConsumer, MemoryProducer, failure
from tests.support.messages import FakeMessage

# Where each kind of client is made.
_USERS: Mapping[str, Sequence[ModuleType]] = {
    "AdminClient": (admin, topics, clients),
    "Consumer": (consumer, clients),
    "Producer": (clients, kafka_producer),
}
_DEFAULTS = {
    "cleanup.policy": "delete",
    "retention.ms": str(7 * 24 * 3_600_000),
    "retention.bytes": "-1",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.type": "CreateTime",
    # These decide about files, of which there are none.
    "segment.bytes": "",
    "segment.ms": "",
    "file.delete.delay.ms": "",
}
_numbers = itertools.count(1)


@dataclass
class Log:
    """A partition: its records by offset, and where its log begins."""

    beginning: int = 0
    records: list[FakeMessage] = field(default_factory=list)

    @property
    def end(self) -> int:
        return len(self.records)


@dataclass
class Topic:
    """A topic, with an id of its own."""

    logs: list[Log]
    config: dict[str, str]
    topic_id: Uuid = field(default_factory=lambda: _new_id())


@dataclass
class MemoryLog:
    """A cluster. Its address is `bootstrap_servers`, as that of a broker; only clients of this process reach it."""

    bootstrap_servers: str = field(default_factory=lambda: f"memory-log-{next(_numbers)}.invalid:9092")
    cluster_id: str = field(default_factory=new_cluster_id)
    topics: dict[str, Topic] = field(default_factory=dict)
    commits: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
        """Have clients of this address work on this log."""
        kinds: dict[str, Callable[..., Any]] = {
            "AdminClient": MemoryAdmin,
            "Consumer": MemoryConsumer,
            "Producer": MemoryProducer,
        }
        for kind, users in _USERS.items():
            for user in users:
                monkeypatch.setattr(user, kind, self._dispatch(getattr(user, kind), kinds[kind]))
        # What it does not know, it does not know: no other broker has yet to hear of a topic.
        monkeypatch.setattr(admin, "_UNKNOWN_GRACE_SECONDS", 0.0)
        monkeypatch.setattr(errors, "_UNKNOWN_SECONDS", 0.0)
        return self

    def _dispatch(self, real: Callable[..., Any], in_memory: Callable[..., Any]) -> Callable[..., Any]:
        def client(config: Mapping[str, Any], **options: Any) -> Any:
            if config["bootstrap.servers"] == self.bootstrap_servers:
                return in_memory(self, config)
            return real(config, **options)

        return client

    def create(self, name: str, partitions: int, config: Mapping[str, Any]) -> None:
        with self.changed:
            if name in self.topics:
                raise failure(KafkaError.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
            settings = _DEFAULTS | {key: str(value) for key, value in config.items()}
            beyond = sorted(settings.keys() - _DEFAULTS.keys())
            assert not beyond, f"the log in memory knows no {beyond}: this test needs a broker"
            assert settings["cleanup.policy"] == "delete", (
                "the log in memory does not compact: this test needs a broker"
            )
            self.topics[name] = Topic([Log() for _ in range(partitions)], settings)

    def add_partitions(self, name: str, count: int) -> None:
        with self.changed:
            logs = self.topic(name).logs
            if count <= len(logs):
                raise failure(KafkaError.INVALID_PARTITIONS)
            logs.extend(Log() for _ in range(count - len(logs)))

    def delete(self, name: str) -> None:
        with self.changed:
            self.topic(name)
            del self.topics[name]
            for commits in self.commits.values():
                for key in [key for key in commits if key[0] == name]:
                    del commits[key]
            self.changed.notify_all()

    def delete_records(self, name: str, partition: int, before: int) -> int:
        with self.changed:
            log = self.log(name, partition)
            before = log.end if before == -1 else before
            if not 0 <= before <= log.end:
                raise failure(KafkaError.OFFSET_OUT_OF_RANGE)
            log.beginning = max(log.beginning, before)
            self.changed.notify_all()
            return log.beginning

    def append(self, name: str, partition: int, message: FakeMessage) -> FakeMessage:
        with self.changed:
            log, config = self.log(name, partition), self.topic(name).config
            now = int(time.time() * 1000)
            timestamp = message.timestamp_ms or now
            if config["message.timestamp.type"] == "LogAppendTime":
                timestamp = now
            elif not (
                now - int(config["message.timestamp.before.max.ms"])
                <= timestamp
                <= now + int(config["message.timestamp.after.max.ms"])
            ):
                raise failure(KafkaError.INVALID_TIMESTAMP)
            stored = FakeMessage(
                log.end, message.body, message.name, timestamp, message.fields, of_topic=name, of_partition=partition
            )
            log.records.append(stored)
            self.changed.notify_all()
            return stored

    def topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise failure(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return self.topics[name]

    def log(self, name: str, partition: int) -> Log:
        logs = self.topic(name).logs
        if not 0 <= partition < len(logs):
            raise failure(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return logs[partition]

    def metadata(self, topic: str | None = None) -> Any:
        """As `list_topics` returns it."""
        with self.changed:
            names = list(self.topics) if topic is None else [topic]
            found = {}
            for name in names:
                known = self.topics.get(name)
                error = None if known else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
                partitions = (
                    {number: SimpleNamespace(id=number, error=None) for number in range(len(known.logs))}
                    if known
                    else {}
                )
                found[name] = SimpleNamespace(topic=name, error=error, partitions=partitions)
            return SimpleNamespace(cluster_id=self.cluster_id, topics=found, brokers={1: SimpleNamespace(id=1)})


def _new_id() -> Uuid:
    number = uuid.uuid4().int
    return Uuid((number >> 64) - 2**63, (number & (2**64 - 1)) - 2**63)
