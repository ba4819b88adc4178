"""Read a slice of a partition, exactly: a generator of Arrow record batches."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import methodcaller
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import RecordError
from airflow_kafka_offsets.kafka.read_errors import Patience

# Messages a call into the client: enough to make the call's cost small, few enough to keep a batch in the cache.
_CHUNK = 10_000

# Of a chunk with more bytes than these several batches are made: Arrow, which decodes a batch at once, counts bytes with 31 bits.
_MOST_BYTES = 256 << 20

# The client waits for a full chunk: where offsets have no record, nothing more than this is lost at the end of a slice.
_WAIT_SECONDS = 0.1

_ONE_DAY_MS = 86_400_000

# Where the key of a header is not UTF-8 the client returns a list with holes, which crash whoever looks into them, and sets an
# exception. Python notices that, and raises SystemError, where C calls; a call in code that ran often looks at the result only.
_client_headers = methodcaller("headers")

# The year 10000: neither Python nor every database has an instant as late.
_TOO_LATE_MS = 253_402_300_800_000

_client_log = logging.getLogger(f"{__name__}.librdkafka")

_client_log.addHandler(logging.NullHandler())

_client_log.propagate = False


def consumer_config(config: Mapping[str, Any], group_id: str, isolation_level: str) -> dict[str, Any]:
    """The connection's configuration, with what exact reading needs set over it."""
    return {
        # A slice fills the consumer's queue at once. Fetching then pauses, for a second unless told otherwise, in which the queue
        # runs empty; a connection may still say otherwise.
        "fetch.queue.backoff.ms": 10,
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
        # That a topic is gone is told at once, and not after half a minute; how long to believe in it is decided here.
        "topic.metadata.propagation.max.ms": 0,
        # Rows wait in the consumer while Spark works on earlier ones; that is not a dead consumer.
        "max.poll.interval.ms": _ONE_DAY_MS,
    }


def read(
    one: Slice,
    config: Mapping[str, Any],
    *,
    with_headers: bool = False,
    idle_timeout: float = 120.0,
) -> Iterator[pa.RecordBatch]:
    """Read the records of a slice, in order.

    A slice ends when the consumer's position reaches its end: never on an empty poll, and never on the last record's
    offset, since offsets may end in transaction markers, aborted records or compaction's holes.

    Where the slice knows the epoch of a leader whose log reached its start, the broker is asked whether that epoch still
    reaches it (KIP-320): it does not where the log was cut before the start, however far it was written anew.

    :param config: the result of `consumer_config`
    :param idle_timeout: seconds without a record and without an end of log after which reading is given up
    :return: record batches, none of them empty, with the columns `key` and `value` (binary), `offset` (int64),
        `timestamp` (timestamp[us, UTC]; null where a record has none) and, where asked for, `headers` (list of struct of
        key and value, as in Spark's own Kafka source; null where a key is not UTF-8)
    :raises ReadError: the log could not be read to the slice's end; says why
    :raises DataLossError: the start of the slice is gone from the log
    :raises LogTruncatedError: the log was cut before the start of the slice
    :raises RecordError: a record's timestamp is no instant of the years up to 9999
    :raises UnknownTopicError: the topic or the partition was deleted
    :raises ConfigurationError: the credentials are wrong, or a right is missing
    """
    errors: list[KafkaError] = []
    # One for each slice: when another partition is assigned to a consumer, the broker first finishes waiting for records of the one
    # before, for half a second; a new consumer reads after a few milliseconds.
    consumer = Consumer({**config, "error_cb": errors.append}, logger=_client_log)
    try:
        consumer.assign([_start(one)])
        position = one.start
        patience = Patience(one, consumer, errors, idle_timeout)
        while position < one.end:
            with _garbage_kept():
                messages = consumer.consume(min(_CHUNK, one.end - position), _WAIT_SECONDS)
                records, reached = _sort_out(messages, errors)
                reached = max(reached, position)
                if reached < one.end:
                    patience.judge(reached)
                batches = _batches_of(one, records, with_headers)
                del messages, records
            if reached == position:
                patience.check(position)
                continue
            position = reached
            yield from batches
            # After the yield: the time that Spark takes with the rows is not time without a record.
            patience.renew()
    finally:
        consumer.close()


def _start(one: Slice) -> TopicPartition:
    # With an epoch of -1 the client asks nothing.
    epoch = -1 if one.leader_epoch is None else one.leader_epoch
    return TopicPartition(one.topic, one.partition, one.start, leader_epoch=epoch)


def _sort_out(messages: list[Message], errors: list[KafkaError]) -> tuple[list[Message], int]:
    """Records apart from events.

    :param errors: gets what is neither a record nor an end of log
    :return: the records, and the position behind them or behind the end of log (0 where there is neither)
    """
    records = [message for message in messages if message.error() is None]
    reached = records[-1].offset() + 1 if records else 0
    if len(records) != len(messages):
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                reached = max(reached, message.offset())
            else:
                errors.append(error)
    return records, reached


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Without garbage collection, for as long as a chunk's messages live: each is an object to look at, and none is garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _batches_of(one: Slice, records: list[Message], with_headers: bool) -> list[pa.RecordBatch]:
    """
    :return: the records of the slice, in order; mostly one batch, none of them empty
    """
    if records and records[-1].offset() >= one.end:
        records = [record for record in records if record.offset() < one.end]
    return list(_record_batches(records, with_headers))


def _record_batches(records: list[Message], with_headers: bool) -> Iterator[pa.RecordBatch]:
    """Batches of at most `_MOST_BYTES` of keys and values, but for a single record that has more."""
    if not records:
        return
    keys = pa.array([record.key() for record in records], pa.binary())
    values = pa.array([record.value() for record in records], pa.binary())
    # The columns know their size; to count a chunk's bytes would cost more than the rare chunk that is made twice.
    size = keys.nbytes + values.nbytes
    if size <= _MOST_BYTES or len(records) == 1:
        yield _record_batch(records, keys, values, with_headers)
        return
    del keys, values
    # As many as would fit if all were of one size.
    step = max(len(records) * _MOST_BYTES // size, 1)
    for start in range(0, len(records), step):
        yield from _record_batches(records[start : start + step], with_headers)


def _record_batch(records: list[Message], keys: pa.Array, values: pa.Array, with_headers: bool) -> pa.RecordBatch:
    milliseconds = pa.array([record.timestamp()[1] for record in records], pa.int64())
    if pc.max(milliseconds).as_py() >= _TOO_LATE_MS:
        raise _too_late(records)
    # Records without a timestamp report -1.
    timestamps = pc.if_else(pc.less(milliseconds, 0), None, milliseconds).cast(pa.timestamp("ms", "UTC"))
    columns: dict[str, pa.Array] = {
        "key": keys,
        "value": values,
        "offset": pa.array([record.offset() for record in records], pa.int64()),
        "timestamp": timestamps.cast(pa.timestamp("us", "UTC")),
    }
    if with_headers:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        columns["headers"] = pa.array(map(_headers, records), kind)
    return pa.RecordBatch.from_pydict(columns)


def _headers(record: Message) -> list[dict[str, Any]] | None:
    """
    :return: None where a key is not UTF-8
    """
    try:
        headers = _client_headers(record)
    except (SystemError, UnicodeDecodeError):
        return None
    return [{"key": key, "value": value} for key, value in headers or ()]


def _too_late(records: list[Message]) -> RecordError:
    first = next(record for record in records if record.timestamp()[1] >= _TOO_LATE_MS)
    return RecordError(
        f"its timestamp {first.timestamp()[1]} is, as milliseconds, behind the year 9999; its producer may have written "
        "microseconds or nanoseconds",
        topic=first.topic(),
        partition=first.partition(),
        offset=first.offset(),
    )
