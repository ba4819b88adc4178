"""Whether a record is where it says, by another look; see `kafka.offset_order`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from airflow_kafka_offsets.exceptions import ReadError
from airflow_kafka_offsets.kafka.consumer import WAIT_SECONDS, close, new_consumer, separate
from airflow_kafka_offsets.kafka.errors import reasons
from airflow_kafka_offsets.kafka.offset_order import OffsetOrder


def prove_place(
    record: Message, consumer: Consumer, config: Mapping[str, Any], order: OffsetOrder, timeout: float
) -> None:
    """Prove that a record is where it says, by another look at that offset; see `OffsetOrder`.

    :param consumer: it came from
    :param timeout: seconds
    :raises OffsetOrderError: it is not
    :raises ReadError: none is there, or came in time
    """
    place = TopicPartition(record.topic(), record.partition(), record.offset())
    errors: list[KafkaError] = []
    try:
        _, log_end = consumer.get_watermark_offsets(place, timeout)
    except KafkaException as error:
        raise ReadError(f"{order.name}: the end of the log is not known: {error.args[0].str()}") from error
    if log_end <= place.offset:
        raise order.contradiction(f"the log ends at offset {log_end}")
    found = _first_at(place, config, errors, timeout)
    if found is None or found.offset() != place.offset:
        what = "nothing" if found is None else f"the record at offset {found.offset()}"
        raise ReadError(
            f"{order.name}: a record said that its offset is {place.offset}, and another look found {what} there: "
            f"{reasons(errors) or 'it was compacted meanwhile, or its producer has made a record batch by hand'}. "
            "Nothing of this batch was loaded: the next try replays the same range."
        )
    if _contents(found) != _contents(record):
        raise order.contradiction(f"another record is found at offset {place.offset}")


def _first_at(
    place: TopicPartition, config: Mapping[str, Any], errors: list[KafkaError], timeout: float
) -> Message | None:
    """Return the first record at or after an offset, as a new client finds it; None if there is none, or none came in
    time.

    :param errors: takes those of the client
    """
    deadline = time.monotonic() + timeout
    consumer = new_consumer({"error_cb": errors.append, **config})
    try:
        consumer.assign([place])
        while time.monotonic() < deadline:
            records, log_end = separate(consumer.consume(1, WAIT_SECONDS), errors)
            # The last error means that the offset is gone.
            if records or log_end is not None or KafkaError._AUTO_OFFSET_RESET in (each.code() for each in errors):
                return records[0] if records else None
        return None
    finally:
        close(consumer)


def _contents(record: Message) -> tuple[object, ...]:
    return record.key(), record.value(), record.timestamp()
