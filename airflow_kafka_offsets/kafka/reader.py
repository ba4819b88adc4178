"""Read one slice of a partition into Arrow record batches. Runs on Spark's executors, and in `verify`.

What an error of the client means for the read is in `kafka.errors`; what the bytes of a record mean, in `formats`.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, TopicPartition

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.kafka.consumer import LONGEST_MS, WAIT_SECONDS, close, new_consumer, separate
from airflow_kafka_offsets.kafka.errors import ReadWatch
from airflow_kafka_offsets.kafka.offset_order import OffsetOrder
from airflow_kafka_offsets.kafka.polled import Polled
from airflow_kafka_offsets.kafka.second_look import prove_place

# Messages per call into the client. So few are still in the CPU's cache when their fields are taken, and the next ones
# reuse their memory: ten thousand at once take twice as long to create and free, much of it in the kernel, which gives
# memory and takes it back.
_POLL = 500

# The client makes all messages of a call, with their headers, before their size is known: a first call asks for few,
# and the next ones for at most twice as many as the one before.
_FIRST_POLL = 16

# Records of a batch, enough to make the cost of decoding a batch small.
_BATCH = 10_000


def read(
    slice_: Slice,
    config: Mapping[str, Any],
    *,
    with_headers: bool = False,
    every_offset: bool = False,
    idle_timeout: float = 120.0,
    clip_timestamps: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Read the records of a slice, in order.

    A slice ends when the consumer's position reaches its end: never on an empty poll, and never on the last record's
    offset, since the last offsets may be transaction markers, aborted records or compacted away. The client passes on
    neither aborted records nor markers, but its position moves with each marker. What records say of their offsets is
    proved: see `OffsetOrder`.

    If the slice has the epoch of a leader whose log reached its start, the broker checks whether that epoch still
    reaches it (KIP-320). It does not if the log was truncated before the start, however far it was rewritten since.

    :param config: the result of `kafka.consumer.consumer_config`
    :param every_offset: whether an offset without a record is an error
    :param idle_timeout: seconds after which the read fails if the position has not moved and nothing was fetched
    :param clip_timestamps: return the end of the year 9999 for later timestamps, instead of raising
    :return: record batches, none of them empty, with the columns `key` and `value` (binary), `offset` (int64),
        `timestamp` (timestamp[us, UTC]; null if a record has none) and, with `with_headers`, `headers` (list of struct
        of key and value, as in Spark's own Kafka source; null if a key is not UTF-8)
    :raises ReadError: the log could not be read to the slice's end; says why
    :raises DataLossError: the start of the slice is gone from the log
    :raises LogTruncatedError: the log was truncated before the start of the slice
    :raises OffsetOrderError: records contradict each other in where they are
    :raises RecordError: a record's timestamp lies after the year 9999
    :raises UnknownTopicError: the topic or the partition was deleted
    :raises ConfigurationError: the client cannot be made of the configuration, the broker refuses the connection, or an
        ACL is missing
    """
    errors: list[KafkaError] = []
    statistics: deque[str] = deque(maxlen=1)
    callbacks = {
        "error_cb": errors.append,
        "stats_cb": statistics.append,
        # Several within the timeout.
        "statistics.interval.ms": min(max(int(idle_timeout * 250), 1), LONGEST_MS),
    }
    # A new consumer for each slice reads after a few milliseconds. A consumer that is assigned another partition waits
    # half a second, in which the broker finishes the fetch of the partition before.
    consumer = new_consumer({**config, **callbacks})
    try:
        # Without an epoch (-1) the broker checks nothing.
        epoch = -1 if slice_.leader_epoch is None else slice_.leader_epoch
        assigned = [TopicPartition(slice_.topic, slice_.partition, slice_.start, leader_epoch=epoch)]
        consumer.assign(assigned)
        position = slice_.start
        watch = ReadWatch(slice_, consumer, config, errors, statistics, idle_timeout)
        order, polled = OffsetOrder(slice_, every_offset), Polled(slice_, with_headers, clip_timestamps)
        most = min(_FIRST_POLL, _POLL)
        while position < slice_.end:
            wanted = min(most, slice_.end - position)
            with _garbage_collection_paused():
                messages = consumer.consume(wanted, WAIT_SECONDS)
                waited = len(messages) < wanted
                records, log_end = separate(messages, errors)
                del messages
                offsets = order.follow(records, log_end)
                # What records do not say: the end of the log, and after a marker the client's position, which is
                # negative before the first record or marker.
                known = max(log_end or 0, consumer.position(assigned)[0].offset if waited else 0)
                reached = max(order.next, known, position)
                if reached < slice_.end:
                    watch.raise_if_fatal(reached)
                elif order.gap is not None and records and log_end is None and known <= order.next:
                    last = min(bisect_left(offsets, slice_.end - 1), len(records) - 1)
                    prove_place(records[last], consumer, config, order, idle_timeout)
                inside = bisect_left(offsets, slice_.end)
                del records[inside:], offsets[inside:]
                if records:
                    most = min(polled.add(records, offsets), 2 * wanted, _POLL)
                del records
            # Records do not wait for others that the client waits for.
            while polled.is_batch(at_least=1 if waited or reached >= slice_.end else _BATCH):
                yield polled.take()
                # The time that Spark spends on the rows is not time without a record.
                watch.resumed()
            if reached == position:
                watch.raise_if_stalled(position)
            else:
                watch.progressed()
            position = reached
        order.end()
    finally:
        close(consumer)


def within(records: pa.RecordBatch, since_ms: int, until_ms: int | None) -> pa.RecordBatch:
    """Return the records whose timestamps are at or after an instant, and before another; those without one are left
    out.

    :param records: what `read` yields
    :param since_ms: milliseconds since 1970 in UTC
    :param until_ms: None is no limit
    """
    timestamps = records.column("timestamp")
    inside = pc.greater_equal(timestamps, _timestamp(since_ms))
    if until_ms is not None:
        inside = pc.and_(inside, pc.less(timestamps, _timestamp(until_ms)))
    return records.filter(inside)


def _timestamp(milliseconds: int) -> pa.Scalar:
    return pa.scalar(milliseconds * 1000, pa.timestamp("us", "UTC"))


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Pause garbage collection while a chunk's messages live: a collection would visit each of them, and free none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
