"""What the errors of the Kafka client mean, and which of our errors ends a request or a read for it.

A refused login, a refused certificate and a missing ACL cannot be fixed by a retry. Those of reads are in `ReadWatch`;
which answers of the cluster are asked for again is in `kafka.admin`.
"""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.text import count, first_few
from airflow_kafka_offsets.exceptions import (
    KAFKA,
    ConfigurationError,
    DataLossError,
    KafkaOffsetsError,
    LogTruncatedError,
    ReadError,
    UnknownTopicError,
    about,
)

DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""No ACL allows the request."""

# The credentials are wrong, the broker does not know the mechanism, or its certificate is not trusted.
_REFUSED = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})

# Clients get a token, or a ticket, from another server first, which may be down for a moment.
_WITH_ANOTHER_SERVER = {"OAUTHBEARER": "sasl.oauthbearer.*", "GSSAPI": "sasl.kerberos.*"}

# What the client reports of a broker's answer to such a login.
_ANSWER = re.compile(
    "SASL authentication error: |SASL OAUTHBEARER authentication failed|handshake failed: |Unsupported SASL mechanism"
)

# A broker that refuses the client's certificate says so in an alert of TLS. The client's code for it is that of every
# broken connection: only OpenSSL's text tells them apart.
_ALERT = re.compile(r"alert [a-z ]*(certificate|unknown ca|access denied|handshake failure|protocol version)")

# When, and how often: what makes the same cause look like another one.
_TIMES = re.compile(r" \((?:after \d+ms in state \w+)?(?:, )?(?:\d+ identical error\(s\) suppressed)?\)$")

_MOST_REASONS = 3

_NO_SUCH = "Unsupported SASL mechanism"

_VALUES = {
    "security.protocol": "plaintext, ssl, sasl_plaintext, sasl_ssl",
    "sasl.mechanism": "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI",
}
"""The values of properties."""


def reasons(errors: Iterable[KafkaError]) -> str:
    """Return why requests failed: the first different causes, each once; empty where there is none."""
    given = list(errors)
    # A broker that is down has a cause of its own.
    causes = [error for error in given if error.code() != KafkaError._ALL_BROKERS_DOWN]
    return first_few(
        dict.fromkeys(_TIMES.sub("", error.str()) for error in causes or given), between="; ", most=_MOST_REASONS
    )


def unusable(config: Mapping[str, Any], error: KafkaException, where: str = "") -> ConfigurationError:
    """Return the error for a configuration of which the client cannot be created.

    :param where: this is, for the message
    """
    text, advice = error.args[0].str(), ""
    named = [name for name in _VALUES if f'"{name}"' in text or (name == "sasl.mechanism" and _NO_SUCH in text)]
    if (file := re.search(r"(\S+\.location) failed", text)) is not None:
        path = str(config.get(file[1]))
        advice = f". {file[1]} is {path!r}{'' if Path(path).exists() else ', and there is no such file'}"
    elif named:
        advice = f". {named[0]} is one of {_VALUES[named[0]]}"
    return ConfigurationError(f"The Kafka configuration cannot be used{where}: {text}{advice}")


def refused_connection(config: Mapping[str, Any], error: KafkaError) -> ConfigurationError | None:
    """Return the error for a connection that the broker, or the client, refuses; None if the error may pass."""
    is_alert = _ALERT.search(error.str()) is not None
    if error.code() not in _REFUSED and not is_alert:
        return None
    mechanism = str(config.get("sasl.mechanism") or config.get("sasl.mechanisms") or "GSSAPI").upper()
    login = _WITH_ANOTHER_SERVER.get(mechanism)
    if error.code() == KafkaError._AUTHENTICATION and login is not None and _ANSWER.search(error.str()) is None:
        return None
    advice = ""
    if is_alert and not _has_certificate(config):
        advice = (
            ". The listener asks for a certificate of the client: set ssl.certificate.location and ssl.key.location"
        )
    elif is_alert:
        advice = (
            ". The broker does not accept the client's certificate: check that it has not expired, and that the "
            "broker trusts its authority"
        )
    elif error.code() == KafkaError._AUTHENTICATION:
        settings = login or "sasl.username and sasl.password"
        advice = f". It is the login of {_user(config)}: correct sasl.mechanism, {settings}"
    return ConfigurationError(
        f"Kafka at {config['bootstrap.servers']} refuses the connection: {reasons([error])}{advice}"
    )


def denied(config: Mapping[str, Any], failed: str, operation: str, resources: Iterable[str]) -> ConfigurationError:
    """Return the error for a request that no ACL allows.

    :param failed: what did not succeed, as a sentence
    :param operation: of the ACL
    :param resources: of the ACL, such as "topic 'orders'"
    """
    return ConfigurationError(
        f"{failed}: {_user(config)} needs the ACL {operation} on {first_few(resources)}; add it, for example with "
        "kafka-acls --add"
    )


def _user(config: Mapping[str, Any]) -> str:
    """Return whom a cluster takes the client for, as far as the configuration says so."""
    if name := config.get("sasl.username"):
        return f"user {name!r}"
    return "the user of the client's certificate" if _has_certificate(config) else "this user"


def _has_certificate(config: Mapping[str, Any]) -> bool:
    return any(key.startswith(("ssl.certificate.", "ssl.keystore.")) for key in config)


# A broker that just started, or lags behind the controller, does not know a topic for a moment.
_UNKNOWN_SECONDS = 10.0

_REQUEST_SECONDS = 5.0

UNKNOWN = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
"""The cluster, or a broker of it, does not know the topic or the partition."""

# With `auto.offset.reset=error` the client reports every position that it cannot read from with the first code. The
# text of the error contains that of a truncation if there was one.
_NO_POSITION = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION})

# The client hides the code of a response that it refuses for its size: it says that the connection failed.
_TOO_LARGE = "increase receive.message.max.bytes"

_TRUNCATION = KafkaError(KafkaError._LOG_TRUNCATION).str()

_NO_REASON = (
    "the client gave no reason. It gives none for a record batch that it cannot read, as a producer can make one by "
    "hand: if each try ends here, rewind the group to an offset after it"
)


class ReadWatch:
    """Decides when the read of a slice fails: by an error that waiting does not fix, or by a position that does not
    move.

    :param config: of the client
    :param errors: the client's errors arrive here
    :param statistics: the client's latest statistics, as JSON, arrive here
    """

    def __init__(
        self,
        slice_: Slice,
        consumer: Consumer,
        config: Mapping[str, Any],
        errors: list[KafkaError],
        statistics: deque[str],
        idle_timeout: float,
    ) -> None:
        self._slice = slice_
        self._config = config
        self._name = f"{slice_.topic}[{slice_.partition}]"
        self._consumer = consumer
        self._errors = errors
        self._statistics = statistics
        self._fetched = slice_.start
        self._idle_timeout = idle_timeout
        self.progressed()

    def progressed(self) -> None:
        """Note that the position moved: earlier errors of the client no longer count."""
        self.resumed()
        self._reported: list[KafkaError] = []
        self._unknown_since: float | None = None

    def resumed(self) -> None:
        """Note that records are waited for from now on: the time before was spent on others."""
        self._deadline = time.monotonic() + self._idle_timeout

    @about(KAFKA)
    def raise_if_fatal(self, position: int) -> None:
        """Raise for an error of the client that waiting does not fix."""
        while self._errors:
            error = self._errors.pop(0)
            if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise denied(self._config, f"{self._name} cannot be read", "Read", [f"topic {self._slice.topic!r}"])
            # The client looks for the group's coordinator, because it demands a group id. Reading assigned partitions
            # needs none, and no right to the group.
            if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                continue
            if (refusal := refused_connection(self._config, error)) is not None:
                raise refusal
            if error.code() in (KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG):
                raise self._refused(position, error)
            if error.code() in _NO_POSITION:
                raise self._no_position(position, error)
            if error.code() in UNKNOWN and self._unknown_since is None:
                self._unknown_since = time.monotonic()
            self._reported.append(error)

    @about(KAFKA)
    def raise_if_stalled(self, position: int) -> None:
        """Raise if the position has not moved, and nothing was fetched, for too long."""
        if self._has_fetched():
            self.progressed()
        for error in self._reported:
            # Only here: the client may have fetched on, after the slice.
            if _TOO_LARGE in error.str():
                raise self._refused(position, error)
        now = time.monotonic()
        if self._unknown_since is not None and now - self._unknown_since > _UNKNOWN_SECONDS:
            if self._is_unknown():
                raise UnknownTopicError(
                    f"{self._name}: the cluster has not known this partition for {_UNKNOWN_SECONDS:g} s. The topic "
                    f"was deleted while it was being read, at offset {position} of "
                    f"{self._slice.start}..{self._slice.end}, or this user may not describe it any more. Nothing of "
                    "this batch was loaded. Remove a deleted topic from the load; a recreated topic needs a new "
                    "group_id."
                )
            self._unknown_since = None
        if now > self._deadline:
            raise ReadError(
                f"{self._name}: no record came for {self._idle_timeout:g} s at offset {position}, "
                f"{count(self._slice.end - position, 'offset')} before the end {self._slice.end} of the planned range: "
                f"{reasons(self._reported) or _NO_REASON}. Nothing is lost: the next try replays the same range."
            )

    def _has_fetched(self) -> bool:
        """Return whether the client has fetched more since the last call.

        The position does not move within an aborted transaction, whose marker may be many bytes away.
        """
        if not self._statistics:
            return False
        topic = json.loads(self._statistics.pop())["topics"].get(self._slice.topic, {"partitions": {}})
        partition = topic["partitions"].get(str(self._slice.partition), {"next_offset": self._fetched})
        before, self._fetched = self._fetched, max(self._fetched, partition["next_offset"])
        return self._fetched > before

    def _refused(self, position: int, error: KafkaError) -> ConfigurationError:
        return ConfigurationError(
            f"{self._name} cannot be read at offset {position}: the client refuses the records there ({error.str()}). "
            "They are larger, compressed or not, than receive.message.max.bytes (by default 100000000), or damaged. "
            "Raise the setting in the extra of the connection, or rewind to an offset after them. Nothing of this "
            "batch was loaded; a retry does not help."
        )

    def _is_unknown(self) -> bool:
        """Return whether the cluster does not know the partition now: the client does not report that it is known
        again.
        """
        try:
            topic = self._consumer.list_topics(self._slice.topic, _REQUEST_SECONDS).topics[self._slice.topic]
        except KafkaException:
            return False
        if topic.error is not None:
            return bool(topic.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART)
        return self._slice.partition not in topic.partitions

    def _no_position(self, position: int, error: KafkaError) -> KafkaOffsetsError:
        """Return why the client cannot read from a position: the log was truncated before it, or its records
        expired.
        """
        planned = f"{self._slice.start}..{self._slice.end}"
        was_truncated = error.code() == KafkaError._LOG_TRUNCATION or _TRUNCATION in error.str()
        if not was_truncated and not self._is_beyond_end(position):
            return DataLossError(
                f"{self._name}: offsets {planned} were planned, but the log does not hold them any more "
                f"({error.str()}). Records at the start of the range were deleted, by retention or by a user, while "
                "it was being read, or the topic was recreated."
            )
        if position > self._slice.start:
            return ReadError(
                f"{self._name}: the log was truncated before offset {position} while {planned} was read "
                f"({error.str()}), perhaps by an unclean leader election. Nothing of this batch was loaded: the next "
                "try compares the log with the stored position again."
            )
        cause = (
            f"the log reached offset {self._slice.start} in leader epoch {self._slice.leader_epoch} when the position "
            "was planned, but now that epoch ends before the offset. The log was truncated and written again, by an "
            "unclean leader election or in a restored cluster"
            if was_truncated
            else f"offsets {planned} were planned, but the log ends before them. It was truncated, by an unclean "
            "leader election or in a restored cluster, or the topic was recreated"
        )
        return LogTruncatedError(
            f"{self._name}: {cause}: records before the stored position may have been replaced. Find out which "
            "records were lost, then rewind the group, or load with a new group_id; a retry does not help. The "
            f"client says: {error.str()}"
        )

    def _is_beyond_end(self, position: int) -> bool:
        """Return whether a position outside of the log is beyond its end, and not before its beginning."""
        try:
            beginning, _ = self._consumer.get_watermark_offsets(
                TopicPartition(self._slice.topic, self._slice.partition), _REQUEST_SECONDS
            )
        except KafkaException:
            return False
        return bool(position >= beginning)
