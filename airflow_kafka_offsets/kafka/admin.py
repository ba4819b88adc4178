"""Kafka's AdminClient with retries: a request is repeated, up to a time limit, for the keys whose answer is a retriable
error.

A request is one for all topics or partitions. A client is created where it is used: a forked child that uses its
parent's client hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from difflib import get_close_matches
from functools import cached_property, partial
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.core.threads import in_background
from airflow_kafka_offsets.exceptions import (
    KAFKA,
    ConfigurationError,
    KafkaOffsetsError,
    KafkaUnavailableError,
    UnknownTopicError,
    about,
)
from airflow_kafka_offsets.kafka.config import check_config, client_log, mismatch, warn_of_weaknesses
from airflow_kafka_offsets.kafka.errors import DENIED, UNKNOWN, denied, reasons, refused_connection, unusable

Key = TypeVar("Key")

Answer = TypeVar("Answer")

Request = Callable[[AdminClient, Collection[Key], float], Mapping[Key, "Future[Any]"]]
"""Sends a request about keys: takes the client, the keys and the seconds that it may take, and returns a future of each
key.
"""

Read = Callable[["Future[Any]"], Answer]
"""Reads the answer from a future; raises KafkaException for an answer that is an error."""

# So many unknown names of a request are compared with those of all topics, which takes milliseconds each.
_COMPARED = 10

# Kafka's answers while a leader moves, or right after a topic was created. librdkafka returns these instead of
# retrying.
RETRIABLE = frozenset(
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
        # None of the partitions in the request has a leader.
        KafkaError._NOENT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)

# The last: no topic can have such a name.
_UNKNOWN = UNKNOWN | {KafkaError.TOPIC_EXCEPTION}

# A key with one of these errors is dealt with together with the others.
_WAITING = RETRIABLE | _UNKNOWN | DENIED

# A new topic is unknown to some brokers for a moment; a topic that stays unknown this long does not exist.
_UNKNOWN_GRACE_SECONDS = 3.0

# A client goes on asking a dead leader, or a dead "controller" (in KRaft any broker), for as long as it lives: each
# retry has its own client, which is left as soon as a request fails, and the first requests are short.
_FIRST_REQUEST_SECONDS = 3.0

_POLL_SECONDS = 0.05

# Nobody waits longer than a request may take and this, for the client to say that it failed.
_GRACE_SECONDS = 0.25

_COORDINATOR_SECONDS = 60.0


def of_a_coordinator(seconds: float) -> float:
    """Return what a client is told that a request to a group's coordinator may take, so that it does not fail before
    the client is left: a client that learns later where the coordinator is ends the process (librdkafka 2.16: it frees
    the failed request twice; issue 4605 there).

    :param seconds: that the request may take
    """
    return seconds + _COORDINATOR_SECONDS


_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 1.0


class RetryingAdmin:
    """Sends requests to a cluster, and retries them.

    :param config: librdkafka configuration
    :param timeout: seconds that a request may take, with all its retries
    :raises ConfigurationError: there is no client of this configuration
    """

    @about(KAFKA)
    def __init__(self, config: Mapping[str, Any], timeout: float) -> None:
        checked = check_config(config)
        warn_of_weaknesses(checked)
        self._timeout = timeout
        self._servers = checked["bootstrap.servers"]
        # Only this callback learns why a connection fails. It runs inside poll().
        self._reasons: list[KafkaError] = []
        self._seen = 0
        self._looked = False
        # Half of it passes, at least 11 ms, before a client asks its first broker for topics.
        self._config = {"reconnect.backoff.ms": 20, **checked, "error_cb": self._reasons.append}
        try:
            self._client: AdminClient | None = self._new_client()
        except KafkaException as error:
            raise unusable(checked, error) from error

    def _new_client(self) -> AdminClient:
        return AdminClient(self._config, logger=client_log)

    def _current(self) -> AdminClient:
        client = self._client
        if client is None:
            client = self._client = self._new_client()
        return client

    def _leave_client(self, requested: Collection[Future[Any]]) -> None:
        """Leave a client with a request that failed. It ends in the background: for that it waits for what it is doing,
        as for a token endpoint or a name server that does not answer.

        :param requested: what the request returned
        """
        # Another thread may ask, too.
        client, self._client = self._client, None
        if client is not None:
            client.poll(0)
            left = [client]
            del client
            in_background(partial(_end, left, [*requested]), "kafka-offsets-end")

    @about(KAFKA)
    def ask(
        self,
        what: str,
        keys: Collection[Key],
        request: Request[Key],
        read: Read[Answer] = Future.result,
        *,
        operation: str = "Describe",
        resource: str | None = None,
        timeout: float | None = None,
        failed: dict[Key, KafkaOffsetsError] | None = None,
    ) -> dict[Key, Answer]:
        """Request the answers for all keys at once, and again for those whose answer was a retriable error.

        :param what: what Kafka is to report, for errors
        :param operation: of the ACL that the request needs
        :param resource: of that ACL; None is the topics of the keys
        :param timeout: seconds, instead of those of this client
        :param failed: takes the errors of single keys, also of those that ran out of time; None raises them
        :raises ConfigurationError: the brokers refuse the connection, their listeners speak another protocol, or an ACL
            is missing
        :raises UnknownTopicError: naming every topic or partition that the cluster does not show
        :raises KafkaUnavailableError: the cluster did not answer in time; says why
        """
        requested: list[Future[Any]] = []
        try:
            return self._ask(what, keys, request, read, operation, resource, timeout, failed, requested)
        except BaseException:
            self._leave_client(requested)
            raise

    def _ask(
        self,
        what: str,
        keys: Collection[Key],
        request: Request[Key],
        read: Read[Answer],
        operation: str,
        resource: str | None,
        timeout: float | None,
        failed: dict[Key, KafkaOffsetsError] | None,
        requested: list[Future[Any]],
    ) -> dict[Key, Answer]:
        limit = self._timeout if timeout is None else timeout
        started = time.monotonic()
        answers: dict[Key, Answer] = {}
        waiting: dict[Key, KafkaError | None] = dict.fromkeys(keys)
        many = len(waiting)
        pause = _FIRST_PAUSE_SECONDS
        request_seconds = _FIRST_REQUEST_SECONDS
        like = _Like(self._current)

        def fail(without_answer: list[Key], error_of: Callable[[list[Key]], KafkaOffsetsError]) -> None:
            if without_answer and failed is None:
                raise error_of(without_answer)
            for key in without_answer:
                error = failed[key] = error_of([key])  # type: ignore[index]  # None has raised
                error.about = (KAFKA,)
                del waiting[key]

        while waiting:
            left = limit - (time.monotonic() - started)
            if left <= 0:
                fail(list(waiting), partial(self._unavailable, what, waiting, limit))
                break
            seconds = min(left, request_seconds)
            until = time.monotonic() + seconds + _GRACE_SECONDS
            futures = request(self._current(), list(waiting), seconds)
            requested[:] = futures.values()
            for key, future in futures.items():
                if not self._await(future, until):
                    waiting[key] = KafkaError(KafkaError._TIMED_OUT)
                    continue
                try:
                    answers[key] = read(future)
                    del waiting[key]
                except KafkaException as error:
                    # Its traceback has this frame, that the future, and the future the error: it would hold what asked.
                    error.with_traceback(None)
                    if error.args[0].code() in _WAITING:
                        waiting[key] = error.args[0]
                    else:
                        fail([key], partial(self._refused, what, error))
                except Exception as error:
                    fail([key], partial(self._refused, what, error))
            if len(answers) < many:
                self._leave_client(requested)
            fail(_with(DENIED, waiting), partial(self._denied, what, operation, resource, waiting, like))
            if time.monotonic() - started > _UNKNOWN_GRACE_SECONDS:
                fail(_with(_UNKNOWN, waiting), partial(self._unknown, like))
            if waiting:
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                request_seconds *= 2
        return answers

    def ask_once(
        self,
        what: str,
        request: Callable[[AdminClient, float], Future[Any]],
        read: Read[Answer],
        *,
        resource: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Request one answer, which is of no topic or partition; raises what `ask` raises."""

        def alone(client: AdminClient, _: object, seconds: float) -> dict[None, Future[Any]]:
            return {None: request(client, seconds)}

        return self.ask(what, [None], alone, read, resource=resource, timeout=timeout)[None]

    def _await(self, future: Future[Any], until: float) -> bool:
        """Wait for an answer; False if there is none by an instant.

        :raises ConfigurationError: the client reports an error that no retry fixes
        """
        while not future.done():
            if time.monotonic() > until:
                return False
            # The answer comes on a thread of the client; poll() delivers only what it reports of failing connections.
            wait([future], timeout=_POLL_SECONDS)
            self._current().poll(0)
            for reason in self._reasons[self._seen :]:
                self._seen += 1
                if (refusal := refused_connection(self._config, reason)) is not None:
                    raise refusal
                if reason.code() == KafkaError._ALL_BROKERS_DOWN and not self._looked:
                    self._looked = True
                    if (other := mismatch(self._config)) is not None:
                        raise other
        return True

    def _unknown(self, like: _Like, keys: Collection[object]) -> UnknownTopicError:
        patterns = "Name each topic: patterns are not supported. " if any("*" in str(key) for key in keys) else ""
        return UnknownTopicError(
            f"Kafka at {self._servers} has no {first_few(sorted(map(_name, keys)))}, or this user may not describe it. "
            f"{patterns}Check the spelling{like.those_of(keys)}, the connection, and the ACLs (Describe on the topic)."
        )

    def _denied(
        self,
        what: str,
        operation: str,
        resource: str | None,
        waiting: Mapping[Key, KafkaError | None],
        like: _Like,
        keys: Collection[Key],
    ) -> ConfigurationError:
        resources = {_resource(key, waiting[key], resource): None for key in sorted(keys, key=_name)}
        error = denied(self._config, f"Kafka at {self._servers} did not report {what}", operation, resources)
        if resource is None and operation == "Describe":
            # Where there are ACLs, Kafka answers so for a topic that does not exist.
            error.args = (f"{error.args[0]}. Or the name is misspelt{like.those_of(keys)}: Kafka does not tell which",)
        return error

    def _refused(self, what: str, cause: BaseException, _: object) -> KafkaUnavailableError:
        error = KafkaUnavailableError(f"Kafka at {self._servers} did not report {what}: {cause}")
        error.__cause__ = cause
        return error

    def _unavailable(
        self, what: str, waiting: Mapping[Key, KafkaError | None], seconds: float, keys: Collection[Key]
    ) -> KafkaUnavailableError:
        codes = [*self._reasons, *(code for key in keys if (code := waiting[key]) is not None)]
        names = first_few(sorted(map(_name, keys)), most=5)
        is_down = not codes or any(code.code() in _NO_ANSWER for code in codes)
        return KafkaUnavailableError(
            f"Kafka at {self._servers} did not report {what}{f' ({names})' if names else ''} within {seconds:.3g} s: "
            f"{reasons(codes) or 'no reason given'}"
            f"{'. Check bootstrap.servers, and that the brokers run and can be reached' if is_down else ''}"
        )


def _end(left: list[AdminClient], requested: Collection[Future[Any]]) -> None:
    """End a client, once it has given up what it was asked for: the futures of requests that it ends with are never
    freed.
    """
    wait(requested, timeout=_COORDINATOR_SECONDS - 10)
    left.clear()


class _Like:
    """The names of topics that are like unknown ones of a request: the cluster is asked for them once, and few are
    compared, however many are unknown.

    :param client: returns the client to ask
    """

    def __init__(self, client: Callable[[], AdminClient]) -> None:
        self._client = client
        self._left = _COMPARED

    @cached_property
    def _seen(self) -> Collection[str]:
        with suppress(KafkaException):
            return list(self._client().list_topics(timeout=_FIRST_REQUEST_SECONDS).topics)
        return ()

    def those_of(self, keys: Collection[object]) -> str:
        """Return the names of topics that this user sees and that are like those of keys, in parentheses; empty where
        there are none.
        """
        asked = sorted({str(getattr(key, "topic", key)) for key in keys})
        compared = asked[: self._left]
        self._left -= len(compared)
        like = {name: None for topic in compared for name in get_close_matches(topic, self._seen) if name not in asked}
        return f" (this user sees {first_few(map(repr, like))})" if like else ""


_NO_ANSWER = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._TRANSPORT)
"""Codes of librdkafka for brokers that do not run, cannot be reached, or do not answer."""


def _with(codes: Collection[int], waiting: Mapping[Key, KafkaError | None]) -> list[Key]:
    """Return the keys whose last answer was one of some errors."""
    return [key for key, error in waiting.items() if error is not None and error.code() in codes]


def _resource(key: object, error: KafkaError | None, resource: str | None) -> str:
    """Return what an ACL is missing for. A request about a group may also be denied for one of its topics; see
    `kafka.cluster`.
    """
    if isinstance(key, (str, TopicPartition)):
        return _name(key if isinstance(key, str) else key.topic)
    if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return str(error.str())
    return resource or "the cluster"


def _name(key: object) -> str:
    if key is None:
        return ""
    return f"topic {key!r}" if isinstance(key, str) else f"partition {key}"
