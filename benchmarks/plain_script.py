"""A load by one process without Spark: confluent-kafka, json, COPY, and offsets in the transaction of the rows."""

from __future__ import annotations

from json import JSONDecoder

from confluent_kafka import Consumer, Message, TopicPartition

from benchmarks.load import Load
from devstack.topics import end_offsets

_BATCH = 10_000
_OFFSETS = 'CREATE TABLE offsets ("partition" int PRIMARY KEY, "offset" bigint NOT NULL)'
_ADVANCE = """
    INSERT INTO offsets VALUES (%s, %s) ON CONFLICT ("partition") DO UPDATE SET "offset" = excluded."offset"
"""

# Amounts stay text, which is exact, and which COPY sends.
_decode = JSONDecoder(parse_float=str).decode


def load_orders(load: Load) -> None:
    load.create_table()
    bootstrap_servers, topic = load.kafka.bootstrap_servers, load.dataset.topic
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": load.database,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    with load.connect() as conn:
        conn.execute(_OFFSETS)
        stored = dict(conn.execute("SELECT * FROM offsets").fetchall())
        positions = {number: stored.get(number, 0) for number in range(load.dataset.shape.partitions)}
        left = sum(end_offsets(bootstrap_servers, topic).values()) - sum(positions.values())
        consumer.assign([TopicPartition(topic, number, offset) for number, offset in positions.items()])
        while left > 0:
            messages = consumer.consume(min(_BATCH, left), 10.0)
            errors = [message.error() for message in messages if message.error()]
            assert messages, "no record came for 10 s"
            assert not errors, errors[0].str()
            with conn.cursor() as cursor:
                with cursor.copy("COPY orders (id, customer, amount, created) FROM STDIN") as copy:
                    for message in messages:
                        copy.write_row(_row(message))
                for message in messages:
                    positions[message.partition()] = message.offset() + 1
                cursor.executemany(_ADVANCE, list(positions.items()))
            conn.commit()
            left -= len(messages)
    consumer.close()


def _row(message: Message) -> tuple[int, str, str, str]:
    order = _decode(message.value().decode())
    return order["id"], order["customer"], order["amount"], order["created"]
