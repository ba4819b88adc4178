"""The messages that fakes of the Kafka client hand out."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import KafkaError


@dataclass(frozen=True)
class FakeMessage:
    """A record, or an event where it has a problem."""

    at: int
    body: bytes | None = b"{}"
    name: bytes | None = None
    timestamp_ms: int = -1
    fields: list[tuple[str, bytes | None]] | None = None
    problem: KafkaError | None = None
    of_topic: str = "orders"
    of_partition: int = 0

    def offset(self) -> int:
        return self.at

    def value(self) -> bytes | None:
        return self.body

    def key(self) -> bytes | None:
        return self.name

    def timestamp(self) -> tuple[int, int]:
        return (0 if self.timestamp_ms < 0 else 1, self.timestamp_ms)

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.fields

    def topic(self) -> str:
        return self.of_topic

    def partition(self) -> int:
        return self.of_partition

    def error(self) -> KafkaError | None:
        return self.problem
