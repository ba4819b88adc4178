"""Consumers of the Kafka client, as exact reading needs them."""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.threads import in_background
from airflow_kafka_offsets.kafka.config import client_log
from airflow_kafka_offsets.kafka.errors import DENIED, unusable

log = logging.getLogger(__name__)

# The client waits for as many messages as it was asked for. This bounds the wait at the end of a slice whose last
# offsets have no record.
WAIT_SECONDS = 0.1

# In which a client closes that does not wait for ever.
_CLOSE_SECONDS = 10

_POLL_SECONDS = 0.05

# A day, the most that the client takes for an interval.
LONGEST_MS = 86_400_000


def consumer_config(config: Mapping[str, Any], group_id: str, isolation_level: str) -> dict[str, Any]:
    """Return the configuration of a consumer: that of the connection, with the settings that exact reading needs."""
    return {
        # A slice fills the consumer's queue at once. Fetching then pauses, by default for a second, in which the queue
        # runs empty. A connection may still override it.
        "fetch.queue.backoff.ms": 10,
        # The client decompresses all that a fetch returns, and fetches again while its queue has room: these bound its
        # memory where producers compress well. A whole fetch is two thousand small records, which takes long enough for
        # the next one to come.
        "fetch.message.max.bytes": 256 << 10,
        "queued.max.messages.kbytes": 16 << 10,
        # By default the client has 100,000 records waiting, which leave the CPU's cache until they are taken, and of
        # which those after the slice are thrown away. With fewer, a record of a slice of 200,000 takes 0.15 µs less,
        # one of 50,000 0.9 µs.
        "queued.min.messages": 10_000,
        **config,
        # The client demands one. Partitions are assigned and nothing is committed to Kafka, so that no group forms.
        "group.id": group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # An offset that is gone must be an error here, never a silent jump.
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "isolation.level": isolation_level,
        # Report a missing topic at once, not after half a minute; kafka.errors decides how long to wait for it.
        "topic.metadata.propagation.max.ms": 0,
        # Records wait in the consumer while Spark works on earlier ones; the consumer is not dead then.
        "max.poll.interval.ms": LONGEST_MS,
    }


def new_consumer(config: Mapping[str, Any]) -> Consumer:
    """Return a consumer.

    :raises ConfigurationError: the client cannot be made of the configuration
    """
    try:
        return Consumer(dict(config), logger=client_log)
    except KafkaException as error:
        # As for a file of certificates that the worker has, and this machine has not.
        raise unusable(config, error, f" on {platform.node()}") from error


def committed_of_group(
    consumer: Consumer, partitions: Sequence[TopicPartition], seconds: float
) -> list[ClientPartition]:
    """Return what the group of a consumer has committed, with errors of single partitions, and close the consumer.

    Not by the AdminClient: where the group's coordinator moves, or its connection breaks, before the answer is there,
    that ends the process (librdkafka 2.16: it lets the client's own group look for its coordinator, which it has not).

    :param consumer: does not join the group
    :param seconds: that it may take
    :raises KafkaException: Kafka did not answer, or refused to
    """
    # librdkafka ends its own wait; a call that is under way holds the consumer.
    asked = [ClientPartition(*tp) for tp in partitions]
    answer: Future[list[ClientPartition]] = in_background(lambda: consumer.committed(asked, timeout=seconds))
    try:
        while not answer.done():
            # What Kafka says of the group as a whole is an event.
            event = consumer.poll(_POLL_SECONDS)
            error = event.error() if event is not None else None
            if error is not None and error.code() in DENIED:
                raise KafkaException(error)
        return answer.result()
    finally:
        answer.add_done_callback(lambda _: close(consumer))


def close(consumer: Consumer) -> None:
    """Close a consumer, or leave it after a while.

    librdkafka 2.16 waits for itself if a broker's answer that an offset is out of range arrives while it closes: it
    destroys the reset of the offset, which locks the partition once more.
    """
    closed = in_background(consumer.close)
    try:
        closed.result(_CLOSE_SECONDS)
    except TimeoutError:
        log.warning("A Kafka client has not closed for %d seconds, and is left as it is", _CLOSE_SECONDS)


def separate(messages: list[Message], errors: list[KafkaError]) -> tuple[list[Message], int | None]:
    """Separate records from events.

    :param errors: takes what is neither a record nor an end of log
    :return: the records, and the end of the log, if it was reached after them
    """
    records = [message for message in messages if message.error() is None]
    log_end = None
    if len(records) != len(messages):
        for message in messages:
            error = message.error()
            if error is None:
                log_end = None
            elif error.code() == KafkaError._PARTITION_EOF:
                log_end = message.offset()
            else:
                errors.append(error)
    return records, log_end
