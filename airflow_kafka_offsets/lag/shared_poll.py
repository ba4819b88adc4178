"""One poll of a Kafka cluster for all watchers in a process, such as the triggers of a triggerer.

A thousand watchers cost about as much as one: at each interval, a few queries to each database for all groups, and a
few requests to Kafka for all topics. The event loop only waits: threads ask databases and Kafka, and judge the lag.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.options import StateTables
from airflow_kafka_offsets.database.errors import translated_errors
from airflow_kafka_offsets.exceptions import DatabaseUnavailableError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.lag.measure import GroupState, LagPolls, group_states
from airflow_kafka_offsets.lag.report import LagQuestion, LagReport
from airflow_kafka_offsets.lag.thresholds import Judgement, LagWatch
from airflow_kafka_offsets.ledger.tables import Tables

log = logging.getLogger(__name__)


# Watchers that begin together share their first poll.
_GATHER_SECONDS = 0.5

_DATABASE_SECONDS = 15.0

# A watcher joins a poll that is early by so much of its interval.
_EARLY = 0.1

_LONGEST_PAUSE_SECONDS = 300.0

# Results are handed over in portions, between which the loop runs other tasks.
_RESULTS_AT_ONCE = 10


class PollResult(NamedTuple):
    """What a poll found for a watcher.

    :param positions: a number that changes when a position moves
    :param busy: whether a run loads the group
    """

    judgement: Judgement
    positions: int
    busy: bool


_States = dict[str, GroupState] | Exception


class _Ended(NamedTuple):
    """The end of the polls by an error that no watcher can wait out."""

    error: BaseException


def _thread() -> ThreadPoolExecutor:
    """Return an executor of one thread, which starts with its first task."""
    return ThreadPoolExecutor(1, thread_name_prefix="kafka-offsets-watch")


@dataclass(eq=False)
class _Database:
    """Reads the state tables of a database, in a separate thread: one that does not answer leaves the others
    alone.
    """

    conn_id: str
    state_tables: StateTables
    open_engine: Callable[[str], Engine]
    engine: Engine | None = None
    reading: Future[dict[str, GroupState]] | None = None
    thread: ThreadPoolExecutor = field(default_factory=_thread)

    async def states(self, group_ids: set[str]) -> _States:
        """Read the states of groups. A database that does not answer is not asked again before it does."""
        database = f"The database of connection {self.conn_id!r}"
        if self.reading is not None and not self.reading.done():
            return DatabaseUnavailableError(f"{database} still does not answer")
        self.reading = self.thread.submit(self._read, group_ids)
        answer = asyncio.wrap_future(self.reading)
        # An error that comes after the time limit is retrieved too, or asyncio would log it.
        answer.add_done_callback(lambda future: future.cancelled() or future.exception())
        await asyncio.wait([answer], timeout=_DATABASE_SECONDS)
        if not answer.done():
            return DatabaseUnavailableError(f"{database} did not answer within {_DATABASE_SECONDS:.0f} s")
        error = answer.exception()
        return error if isinstance(error, Exception) else answer.result()

    def close(self) -> None:
        """Close the connections, in the thread and after any request in flight."""
        self.thread.submit(self._close_engine)
        self.thread.shutdown(wait=False)

    def _read(self, group_ids: set[str]) -> dict[str, GroupState]:
        tables = Tables.of(self.state_tables.schema, self.state_tables.prefix)
        try:
            if self.engine is None:
                self.engine = self.open_engine(self.conn_id)
            failed = f"The database of connection {self.conn_id!r} could not be read"
            with translated_errors(failed, ""), self.engine.connect() as conn:
                return group_states(conn, tables, group_ids)
        except Exception:
            # The connection may be edited before the next poll.
            self._close_engine()
            raise

    def _close_engine(self) -> None:
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.dispose()


@dataclass(eq=False, slots=True)
class _Watcher:
    watched: LagWatch
    question: LagQuestion
    database: _Database
    interval: float
    due: float
    failures: int = 0
    # A result that was not taken is replaced by the next one.
    results: asyncio.Queue[PollResult | Exception | _Ended] = field(default_factory=lambda: asyncio.Queue(1))

    def offer(self, result: PollResult | Exception, now: float) -> None:
        """Hand over a result and set the time of the next poll, which is later after each further failure."""
        self.failures = self.failures + 1 if isinstance(result, Exception) else 0
        # A multiple of the interval, so that all watchers with the same interval are due together.
        self.due = (now // self.interval + 1) * self.interval
        if self.failures > 1:
            longest = max(self.interval, _LONGEST_PAUSE_SECONDS)
            self.due += min(self.interval * 2 ** min(self.failures - 1, 10), longest) // self.interval * self.interval
        self.put(result)

    def put(self, result: PollResult | Exception | _Ended) -> None:
        if self.results.full():
            self.results.get_nowait()
        self.results.put_nowait(result)


@dataclass(eq=False)
class SharedPoll:
    """The polls of one cluster in one event loop. They begin with the first watcher and end with the last.

    :param open_cluster: creates a client; called in a thread, and again after the cluster was not available
    :param open_engine: creates an engine by its `conn_id`, in the same way
    :param ended: called when the last watcher has left; the next watcher needs another `SharedPoll`
    :param polled: called after each poll with the number of watchers and the seconds it took
    :param measured: called with a group and its lag; in a thread, as the lag is judged
    """

    open_cluster: Callable[[], Cluster]
    open_engine: Callable[[str], Engine]
    ended: Callable[[], object]
    polled: Callable[[int, float], None]
    measured: Callable[[str, LagReport], None]
    _watchers: set[_Watcher] = field(default_factory=set, init=False)
    _databases: dict[tuple[str, StateTables], _Database] = field(default_factory=dict, init=False)
    _joined: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    _polling: ThreadPoolExecutor = field(default_factory=_thread, init=False)
    _polls: LagPolls | None = field(default=None, init=False)

    async def results(self, watched: LagWatch) -> AsyncGenerator[PollResult | Exception]:
        """Generate the result of each poll, or the error that it met, without end. Errors make the pauses longer.

        The caller closes the generator.

        :raises ConfigurationError: see `LagWatch.question`
        :raises RuntimeError: the polls ended with an error that neither Kafka nor a database caused
        """
        now, interval = asyncio.get_running_loop().time(), watched.poll_interval.total_seconds()
        tables = watched.conn_id, watched.state_tables
        database = self._databases.setdefault(tables, _Database(*tables, self.open_engine))
        watcher = _Watcher(watched, watched.question(), database, interval, now + min(_GATHER_SECONDS, interval))
        self._watchers.add(watcher)
        self._joined.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="kafka-offsets-watch")
            self._task.add_done_callback(self._failed)
        try:
            while True:
                result = await watcher.results.get()
                if isinstance(result, _Ended):
                    raise RuntimeError(f"The polls of the lag ended: {result.error!r}") from result.error
                yield result
        finally:
            self._watchers.discard(watcher)
            if not self._watchers:
                self._end()

    def _end(self) -> None:
        self.ended()
        if self._task is not None:
            self._task.cancel()
        # In its thread, after any request in flight: closing blocks on the network.
        self._polling.submit(self._close_cluster)
        self._polling.shutdown(wait=False)
        for database in self._databases.values():
            database.close()

    def _close_cluster(self) -> None:
        self._polls = None

    def _failed(self, task: asyncio.Task[None]) -> None:
        """End all watchers with the error that ended the polls: they would wait forever. The next watcher polls
        again.
        """
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("The polls of the lag ended", exc_info=error)
        for watcher in self._watchers:
            watcher.put(_Ended(error))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._joined.clear()
            now = loop.time()
            wait = min((watcher.due - now for watcher in self._watchers), default=_LONGEST_PAUSE_SECONDS)
            if wait > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._joined.wait(), wait)
                continue
            due = [watcher for watcher in self._watchers if watcher.due <= now + watcher.interval * _EARLY]
            results = await self._poll(due)
            self.polled(len(due), loop.time() - now)
            for number, (watcher, result) in enumerate(zip(due, results, strict=True), start=1):
                watcher.offer(result, loop.time())
                if number % _RESULTS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _poll(self, due: Sequence[_Watcher]) -> list[PollResult | Exception]:
        groups: dict[_Database, set[str]] = {}
        for watcher in due:
            groups.setdefault(watcher.database, set()).add(watcher.question.group_id)
        read = await asyncio.gather(*(database.states(group_ids) for database, group_ids in groups.items()))
        states = dict(zip(groups, read, strict=True))
        try:
            return await asyncio.wrap_future(self._polling.submit(self._measure, due, states))
        except Exception as error:
            # The watchers decide what the error means to them.
            return [error] * len(due)

    def _measure(self, due: Sequence[_Watcher], states: dict[_Database, _States]) -> list[PollResult | Exception]:
        try:
            if self._polls is None:
                self._polls = LagPolls(self.open_cluster())
            # Kafka is asked when the first report is taken: not at all if no database answered.
            reports = self._polls.reports(
                (watcher.question, read[watcher.question.group_id])
                for watcher in due
                if not isinstance(read := states[watcher.database], Exception)
            )
            return [self._result(watcher, states[watcher.database], reports) for watcher in due]
        except Exception:
            # The connection may be edited before the next poll.
            self._close_cluster()
            raise

    def _result(
        self, watcher: _Watcher, states: _States, reports: Iterator[LagReport | Exception]
    ) -> PollResult | Exception:
        if isinstance(states, Exception):
            return states
        report = next(reports)
        if isinstance(report, Exception):
            return report
        state = states[watcher.question.group_id]
        try:
            self.measured(watcher.question.group_id, report)
            return PollResult(watcher.watched.judge(report), state.fingerprint(), state.busy)
        except Exception as error:
            return error
