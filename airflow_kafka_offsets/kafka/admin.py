"""Kafka's AdminClient, with patience: a question is asked again while its answer is a passing error, up to a limit.

A question is one request for all topics or partitions. Clients are made where they are used: a forked child that uses its
parent's client hangs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    KafkaOffsetsError,
    KafkaUnavailableError,
    UnknownTopicError,
)
from airflow_kafka_offsets.kafka.config import check_config

# librdkafka reports a failing connection again and again on stderr; what it says reaches the user once, in the error.
_client_log = logging.getLogger(f"{__name__}.librdkafka")

_client_log.addHandler(logging.NullHandler())

_client_log.propagate = False

Key = TypeVar("Key")

Question = Callable[[AdminClient, Collection[Key], float], Mapping[Key, "Future[Any]"]]
"""Asks about keys: gets the client, the keys and the seconds that the request may take, and gives the answer of each key."""

# What is answered while a leader moves, or right after a topic was made. librdkafka hands these on instead of asking
# again.
PASSING = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_CACHE,
        # None of the partitions asked for has a leader.
        KafkaError._NOENT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)

_UNKNOWN = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        # No topic can have such a name.
        KafkaError.TOPIC_EXCEPTION,
    }
)

# A new topic is unknown to some brokers for a moment; a topic that stays unknown this long does not exist.
_UNKNOWN_GRACE_SECONDS = 3.0

# The client goes on asking a dead leader, or a dead "controller" (in KRaft any broker), for as long as it lives: each
# repetition has a client of its own, and the first ones are short.
_FIRST_TRY_SECONDS = 3.0

# What the client gives for the partitions of a leader that did not answer: no error, and this offset.
_OFFSET_INVALID = -1001

_LOOK_SECONDS = 0.05

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 1.0


class RetryingAdmin:
    """
    :param config: librdkafka configuration
    :param timeout: seconds that one question may take, with all its repetitions
    :raises ConfigurationError: there is no client of this configuration
    """

    def __init__(self, config: Mapping[str, Any], timeout: float) -> None:
        checked = check_config(config)
        self._timeout = timeout
        self._servers = checked["bootstrap.servers"]
        # Only this callback learns why a connection fails. It runs inside poll().
        self._reasons: list[KafkaError] = []
        self._config = {**checked, "error_cb": self._reasons.append}
        try:
            self._client = AdminClient(self._config, logger=_client_log)
        except KafkaException as error:
            raise ConfigurationError(f"The Kafka configuration cannot be used: {error.args[0].str()}") from error

    def ask(
        self,
        what: str,
        keys: Collection[Key],
        question: Question[Key],
        *,
        timeout: float | None = None,
        failed: dict[Key, KafkaOffsetsError] | None = None,
    ) -> dict[Key, Any]:
        """Ask for all keys at once, and again for those whose answer was a passing error.

        :param what: what Kafka is to tell, for errors
        :param timeout: seconds, where it is not that of the client
        :param failed: where errors of single keys go, also those that do not pass in time; None raises them
        :raises ConfigurationError: the brokers refuse the credentials, or the certificates do not fit
        :raises UnknownTopicError: naming every topic or partition that the cluster does not show
        :raises KafkaUnavailableError: it did not answer in time, or refuses this user; says why
        """
        most = self._timeout if timeout is None else timeout
        begun = time.monotonic()
        answers: dict[Key, Any] = {}
        waiting: dict[Key, KafkaError | None] = dict.fromkeys(keys)
        pause = _FIRST_PAUSE_SECONDS
        patience = _FIRST_TRY_SECONDS
        while waiting:
            left = most - (time.monotonic() - begun)
            if left <= 0:
                if failed is None:
                    raise self._unavailable(what, waiting, most)
                failed.update({key: self._unavailable(what, {key: code}, most) for key, code in waiting.items()})
                break
            for key, future in question(self._client, list(waiting), min(left, patience)).items():
                self._await(future, what)
                error = future.exception()
                if error is None:
                    answer = future.result()
                    if getattr(answer, "offset", None) == _OFFSET_INVALID:
                        waiting[key] = KafkaError(KafkaError._TRANSPORT, "the partition's leader did not answer")
                        continue
                    answers[key] = answer
                    del waiting[key]
                    continue
                code = error.args[0] if isinstance(error, KafkaException) else None
                if code is None or code.code() not in PASSING | _UNKNOWN:
                    lasting = KafkaUnavailableError(f"Kafka at {self._servers} did not tell {what}: {error}")
                    if failed is None:
                        raise lasting from error
                    failed[key] = lasting
                    del waiting[key]
                    continue
                waiting[key] = code
            unknown = [key for key, code in waiting.items() if code is not None and code.code() in _UNKNOWN]
            if unknown and time.monotonic() - begun > _UNKNOWN_GRACE_SECONDS:
                if failed is None:
                    raise self._unknown(unknown)
                for key in unknown:
                    failed[key] = self._unknown([key])
                    del waiting[key]
            if waiting:
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                patience *= 2
                self._client = AdminClient(self._config, logger=_client_log)
        return answers

    def _await(self, future: Future[Any], what: str) -> None:
        while not future.done():
            # The answer comes on a thread of the client's; polling is only for what it says of failing connections.
            wait([future], timeout=_LOOK_SECONDS)
            self._client.poll(0)
            self._raise_if_hopeless(what)

    def _raise_if_hopeless(self, what: str) -> None:
        """Wrong credentials and certificates do not become right by waiting."""
        for reason in self._reasons:
            if reason.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
                raise ConfigurationError(f"Kafka at {self._servers} refuses the connection: {reason.str()}")

    def _unknown(self, keys: Collection[object]) -> UnknownTopicError:
        return UnknownTopicError(
            f"Kafka at {self._servers} has no {', '.join(sorted(map(_name, keys)))}, or this user may not "
            "describe it. Check the spelling, the connection, and the ACLs (Describe on the topic)."
        )

    def _unavailable(
        self, what: str, waiting: Mapping[Any, KafkaError | None], seconds: float
    ) -> KafkaUnavailableError:
        self._client.poll(0)
        told = [code.str() for code in waiting.values() if code is not None]
        reasons = list(dict.fromkeys([reason.str() for reason in self._reasons] + told))
        of = ", ".join(sorted(map(_name, waiting))[:5]) + (", …" if len(waiting) > 5 else "")
        return KafkaUnavailableError(
            f"Kafka at {self._servers} did not tell {what}{f' ({of})' if of else ''} within {seconds:.3g} s: "
            f"{'; '.join(reasons) or 'no reason given'}"
        )


def _name(key: object) -> str:
    if key is None:
        return ""
    return f"topic {key!r}" if isinstance(key, str) else f"partition {key}"
