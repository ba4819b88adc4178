"""Read a slice of a partition, exactly: a generator of Arrow record batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from airflow_kafka_offsets.exceptions import ConfigurationError, DataLossError, ReadError
from airflow_kafka_offsets.offsets import Slice

# Messages a call into the client: enough to make the call's cost small, few enough to keep a batch in the cache.
_CHUNK = 10_000
# The client waits for a full chunk: where offsets have no record, nothing more than this is lost at the end of a slice.
_WAIT_SECONDS = 0.1
_ONE_DAY_MS = 86_400_000

_HOPELESS = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)

_client_log = logging.getLogger(f"{__name__}.librdkafka")
_client_log.addHandler(logging.NullHandler())
_client_log.propagate = False


def consumer_config(config: Mapping[str, Any], group_id: str, isolation_level: str) -> dict[str, Any]:
    """The connection's configuration, with what exact reading needs set over it."""
    return {
        **config,
        # Partitions are assigned and nothing is committed to Kafka, so that no group forms; the id only names us to
        # ACLs and quotas.
        "group.id": group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # An offset that is gone must be an error here, never a silent jump.
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "isolation.level": isolation_level,
        # Rows wait in the consumer while Spark works on earlier ones; that is not a dead consumer.
        "max.poll.interval.ms": _ONE_DAY_MS,
    }


def read(
    one: Slice,
    config: Mapping[str, Any],
    *,
    with_keys: bool = False,
    with_headers: bool = False,
    idle_timeout: float = 120.0,
) -> Iterator[pa.RecordBatch]:
    """Read every record of a slice, in order.

    A slice ends when the consumer's position reaches its end: never on an empty poll, and never on the last record's
    offset, since offsets may end in transaction markers, aborted records or compaction's holes.

    :param config: the result of `consumer_config`
    :param idle_timeout: seconds without a record and without an end of log after which reading is given up
    :return: record batches with the columns `value` (binary), `offset` (int64), `timestamp` (timestamp[us, UTC]) and, as
        asked for, `key` (binary) and `headers` (list of struct of key and value), as in Spark's own Kafka source
    :raises ReadError: the log could not be read to the slice's end; says why
    :raises DataLossError: the start of the slice is gone from the log
    :raises ConfigurationError: the credentials are wrong, or a right is missing
    """
    reasons: list[KafkaError] = []
    consumer = Consumer({**config, "error_cb": reasons.append}, logger=_client_log)
    try:
        consumer.assign([TopicPartition(one.topic, one.partition, one.start)])
        position = one.start
        deadline = time.monotonic() + idle_timeout
        while position < one.end:
            messages = consumer.consume(min(_CHUNK, one.end - position), _WAIT_SECONDS)
            records, reached = _sort_out(messages, one, reasons)
            _raise_if_hopeless(one, reasons)
            if records:
                reached = max(reached, records[-1].offset() + 1)
                if records[-1].offset() >= one.end:
                    records = [record for record in records if record.offset() < one.end]
            if reached > position:
                position = reached
                if records:
                    yield _record_batch(records, with_keys, with_headers)
                # After the yield: the time that Spark takes with the rows is not time without a record.
                deadline = time.monotonic() + idle_timeout
            elif time.monotonic() > deadline:
                raise ReadError(_stalled(one, position, idle_timeout, reasons))
    finally:
        consumer.close()


def _sort_out(messages: list[Message], one: Slice, reasons: list[KafkaError]) -> tuple[list[Message], int]:
    """Records apart from events.

    :return: the records, and the position that an end of log reports (0 where none does)
    """
    records = [message for message in messages if message.error() is None]
    reached = 0
    if len(records) != len(messages):
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                reached = max(reached, message.offset())
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise DataLossError(
                    f"{one.topic}[{one.partition}]: offsets {one.start}..{one.end} were planned, but the log does not "
                    f"hold them any more ({error.str()}). Retention or deleted records passed the start of the range "
                    "while it was being read, or the topic was created again."
                )
            else:
                reasons.append(error)
    return records, reached


def _raise_if_hopeless(one: Slice, reasons: list[KafkaError]) -> None:
    """Wrong credentials, and rights that are missing, do not come by waiting."""
    for reason in reasons:
        if reason.code() in _HOPELESS:
            raise ConfigurationError(
                f"{one.topic}[{one.partition}] cannot be read: {reason.str()}. Check the connection's credentials, and the ACLs "
                "(Read on the topic)."
            )


def _record_batch(records: list[Message], with_keys: bool, with_headers: bool) -> pa.RecordBatch:
    milliseconds = pa.array([record.timestamp()[1] for record in records], pa.int64())
    # Records without a timestamp report -1.
    timestamps = pc.if_else(pc.less(milliseconds, 0), None, milliseconds).cast(pa.timestamp("ms", "UTC"))
    columns: dict[str, pa.Array] = {
        "value": pa.array([record.value() for record in records], pa.binary()),
        "offset": pa.array([record.offset() for record in records], pa.int64()),
        "timestamp": timestamps.cast(pa.timestamp("us", "UTC")),
    }
    if with_keys:
        columns["key"] = pa.array([record.key() for record in records], pa.binary())
    if with_headers:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        columns["headers"] = pa.array(
            [[{"key": key, "value": value} for key, value in record.headers() or ()] for record in records], kind
        )
    return pa.RecordBatch.from_pydict(columns)


def _stalled(one: Slice, position: int, idle_timeout: float, reasons: list[KafkaError]) -> str:
    told = "; ".join(dict.fromkeys(reason.str() for reason in reasons)) or "the client gave no reason"
    return (
        f"{one.topic}[{one.partition}]: no record came for {idle_timeout:g} s at offset {position}, "
        f"{one.end - position} offsets before the end {one.end} of the planned range: {told}. Nothing is lost: the next "
        "try replays the same range."
    )
