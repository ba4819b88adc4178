"""Read a slice of a partition, exactly: a generator of Arrow record batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    DataLossError,
    KafkaOffsetsError,
    LogTruncatedError,
    ReadError,
    RecordError,
    UnknownTopicError,
)
from airflow_kafka_offsets.offsets import Slice

# Messages a call into the client: enough to make the call's cost small, few enough to keep a batch in the cache.
_CHUNK = 10_000
# The client waits for a full chunk: where offsets have no record, nothing more than this is lost at the end of a slice.
_WAIT_SECONDS = 0.1
_ONE_DAY_MS = 86_400_000
# The year 10000: neither Python nor every database has an instant as late.
_TOO_LATE_MS = 253_402_300_800_000
# A broker that just started, or lags behind the controller, does not know a topic for a moment.
_UNKNOWN_SECONDS = 10.0
_ASK_SECONDS = 5.0

_HOPELESS = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)

_UNKNOWN = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
# Under `auto.offset.reset=error` the client reports every position that it cannot read from under this one code; that a
# log was cut is told apart by the text of its own error, which is within.
_NO_POSITION = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION})
_TRUNCATION = KafkaError(KafkaError._LOG_TRUNCATION).str()

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
    """Read the records of a slice, in order; all but those that the slice leaves out.

    A slice ends when the consumer's position reaches its end: never on an empty poll, and never on the last record's
    offset, since offsets may end in transaction markers, aborted records or compaction's holes.

    Where the slice knows the epoch of a leader whose log reached its start, the broker is asked whether that epoch still
    reaches it (KIP-320): it does not where the log was cut before the start, however far it was written anew.

    :param config: the result of `consumer_config`
    :param idle_timeout: seconds without a record and without an end of log after which reading is given up
    :return: record batches, none of them empty, with the columns `key` and `value` (binary), `offset` (int64),
        `timestamp` (timestamp[us, UTC]; null where a record has none) and, where asked for, `headers` (list of struct of
        key and value, as in Spark's own Kafka source)
    :raises ReadError: the log could not be read to the slice's end; says why
    :raises DataLossError: the start of the slice is gone from the log
    :raises LogTruncatedError: the log was cut before the start of the slice
    :raises RecordError: a record's timestamp is no instant of the years up to 9999
    :raises UnknownTopicError: the topic or the partition was deleted
    :raises ConfigurationError: the credentials are wrong, or a right is missing
    """
    errors: list[KafkaError] = []
    consumer = Consumer({**config, "error_cb": errors.append}, logger=_client_log)
    try:
        consumer.assign([_start(one)])
        position = one.start
        patience = _Patience(one, consumer, errors, idle_timeout)
        while position < one.end:
            messages = consumer.consume(min(_CHUNK, one.end - position), _WAIT_SECONDS)
            records, reached = _sort_out(messages, errors)
            reached = max(reached, position)
            if reached < one.end:
                patience.judge(reached)
            if reached == position:
                patience.check(position)
                continue
            position = reached
            if records and records[-1].offset() >= one.end:
                records = [record for record in records if record.offset() < one.end]
            if records:
                batch = _wanted(_record_batch(records, with_headers), one)
                if batch.num_rows:
                    yield batch
            # After the yield: the time that Spark takes with the rows is not time without a record.
            patience.renew()
    finally:
        consumer.close()


class _Patience:
    """What the client tells of its troubles, and how long a position that does not move is waited for.

    :param errors: where the client's errors arrive
    """

    def __init__(self, one: Slice, consumer: Consumer, errors: list[KafkaError], idle_timeout: float) -> None:
        self._slice = one
        self._consumer = consumer
        self._errors = errors
        self._idle_timeout = idle_timeout
        self.renew()

    def renew(self) -> None:
        """The position moved: what was told before is no reason any more."""
        self._deadline = time.monotonic() + self._idle_timeout
        self._told: list[KafkaError] = []
        self._unknown_since: float | None = None

    def judge(self, position: int) -> None:
        """Raise for an error that does not pass by waiting."""
        while self._errors:
            error = self._errors.pop(0)
            if error.code() in _HOPELESS:
                raise ConfigurationError(
                    f"{_name(self._slice)} cannot be read: {error.str()}. Check the connection's credentials, and the ACLs "
                    "(Read on the topic)."
                )
            if error.code() in _NO_POSITION:
                raise self._no_position(position, error)
            if error.code() in _UNKNOWN and self._unknown_since is None:
                self._unknown_since = time.monotonic()
            self._told.append(error)

    def check(self, position: int) -> None:
        """Raise where the position has not moved for too long."""
        now = time.monotonic()
        if self._unknown_since is not None and now - self._unknown_since > _UNKNOWN_SECONDS:
            if self._is_unknown():
                raise UnknownTopicError(
                    f"{_name(self._slice)}: the cluster has not known this partition for {_UNKNOWN_SECONDS:g} s. The topic "
                    f"was deleted while it was read, at offset {position} of {self._slice.start}..{self._slice.end}, or is "
                    "not shown to this user any more. Nothing of this batch was loaded. Take a topic that is gone out of "
                    "the load; one that was made again needs a new group_id."
                )
            self._unknown_since = None
        if now > self._deadline:
            told = "; ".join(dict.fromkeys(error.str() for error in self._told)) or "the client gave no reason"
            raise ReadError(
                f"{_name(self._slice)}: no record came for {self._idle_timeout:g} s at offset {position}, "
                f"{self._slice.end - position} offsets before the end {self._slice.end} of the planned range: {told}. "
                "Nothing is lost: the next try replays the same range."
            )

    def _is_unknown(self) -> bool:
        """Whether the cluster says so now: the client does not tell when a topic is known again."""
        try:
            topic = self._consumer.list_topics(self._slice.topic, _ASK_SECONDS).topics[self._slice.topic]
        except KafkaException:
            return False
        if topic.error is not None:
            return bool(topic.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART)
        return self._slice.partition not in topic.partitions

    def _no_position(self, position: int, error: KafkaError) -> KafkaOffsetsError:
        """Why the client cannot read from a position: the log was cut before it, or expired behind it."""
        one = self._slice
        was_cut = error.code() == KafkaError._LOG_TRUNCATION or _TRUNCATION in error.str()
        if not was_cut and not self._ends_before(position):
            return DataLossError(
                f"{_name(one)}: offsets {one.start}..{one.end} were planned, but the log does not "
                f"hold them any more ({error.str()}). Retention or deleted records passed the start of the range "
                "while it was being read, or the topic was created again."
            )
        if position > one.start:
            return ReadError(
                f"{_name(one)}: the log was cut before offset {position} while {one.start}..{one.end} was read "
                f"({error.str()}): an unclean leader election, perhaps. Nothing of this batch was loaded: the next try "
                "compares the log with the stored position again."
            )
        way_out = (
            "Find out which records were lost, then set the position on purpose, or load with a new group_id; no retry "
            f"helps. The client says: {error.str()}"
        )
        if was_cut:
            return LogTruncatedError(
                f"{_name(one)}: the log reached offset {one.start} in leader epoch {one.leader_epoch} when the position was "
                "planned, and that epoch ends before it now. The log was cut and written anew there, by an unclean leader "
                f"election or in a cluster that was restored: records below the stored position may have been replaced. {way_out}"
            )
        return LogTruncatedError(
            f"{_name(one)}: offsets {one.start}..{one.end} were planned, but the log ends before them. It was cut, by an "
            "unclean leader election or in a cluster that was restored, or the topic was created again: records below the "
            f"stored position may have been replaced. {way_out}"
        )

    def _ends_before(self, position: int) -> bool:
        """Whether a position that is outside of the log is behind its end, and not before its beginning."""
        try:
            beginning, _ = self._consumer.get_watermark_offsets(
                TopicPartition(self._slice.topic, self._slice.partition), _ASK_SECONDS
            )
        except KafkaException:
            return False
        return bool(position >= beginning)


def _name(one: Slice) -> str:
    return f"{one.topic}[{one.partition}]"


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


def _record_batch(records: list[Message], with_headers: bool) -> pa.RecordBatch:
    milliseconds = pa.array([record.timestamp()[1] for record in records], pa.int64())
    if pc.max(milliseconds).as_py() >= _TOO_LATE_MS:
        raise _too_late(records)
    # Records without a timestamp report -1.
    timestamps = pc.if_else(pc.less(milliseconds, 0), None, milliseconds).cast(pa.timestamp("ms", "UTC"))
    columns: dict[str, pa.Array] = {
        "key": pa.array([record.key() for record in records], pa.binary()),
        "value": pa.array([record.value() for record in records], pa.binary()),
        "offset": pa.array([record.offset() for record in records], pa.int64()),
        "timestamp": timestamps.cast(pa.timestamp("us", "UTC")),
    }
    if with_headers:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        columns["headers"] = pa.array(
            [[{"key": key, "value": value} for key, value in record.headers() or ()] for record in records], kind
        )
    return pa.RecordBatch.from_pydict(columns)


def _too_late(records: list[Message]) -> RecordError:
    first = next(record for record in records if record.timestamp()[1] >= _TOO_LATE_MS)
    return RecordError(
        f"its timestamp {first.timestamp()[1]} is, as milliseconds, behind the year 9999; its producer may have written "
        "microseconds or nanoseconds",
        topic=first.topic(),
        partition=first.partition(),
        offset=first.offset(),
    )


def _wanted(batch: pa.RecordBatch, one: Slice) -> pa.RecordBatch:
    """The records without those that an earlier batch loaded ahead, and those that this one does not load yet."""
    if one.loaded is not None:
        ahead = pc.less(batch.column("offset"), one.loaded.offset)
        loaded = pc.and_(ahead, _is_before(batch.column("timestamp"), one.loaded.before_ms))
        batch = batch.filter(pc.invert(loaded))
    if one.before_ms is not None:
        batch = batch.filter(_is_before(batch.column("timestamp"), one.before_ms))
    return batch


def _is_before(timestamps: pa.Array, before_ms: int) -> pa.Array:
    """Which records are from before an instant; those without a timestamp are."""
    return pc.fill_null(pc.less(timestamps.cast(pa.int64()), before_ms * 1000), True)
