"""One poll of a Kafka cluster for everybody in a process who watches the lag of a group there.

A thousand watchers cost what one does: at every interval, one look at each database for all groups, and one at the ends of the
logs for all topics. The event loop only waits: databases and Kafka are asked by threads, and lags are judged there too.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy.engine import Engine

from airflow_kafka_offsets.database.errors import translated_errors
from airflow_kafka_offsets.exceptions import DatabaseUnavailableError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.lag.group_states import GroupState, group_states
from airflow_kafka_offsets.lag.measure import LagPolls, LagQuestion
from airflow_kafka_offsets.lag.report import LagReport
from airflow_kafka_offsets.ledger.tables import Tables

log = logging.getLogger(__name__)


T = TypeVar("T")

# Watchers that begin together are to share their first look, too.
_GATHER_SECONDS = 0.5

_DATABASE_SECONDS = 15.0

# How much of its interval a look may come early, to be the same as another's.
_EARLY = 0.1

_LONGEST_PAUSE_SECONDS = 300.0

# What is woken at once: the loop has to get round to others in between.
_AT_ONCE = 10


class StateTables(NamedTuple):
    """Where positions are stored.

    :param conn_id: whatever leads to the database
    """

    conn_id: str
    schema: str | None = None
    prefix: str = ""


class Look(NamedTuple, Generic[T]):
    """What a poll found for a watcher.

    :param judged: what the watcher made of the report
    :param positions: differs after a position has moved
    :param busy: whether a run loads the group now
    """

    judged: T
    positions: int
    busy: bool


class _Ended(NamedTuple):
    """What is found where the polls have ended, which nobody meant to.

    :param error: that which ended them
    """

    error: BaseException


@dataclass(eq=False, slots=True)
class _Watcher:
    tables: StateTables
    question: LagQuestion
    judge: Callable[[LagReport], Any]
    interval: float
    due: float
    failures: int = 0
    # Of looks that nobody took, only the latest counts.
    looks: asyncio.Queue[Look[Any] | Exception | _Ended] = field(default_factory=lambda: asyncio.Queue(1))

    def offer(self, look: Look[Any] | Exception, now: float) -> None:
        self.failures = self.failures + 1 if isinstance(look, Exception) else 0
        # All watchers of an interval look at the same moments.
        self.due = (now // self.interval + 1) * self.interval
        if self.failures > 1:
            longest = max(self.interval, _LONGEST_PAUSE_SECONDS)
            self.due += min(self.interval * 2 ** min(self.failures - 1, 10), longest) // self.interval * self.interval
        self.put(look)

    def put(self, look: Look[Any] | Exception | _Ended) -> None:
        if self.looks.full():
            self.looks.get_nowait()
        self.looks.put_nowait(look)


class Watch:
    """The polls of one cluster. Of one event loop: it begins with the first watcher and ends with the last.

    :param open_cluster: makes a client; called by a thread, and again after the cluster could not be reached
    :param open_engine: the same for a database, by its `conn_id`
    :param ended: called when nobody watches any more; another `Watch` is to be made then
    :param polled: is told of every poll for how many watchers it was, and how many seconds it took
    """

    def __init__(
        self,
        open_cluster: Callable[[], Cluster],
        open_engine: Callable[[str], Engine],
        ended: Callable[[], object],
        polled: Callable[[int, float], None],
    ) -> None:
        self._open_cluster = open_cluster
        self._open_engine = open_engine
        self._ended = ended
        self._polled = polled
        self._watchers: set[_Watcher] = set()
        self._joined = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._polling = _thread()
        self._polls: LagPolls | None = None
        # A thread for each: however many do not answer, there is one for those that do.
        self._readers: dict[StateTables, ThreadPoolExecutor] = {}
        self._engines: dict[StateTables, Engine] = {}
        self._reading: dict[StateTables, Future[dict[str, GroupState]]] = {}

    async def looks(
        self, tables: StateTables, question: LagQuestion, judge: Callable[[LagReport], T], interval: float
    ) -> AsyncGenerator[Look[T] | Exception]:
        """Look for ever: what each poll finds, or why it found nothing. Pauses get longer while it finds nothing.

        To be closed when no more looks are wanted.

        :param judge: makes of a report what is wanted of it; called by a thread
        :param interval: seconds from one look to the next
        :raises RuntimeError: the polls ended, for a reason that is none of Kafka's or a database's
        """
        now = asyncio.get_running_loop().time()
        watcher = _Watcher(tables, question, judge, interval, now + min(_GATHER_SECONDS, interval))
        self._watchers.add(watcher)
        self._joined.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="kafka-offsets-watch")
            self._task.add_done_callback(self._failed)
        try:
            while True:
                look = await watcher.looks.get()
                if isinstance(look, _Ended):
                    raise RuntimeError(f"The polls of the lag ended: {look.error!r}") from look.error
                yield look
        finally:
            self._watchers.discard(watcher)
            if not self._watchers:
                self._end()

    def _end(self) -> None:
        self._ended()
        if self._task is not None:
            self._task.cancel()
        # By the threads, at last: closing waits for the network, and what is still being asked opens what it lacks.
        self._polling.submit(self._close_cluster)
        self._polling.shutdown(wait=False)
        for tables, reader in self._readers.items():
            reader.submit(self._close_engine, tables)
            reader.shutdown(wait=False)

    def _close_cluster(self) -> None:
        self._polls = None

    def _close_engine(self, tables: StateTables) -> None:
        engine = self._engines.pop(tables, None)
        if engine is not None:
            engine.dispose()

    def _failed(self, task: asyncio.Task[None]) -> None:
        """Whatever ends the polls ends all who wait for them: they would wait for ever. Who begins anew begins them anew."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("The polls of the lag ended", exc_info=error)
        for watcher in self._watchers:
            watcher.put(_Ended(error))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._joined.clear()
            wait = min((one.due for one in self._watchers), default=math.inf) - loop.time()
            if wait > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._joined.wait(), None if wait == math.inf else wait)
                continue
            began = loop.time()
            due = [one for one in self._watchers if one.due <= began + one.interval * _EARLY]
            looks = await self._looks_of(due)
            self._polled(len(due), loop.time() - began)
            for number, (watcher, look) in enumerate(zip(due, looks, strict=True), start=1):
                watcher.offer(look, loop.time())
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _looks_of(self, due: Sequence[_Watcher]) -> list[Look[Any] | Exception]:
        groups: dict[StateTables, set[str]] = {}
        for one in due:
            groups.setdefault(one.tables, set()).add(one.question.group_id)
        read = await asyncio.gather(*(self._states(tables, found) for tables, found in groups.items()))
        states = dict(zip(groups, read, strict=True))
        try:
            return await asyncio.wrap_future(self._polling.submit(self._ask, due, states))
        except Exception as error:
            # Whatever it is: the watchers decide what it means to them.
            return [error] * len(due)

    async def _states(self, tables: StateTables, group_ids: set[str]) -> dict[str, GroupState] | Exception:
        """What a database says. One that does not answer is not asked again until it does, and keeps nobody else waiting."""
        before = self._reading.get(tables)
        if before is not None and not before.done():
            return DatabaseUnavailableError(f"The database of connection {tables.conn_id!r} still does not answer")
        if tables not in self._readers:
            self._readers[tables] = _thread()
        self._reading[tables] = reading = self._readers[tables].submit(self._read, tables, group_ids)
        answer = asyncio.wrap_future(reading)
        # Also one that comes too late for anybody to ask.
        answer.add_done_callback(lambda one: one.cancelled() or one.exception())
        await asyncio.wait([answer], timeout=_DATABASE_SECONDS)
        if not answer.done():
            return DatabaseUnavailableError(
                f"The database of connection {tables.conn_id!r} did not answer within {_DATABASE_SECONDS:.0f} s"
            )
        error = answer.exception()
        if isinstance(error, Exception):
            return error
        return answer.result()

    def _read(self, tables: StateTables, group_ids: set[str]) -> dict[str, GroupState]:
        try:
            if tables not in self._engines:
                self._engines[tables] = self._open_engine(tables.conn_id)
            with (
                translated_errors(f"The database of connection {tables.conn_id!r} could not be read", ""),
                self._engines[tables].connect() as conn,
            ):
                return group_states(conn, Tables(tables.schema, tables.prefix), group_ids)
        except Exception:
            # What the connection says may have changed since.
            self._close_engine(tables)
            raise

    def _ask(
        self, due: Sequence[_Watcher], states: dict[StateTables, dict[str, GroupState] | Exception]
    ) -> list[Look[Any] | Exception]:
        asked = [
            (one.question, found[one.question.group_id])
            for one in due
            if not isinstance(found := states[one.tables], Exception)
        ]
        looks: list[Look[Any] | Exception] = []
        try:
            if self._polls is None:
                self._polls = LagPolls(self._open_cluster())
            # Asks Kafka only once the first report is wanted: not at all where no database answered.
            reports = self._polls.reports(asked)
            for one in due:
                found = states[one.tables]
                if isinstance(found, Exception):
                    looks.append(found)
                else:
                    looks.append(_judged(one, found[one.question.group_id], next(reports)))
        except Exception:
            # What the connection says may have changed since.
            self._polls = None
            raise
        return looks


def _thread() -> ThreadPoolExecutor:
    """One, which begins with its first task."""
    return ThreadPoolExecutor(1, thread_name_prefix="kafka-offsets-watch")


def _judged(watcher: _Watcher, state: GroupState, report: LagReport | Exception) -> Look[Any] | Exception:
    if isinstance(report, Exception):
        return report
    try:
        judged = watcher.judge(report)
    except Exception as error:
        return error
    return Look(judged, state.fingerprint(), state.busy)
