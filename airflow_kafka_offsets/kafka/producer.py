"""Writes records to a topic, at least once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from airflow_kafka_offsets.core.chunks import chunks
from airflow_kafka_offsets.exceptions import KafkaOffsetsError, KafkaUnavailableError, UnknownTopicError
from airflow_kafka_offsets.kafka.config import check_config, client_log
from airflow_kafka_offsets.kafka.errors import DENIED, UNKNOWN, denied, refused_connection

_SECONDS = 30.0

# librdkafka reports none of the headers of a record with more, so that readers would not see the notes.
_MOST_HEADERS = 100_000

# What would contradict, or weaken, what `producer_config` sets.
_OVERRIDDEN = frozenset(
    [
        "acks",
        "request.required.acks",
        "transactional.id",
        "transaction.timeout.ms",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "retries",
        "message.send.max.retries",
        "message.timeout.ms",
        "delivery.timeout.ms",
        "delivery.report.only.error",
        "queue.buffering.max.messages",
        "queue.buffering.max.kbytes",
        "batch.num.messages",
    ]
)


class Outgoing(NamedTuple):
    """A record to write.

    :param headers: its own
    :param notes: headers that are written in any case
    """

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    notes: Sequence[tuple[str, bytes | None]]


class _Failed(NamedTuple):
    record: Outgoing
    error: KafkaError


def producer_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a producer: that of the connection, acknowledged by all replicas in sync, and
    idempotent.
    """
    kept = {name: value for name, value in check_config(config).items() if name not in _OVERRIDDEN}
    return {
        # The topic decides what is too large.
        "message.max.bytes": 1_000_000_000,
        **kept,
        "acks": "all",
        "enable.idempotence": True,
        # A misspelt name must not become a topic.
        "allow.auto.create.topics": False,
        "delivery.timeout.ms": int(_SECONDS * 1000),
    }


def send(config: Mapping[str, Any], topic: str, records: Iterable[Outgoing], left_out: tuple[str, bytes]) -> int:
    """Write records to a topic, and wait until all replicas in sync have them. An error leaves some of them written.

    A record that is larger than the topic allows, or has more headers than readers see, is written without its key,
    value and headers, with its notes and one more.

    :param config: of the connection
    :param left_out: the note of a record without its contents
    :return: how many are without their contents
    :raises ConfigurationError: this user may not write to the topic
    :raises UnknownTopicError: there is no such topic
    :raises KafkaUnavailableError: not all records were acknowledged in time
    """
    producer = Producer(producer_config(config), logger=client_log)
    # A producer waits for a topic that does not exist.
    try:
        unknown = producer.list_topics(topic, timeout=_SECONDS).topics[topic].error
    except KafkaException as error:
        raise _error(config, topic, error.args[0]) from error
    if unknown is not None:
        raise _error(config, topic, unknown)
    without = 0
    for some in chunks(records, _bytes):
        # One that is too large takes those of its batch with it.
        for failed in _too_large(_written(producer, topic, some), config, topic):
            for alone in _too_large(_written(producer, topic, [failed.record]), config, topic):
                stripped = Outgoing(None, None, (), [*alone.record.notes, left_out])
                if refused := _written(producer, topic, [stripped]):
                    raise _error(config, topic, refused[0].error)
                without += 1
    return without


HEADER_BYTES = 250
"""What a header takes besides its name and value, here and in the client."""


def _bytes(record: Outgoing) -> int:
    own = sum(HEADER_BYTES + len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + own


def _written(producer: Producer, topic: str, records: Sequence[Outgoing]) -> list[_Failed]:
    """Write records, and return those that were not acknowledged."""
    failed: list[_Failed] = []

    def reported(record: Outgoing) -> Any:
        return lambda error, _: failed.append(_Failed(record, error)) if error is not None else None

    for record in records:
        headers: Any = [*record.headers, *record.notes]
        if len(headers) > _MOST_HEADERS:
            failed.append(_Failed(record, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)))
            continue
        try:
            producer.produce(topic, record.value, record.key, headers=headers, on_delivery=reported(record))
        except KafkaException as error:
            failed.append(_Failed(record, error.args[0]))
    # The client reports each record after at most `_SECONDS`.
    producer.flush(2 * _SECONDS)
    return failed


def _too_large(failures: Iterable[_Failed], config: Mapping[str, Any], topic: str) -> Iterator[_Failed]:
    """Yield the records that are too large; raise the first of the other errors."""
    for failed in failures:
        if failed.error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
            raise _error(config, topic, failed.error)
        yield failed


def _error(config: Mapping[str, Any], topic: str, error: KafkaError) -> KafkaOffsetsError:
    what = f"Records cannot be written to topic {topic!r}"
    if error.code() in DENIED:
        return denied(config, what, "Write", [f"topic {topic!r}"])
    if error.code() in UNKNOWN:
        return UnknownTopicError(
            f"{what} of Kafka at {config['bootstrap.servers']}: it does not exist, or this user may not describe it. "
            "Create it, or correct the name"
        )
    return refused_connection(config, error) or KafkaUnavailableError(f"{what}: {error.str()}")
