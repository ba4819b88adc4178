"""Read one slice of a partition into Arrow record batches. Runs on Spark's executors, and in `verify`.

What an error of the client means for the read is in `kafka.errors`; what the bytes of a record mean, in `formats`.
"""

from __future__ import annotations

import gc
import platform
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from operator import methodcaller
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import ReadError, RecordError
from airflow_kafka_offsets.kafka.config import client_log
from airflow_kafka_offsets.kafka.errors import ReadWatch, reasons, unusable
from airflow_kafka_offsets.kafka.offset_order import OffsetOrder

# Messages per call into the client. So few are still in the CPU's cache when their fields are taken, and the next ones
# reuse their memory: ten thousand at once take twice as long to create and free, much of it in the kernel, which gives
# memory and takes it back.
_POLL = 500

# The client makes all messages of a call, with their headers, before their size is known: a first call asks for few,
# and the next ones for at most twice as many as the one before.
_FIRST_POLL = 16

# Records of a batch, enough to make the cost of decoding a batch small.
_BATCH = 10_000

# Records with more bytes become several batches, one after another: a batch is held several times while it is decoded.
# After large records, fewer of them are polled at once.
_MOST_BYTES = 32 << 20

# What a header counts beside its bytes: so much Python's objects take.
_HEADER_BYTES = 200

# The client waits for as many messages as it was asked for. This bounds the wait at the end of a slice whose last
# offsets have no record.
_WAIT_SECONDS = 0.1

_Headers = list[tuple[str, bytes | None]]

_ONE_DAY_MS = 86_400_000

# If the key of a header is not UTF-8, the client sets an exception and returns a list with NULL items; an access to one
# of them crashes the process. A call from C, as methodcaller makes it, checks for the exception and raises SystemError;
# specialized bytecode checks the result only.
_client_headers = methodcaller("headers")

# The year 10000: neither Python nor every database has so late an instant.
_TOO_LATE_MS = 253_402_300_800_000


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
        "max.poll.interval.ms": _ONE_DAY_MS,
    }


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

    :param config: the result of `consumer_config`
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
        "statistics.interval.ms": min(max(int(idle_timeout * 250), 1), _ONE_DAY_MS),
    }
    # A new consumer for each slice reads after a few milliseconds. A consumer that is assigned another partition waits
    # half a second, in which the broker finishes the fetch of the partition before.
    consumer = _consumer({**config, **callbacks})
    try:
        # Without an epoch (-1) the broker checks nothing.
        epoch = -1 if slice_.leader_epoch is None else slice_.leader_epoch
        assigned = [TopicPartition(slice_.topic, slice_.partition, slice_.start, leader_epoch=epoch)]
        consumer.assign(assigned)
        position = slice_.start
        watch = ReadWatch(slice_, consumer, config, errors, statistics, idle_timeout)
        order, polled = OffsetOrder(slice_, every_offset), _Polled(slice_, with_headers, clip_timestamps)
        most = min(_FIRST_POLL, _POLL)
        while position < slice_.end:
            wanted = min(most, slice_.end - position)
            with _garbage_collection_paused():
                messages = consumer.consume(wanted, _WAIT_SECONDS)
                waited = len(messages) < wanted
                records, log_end = _separate(messages, errors)
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
                    _prove_place(records[last], consumer, config, order, idle_timeout)
                inside = bisect_left(offsets, slice_.end)
                del records[inside:], offsets[inside:]
                if records:
                    size = polled.add(records, offsets)
                    most = min(max(len(records) * _MOST_BYTES // max(size, 1), 1), 2 * wanted, _POLL)
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
        consumer.close()


def _consumer(config: Mapping[str, Any]) -> Consumer:
    try:
        return Consumer(dict(config), logger=client_log)
    except KafkaException as error:
        # As for a file of certificates that the worker has, and this machine has not.
        raise unusable(config, error, f" on {platform.node()}") from error


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


def _separate(messages: list[Message], errors: list[KafkaError]) -> tuple[list[Message], int | None]:
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


def _prove_place(
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
    consumer = _consumer({"error_cb": errors.append, **config})
    try:
        consumer.assign([place])
        while time.monotonic() < deadline:
            records, log_end = _separate(consumer.consume(1, _WAIT_SECONDS), errors)
            # The last error means that the offset is gone.
            if records or log_end is not None or KafkaError._AUTO_OFFSET_RESET in (each.code() for each in errors):
                return records[0] if records else None
        return None
    finally:
        consumer.close()


def _contents(record: Message) -> tuple[object, ...]:
    return record.key(), record.value(), record.timestamp()


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


class _Polled:
    """The records of a slice that were polled and are in no batch yet, without the client's messages."""

    def __init__(self, slice_: Slice, with_headers: bool, clip_timestamps: bool) -> None:
        self._slice, self._clip_timestamps = slice_, clip_timestamps
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._offsets: list[int] = []
        self._milliseconds: list[int] = []
        self._headers: list[_Headers | None] | None = [] if with_headers else None
        self._bytes = 0

    def add(self, records: list[Message], offsets: list[int]) -> int:
        """Add records, and return how many bytes the client holds for their keys, values and headers."""
        keys, values = [record.key() for record in records], [record.value() for record in records]
        self._keys += keys
        self._values += values
        self._offsets += offsets
        self._milliseconds += [record.timestamp()[1] for record in records]
        size = _bytes(keys) + _bytes(values)
        if self._headers is not None:
            headers = list(map(_headers, records))
            self._headers += headers
            size += _header_bytes(headers)
        self._bytes += size
        if self._headers is None:
            # The client has those, too; to ask each record for them would take longer than all else.
            size += len(records) * _header_bytes([_headers(records[-1])])
        return size

    def is_batch(self, at_least: int) -> bool:
        """Return whether there are records enough for a batch, by their number or their bytes."""
        return len(self._keys) >= at_least or self._bytes > _MOST_BYTES

    def take(self) -> pa.RecordBatch:
        """Take the first records, as a batch of at most `_MOST_BYTES`; a single record may have more."""
        count = len(self._keys) if self._bytes <= _MOST_BYTES else self._fitting()
        keys, values, headers = self._keys[:count], self._values[:count], (self._headers or [])[:count]
        columns = {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "offset": pa.array(self._offsets[:count], pa.int64()),
            "timestamp": self._timestamps(count),
        }
        if self._headers is not None:
            kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            columns["headers"] = pa.array(headers, kind)
            del self._headers[:count]
        del self._keys[:count], self._values[:count], self._offsets[:count], self._milliseconds[:count]
        self._bytes = self._bytes - _bytes(keys) - _bytes(values) - _header_bytes(headers) if self._keys else 0
        return pa.RecordBatch.from_pydict(columns)

    def _fitting(self) -> int:
        """Return how many of the first records have at most `_MOST_BYTES`, and at least one."""
        size = 0
        parts = zip(self._keys, self._values, self._headers or repeat(None), strict=False)
        for count, (key, value, headers) in enumerate(parts):
            size += len(key or b"") + len(value or b"") + _header_bytes([headers])
            if size > _MOST_BYTES and count:
                return count
        return len(self._keys)

    def _timestamps(self, count: int) -> pa.Array:
        milliseconds = pa.array(self._milliseconds[:count], pa.int64())
        if pc.max(milliseconds).as_py() >= _TOO_LATE_MS:
            if not self._clip_timestamps:
                raise self._too_late()
            milliseconds = pc.min_element_wise(milliseconds, _TOO_LATE_MS - 1)
        # Records without a timestamp report -1.
        timestamps = pc.if_else(pc.less(milliseconds, 0), None, milliseconds).cast(pa.timestamp("ms", "UTC"))
        return timestamps.cast(pa.timestamp("us", "UTC"))

    def _too_late(self) -> RecordError:
        index = next(index for index, instant in enumerate(self._milliseconds) if instant >= _TOO_LATE_MS)
        return RecordError(
            f"its timestamp of {self._milliseconds[index]} ms is after the year 9999; its producer may have written "
            "microseconds or nanoseconds",
            topic=self._slice.topic,
            partition=self._slice.partition,
            offset=self._offsets[index],
        )


def _bytes(contents: list[bytes | None]) -> int:
    try:
        return sum(map(len, contents))  # type: ignore[arg-type]
    except TypeError:  # there is a null among them
        return sum(map(len, filter(None, contents)))


def _header_bytes(headers: Sequence[_Headers | None]) -> int:
    return sum(
        _HEADER_BYTES + len(key.encode()) + len(value or b"") for own in filter(None, headers) for key, value in own
    )


def _headers(record: Message) -> _Headers | None:
    """Return the headers of a record, or None if a key is not UTF-8."""
    try:
        return _client_headers(record) or []
    except (SystemError, UnicodeDecodeError):
        return None
