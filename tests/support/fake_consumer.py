"""A consumer that plays a script: what the real one reports in moments that no test can make a broker have."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_kafka_offsets.kafka import consumer as consumer_module
from airflow_kafka_offsets.kafka import errors
from tests.support.messages import FakeMessage

TIMED_OUT = KafkaException(KafkaError(KafkaError._TRANSPORT))


def failure(code: int, text: str | None = None, offset: int = -1001) -> FakeMessage:
    return FakeMessage(offset, None, problem=KafkaError(code, text))


def end_of_log(offset: int) -> FakeMessage:
    return failure(KafkaError._PARTITION_EOF, offset=offset)


Step: TypeAlias = list[FakeMessage] | KafkaError
"""What one call of `consume` brings: messages, or an error that the client reports aside."""


@dataclass
class FakeConsumer:
    """
    :param script: one step a call of `consume`; nothing comes behind its end
    :param topics: what the cluster says of the topic's partitions when asked; None for that it has no such topic
    :param beginning: the first offset of the log
    :param asked: how many messages each call wanted
    :param log: the records that another consumer finds; None for those of the script
    :param collecting: whether Python collected garbage while messages came
    """

    script: Iterable[Step] = ()
    topics: dict[int, object] | KafkaException | None = field(default_factory=lambda: {0: object()})
    beginning: int | KafkaException = 0
    seconds_a_call: float = 0.5
    now: float = 1000.0
    closed: bool = False
    collecting: set[bool] = field(default_factory=set)
    assigned: list[Any] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    report: Callable[[KafkaError], None] = lambda error: None
    log: list[FakeMessage] | None = None

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeConsumer:
        steps = iter(self.script)
        self._next: Callable[[], Step] = lambda: next(steps, [])
        made_before: list[object] = []

        def made(config: dict[str, Any], logger: object) -> FakeConsumer | _SecondLook:
            if made_before:
                return _SecondLook(self._log())
            made_before.append(self)
            self.report = config["error_cb"]
            return self

        monkeypatch.setattr(consumer_module, "Consumer", made)
        monkeypatch.setattr(errors, "time", SimpleNamespace(monotonic=lambda: self.now))
        return self

    def _log(self) -> list[FakeMessage]:
        if self.log is not None:
            return self.log
        steps = self.script if isinstance(self.script, list) else []
        return [record for step in steps if isinstance(step, list) for record in step if record.problem is None]

    def assign(self, partitions: list[Any]) -> None:
        self.assigned = partitions

    def position(self, partitions: list[Any]) -> list[Any]:
        return [SimpleNamespace(offset=-1001)]

    def consume(self, count: int, timeout: float) -> list[FakeMessage]:
        self.now += self.seconds_a_call
        self.collecting.add(gc.isenabled())
        self.asked.append(count)
        step = self._next()
        if isinstance(step, KafkaError):
            self.report(step)
            return []
        return step

    def list_topics(self, topic: str, timeout: float) -> object:
        if isinstance(self.topics, KafkaException):
            raise self.topics
        unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART) if self.topics is None else None
        return SimpleNamespace(topics={topic: SimpleNamespace(error=unknown, partitions=self.topics or {})})

    def get_watermark_offsets(self, partition: object, timeout: float) -> tuple[int, int]:
        if isinstance(self.beginning, KafkaException):
            raise self.beginning
        return self.beginning, self.beginning + 10**6

    def close(self) -> None:
        self.closed = True


@dataclass
class _SecondLook:
    """Another consumer: it finds records by their true offsets."""

    log: list[FakeMessage]
    start: int = 0

    def assign(self, partitions: list[Any]) -> None:
        self.start = partitions[0].offset

    def consume(self, count: int, timeout: float) -> list[FakeMessage]:
        found = [record for record in self.log if record.at >= self.start]
        return found[:count] if found else [end_of_log(self.start)]

    def close(self) -> None:
        """Nothing is open."""
