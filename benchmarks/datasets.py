"""The records that every contender loads: JSON orders in four shapes, the same in every run."""

from __future__ import annotations

import random
from typing import NamedTuple, Self

from confluent_kafka import Producer

from devstack.orders import CUSTOMERS, PADDING, PRODUCER, created_at, order_json
from devstack.topics import create_topic, end_offsets

COLUMNS = "id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP"

_FLUSH_SECONDS = 300.0


class Shape(NamedTuple):
    """
    :param title: in tables
    :param partitions: of the topic
    :param more_bytes: of text in each record, in no column
    :param skewed: whether nine of ten records are in partition 0; otherwise the key decides
    """

    title: str
    partitions: int = 4
    more_bytes: int = 0
    skewed: bool = False


SHAPES = {
    "orders": Shape("150 bytes, 4 partitions"),
    "wide": Shape("1 KB, 4 partitions", more_bytes=860),
    "many-partitions": Shape("150 bytes, 64 partitions", partitions=64),
    "skewed": Shape("150 bytes, 4 partitions, one with 90 %", skewed=True),
}


class Dataset(NamedTuple):
    """A number of records of a shape, in their own topic, with the ids 0 to `records - 1`."""

    name: str
    records: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a data set.

        :param text: `shape:records`, for example `orders:200000`
        :raises ValueError: it has another form
        """
        name, _, records = text.partition(":")
        if name not in SHAPES or int(records) < 1:
            raise ValueError(f"expected one of {', '.join(SHAPES)}, a colon and a number; got {text!r}")
        return cls(name, int(records))

    @property
    def shape(self) -> Shape:
        return SHAPES[self.name]

    @property
    def topic(self) -> str:
        return f"{self.name}-{self.records}"

    @property
    def title(self) -> str:
        return f"{self.records:,} records, {self.shape.title}"

    def produce(self, bootstrap_servers: str) -> None:
        """Create the topic, and produce the records."""
        create_topic(bootstrap_servers, self.topic, self.shape.partitions)
        self.append(bootstrap_servers)
        produced = sum(end_offsets(bootstrap_servers, self.topic).values())
        assert produced == self.records, f"{produced} of {self.records} records were produced"

    def append(self, bootstrap_servers: str) -> None:
        """Produce all records, also if the topic has them already."""
        shape = self.shape
        producer = Producer(PRODUCER | {"bootstrap.servers": bootstrap_servers})
        random_bits = random.Random(0).getrandbits
        more = f', "more": "{(PADDING * 100)[: shape.more_bytes]}"}}'.encode() if shape.more_bytes else b""
        for number in range(self.records):
            if number % 1000 == 0:
                created = created_at(number)
                producer.poll(0)
            bits = random_bits(48)
            customer = f"customer-{bits % CUSTOMERS:05d}"
            value = order_json(number, customer, 100 + (bits >> 16) % 100_000, created)
            if more:
                value = value[:-1] + more
            # With -1 the key decides.
            partition = -1 if not shape.skewed else 0 if number % 10 else 1 + number // 10 % (shape.partitions - 1)
            while True:
                try:
                    producer.produce(self.topic, value, customer, partition)
                    break
                except BufferError:
                    producer.poll(0.1)
        undelivered = producer.flush(_FLUSH_SECONDS)
        assert undelivered == 0, f"{undelivered} records were not produced"
