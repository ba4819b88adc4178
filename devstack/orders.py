"""Produce order events for the examples, the demo and the benchmarks. The same seed gives the same records."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from devstack.topics import create_topic

CUSTOMERS = 10_000
PADDING = "packed with care, deliver to the back door"
PRODUCER: dict[str, Any] = {
    "log_level": 3,  # errors only; a broker that is still starting causes warnings
    "enable.idempotence": True,
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 500_000,
}
"""librdkafka settings for producing many records quickly."""

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_FLUSH_TIMEOUT = 120.0
_POLL_EVERY = 10_000


def order_json(order_id: int, customer: str, cents: int, created: str) -> bytes:
    """Return an order of about 150 bytes. `json.dumps` would take most of a producer's time, so it is not used."""
    return (
        f'{{"id": {order_id}, "customer": "{customer}", "amount": {cents // 100}.{cents % 100:02d}, '
        f'"created": "{created}", "note": "{PADDING}"}}'
    ).encode()


def created_at(order_id: int) -> str:
    """Return the time of an order: there are a thousand in each second."""
    return (_EPOCH + timedelta(seconds=order_id // 1000)).strftime("%Y-%m-%dT%H:%M:%SZ")


def produce_orders(
    bootstrap_servers: str,
    topic: str,
    count: int,
    start_id: int = 0,
    partitions: int = 4,
    *,
    seed: int = 0,
    config: dict[str, Any] | None = None,
) -> int:
    """Produce orders with the ids ``start_id`` to ``start_id + count - 1``, keyed by customer.

    :param partitions: of the topic, if it must be created
    :param seed: determines customers and amounts, together with ``start_id``
    :param config: librdkafka settings; they override `PRODUCER`
    :return: the number of records that the broker acknowledged, which is ``count``
    :raises KafkaException: a record was not delivered
    """
    create_topic(bootstrap_servers, topic, partitions)
    producer = Producer(
        PRODUCER
        | {
            "bootstrap.servers": bootstrap_servers,
            # A callback for every record would take as long as producing the record.
            "delivery.report.only.error": True,
        }
        | (config or {})
    )
    failed: list[KafkaError] = []

    def note_failure(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    random_bits = random.Random(f"{seed}/{start_id}").getrandbits
    produce = producer.produce
    for order_id in range(start_id, start_id + count):
        if order_id % 1000 == 0 or order_id == start_id:
            created = created_at(order_id)
            producer.poll(0)
            if failed:
                break
        bits = random_bits(48)
        customer = f"customer-{bits % CUSTOMERS:05d}"
        value = order_json(order_id, customer, 100 + (bits >> 16) % 100_000, created)
        while True:
            try:
                produce(topic, value, customer, on_delivery=note_failure)
                break
            except BufferError:
                producer.poll(0.1)
    undelivered = producer.flush(_FLUSH_TIMEOUT)
    if failed:
        raise KafkaException(failed[0])
    if undelivered:
        raise TimeoutError(f"{undelivered} of {count} records to {topic} not acknowledged after {_FLUSH_TIMEOUT:g} s")
    return count
