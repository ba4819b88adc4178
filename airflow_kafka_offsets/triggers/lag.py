"""Triggers that poll the lag of a group in the triggerer.

A trigger is a subclass of `_LagTrigger`: its fields are its parameters, and `run` iterates over `watch`.
`lag.thresholds` compares, `lag.shared_poll` polls for all triggers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from airflow_kafka_offsets.core.options import ruled
from airflow_kafka_offsets.core.parameters import DURATION
from airflow_kafka_offsets.hooks.metrics import emit_lag, emit_poll
from airflow_kafka_offsets.lag.thresholds import Edge, LagWatch
from airflow_kafka_offsets.version_compat import component_stats

if TYPE_CHECKING:
    from airflow_kafka_offsets.lag.shared_poll import PollResult, SharedPoll


# A request to Kafka that takes longer is repeated by the next poll.
_KAFKA_SECONDS = 10.0

# By event loop, and then by connection and isolation level.
_polls: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], SharedPoll]] = WeakKeyDictionary()


def prepare(watched: LagWatch, loop: asyncio.AbstractEventLoop) -> Callable[..., SharedPoll]:
    """Import what a poll needs, which takes long and would block all triggers.

    :param loop: the event loop of the triggers
    :return: a function that makes a poll; its parameter `ended` is called when the poll ends
    """
    from asgiref.sync import sync_to_async

    from airflow_kafka_offsets.hooks.connections import database_engine, kafka_cluster
    from airflow_kafka_offsets.lag.shared_poll import SharedPoll

    def opened(function: Callable[..., Any], *args: Any) -> Any:
        # The functions ask Airflow for a connection. Before 3.2.2, it mixes up answers, and the triggerer ends, where a
        # thread asks that is none of asgiref's.
        opening = sync_to_async(function, thread_sensitive=False)(*args)
        return asyncio.run_coroutine_threadsafe(opening, loop).result()

    cluster = partial(kafka_cluster, watched.kafka_conn_id, watched.isolation_level, timeout=_KAFKA_SECONDS)
    stats = component_stats()
    polled = partial(emit_poll, stats, watched.kafka_conn_id)
    by_airflow = partial(opened, cluster), partial(opened, database_engine)
    return partial(SharedPoll, *by_airflow, polled=polled, measured=partial(emit_lag, stats))


async def watch(watched: LagWatch) -> AsyncGenerator[PollResult | Exception]:
    """Generate the results of the poll that all triggers of this event loop share, without end."""
    loop = asyncio.get_running_loop()
    open_poll = await asyncio.to_thread(prepare, watched, loop)
    polls = _polls.setdefault(loop, {})
    key = watched.kafka_conn_id, watched.isolation_level
    if key not in polls:
        polls[key] = open_poll(ended=lambda: polls.pop(key, None))
    async with aclosing(polls[key].results(watched)) as results:
        async for result in results:
            yield result


class _LagTrigger(LagWatch, BaseTrigger):
    """A trigger whose parameters are the options of a watch, and the fields that a subclass adds."""

    def __post_init__(self) -> None:
        BaseTrigger.__init__(self)  # type: ignore[no-untyped-call]
        super().__post_init__()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the parameters; they hold no secrets, because connections are named."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self.as_kwargs()


@dataclass(kw_only=True, eq=False, repr=False)
class KafkaLagTrigger(_LagTrigger):
    """Wait until the lag of a group meets thresholds, once: the trigger of a deferred `KafkaLagSensor`.

    It waits while a cluster or a database is unavailable. The event has `met` and `report`, or `error` if waiting
    cannot help.

    As for `KafkaLagSensor`: `group_id`, `topics`, `conn_id`, `min_lag`, `max_lag`, `max_delay`, `min_headroom`,
    `require`, `per_partition`, `allow_incomplete`, `start`, `isolation_level`, `state_tables`,
    `kafka_conn_id`.

    :param first_poll: the earliest instant of the first poll. The sensor has polled before it defers, and Airflow fails
        a task whose trigger fires before the executor has noticed that the task was deferred, which takes up to
        `[workers] min_heartbeat_interval`, 5 s
    :param poll_interval: the time from one poll to the next
    """

    first_poll: datetime | None = None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until the thresholds are met."""
        try:
            if self.first_poll is not None:
                await asyncio.sleep((self.first_poll - datetime.now(UTC)).total_seconds())
            async with aclosing(watch(self)) as results:
                async for result in results:
                    if isinstance(result, Exception):
                        if not getattr(result, "retriable", False):
                            raise result
                        self.log.warning("Polling again: %s", result)
                        continue
                    self.log.info("%s", result.judgement.text)
                    if result.judgement.met:
                        yield TriggerEvent(result.judgement.payload)  # type: ignore[no-untyped-call]
                        return
        except Exception as error:
            self.log.exception("The lag of group %r cannot be measured", self.group_id)
            payload = {"group_id": self.group_id, "error": f"{type(error).__name__}: {error}"}
            yield TriggerEvent(payload)  # type: ignore[no-untyped-call]


@dataclass(kw_only=True, eq=False, repr=False)
class KafkaLagEventTrigger(_LagTrigger, BaseEventTrigger):
    """Fire when the lag of a group meets thresholds: for an `AssetWatcher`, which then runs DAGs when there is enough
    to load, when records have waited too long, or before retention deletes them.

    It fires when the thresholds become met, again if they are still met after positions have moved, and again after
    `rearm_after` if no position has moved. It does not fire while a run loads the group. The report in the event is a
    hint: a load reads the positions itself.

    It never ends. It logs errors, such as an unavailable cluster or database, and polls again after pauses that grow up
    to five minutes. All triggers of a triggerer share one poll of each cluster.

    As for `KafkaLagSensor`: `group_id`, `topics`, `conn_id`, `min_lag`, `max_lag`, `max_delay`, `min_headroom`,
    `require`, `per_partition`, `allow_incomplete`, `start`, `isolation_level`, `state_tables`,
    `kafka_conn_id`. Nothing is templated.

    :param rearm_after: the time after which to fire again although no position has moved
    :param poll_interval: the time from one poll to the next
    :raises ConfigurationError: a parameter cannot work; raised when the DAG is parsed
    """

    templated: ClassVar[Sequence[str]] = ()

    rearm_after: timedelta = field(default=timedelta(minutes=30), metadata=ruled(DURATION))

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll without end."""
        edge, loop, logged = Edge(self.rearm_after), asyncio.get_running_loop(), ""
        while True:
            try:
                async with aclosing(watch(self)) as results:
                    async for result in results:
                        if isinstance(result, Exception):
                            # Once: every poll meets the same error until its cause is removed.
                            if logged != str(result):
                                self.log.warning("Polling again: %s: %s", type(result).__name__, result)
                            logged = str(result)
                            continue
                        judgement, logged = result.judgement, ""
                        self.log.debug("%s", judgement.text)
                        if edge.fires(judgement.met, result.positions, busy=result.busy, now=loop.time()):
                            self.log.info("%s", judgement.text)
                            yield TriggerEvent(judgement.payload)  # type: ignore[no-untyped-call]
            except Exception:
                self.log.exception("Watching the lag of group %r starts again", self.group_id)
            await asyncio.sleep(self.poll_interval.total_seconds())
