"""What the Kafka client tells of its troubles while a slice is read, and what becomes of the read."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    DataLossError,
    KafkaOffsetsError,
    LogTruncatedError,
    ReadError,
    UnknownTopicError,
)

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


class Patience:
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
