"""A load in a process of its own that stops at a chosen point, so that a test can kill it there with SIGKILL.

The process runs the product as it is; only the function at whose door it stops is wrapped, in that process alone.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import sqlalchemy as sa

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.kafka import polled
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.publications import Publication
from airflow_kafka_offsets.loading import load
from airflow_kafka_offsets.loading.context import LoadResult
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.replaying import replay
from airflow_kafka_offsets.replaying.bounds import Bounds
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark import tasks
from airflow_kafka_offsets.spark.job import Launcher
from airflow_kafka_offsets.staging.directory import StagingDirectory
from tests.support.inline import InlineLauncher
from tests.support.pipelines import pipeline_and_options

# Children are forked from a server that has imported everything and runs nothing: that takes milliseconds, and no
# thread or Kafka client of the test's process is copied.
_CONTEXT = multiprocessing.get_context("forkserver")
# pyarrow imports pandas as soon as it makes an array of Python's values, and that takes longer than a whole load.
_CONTEXT.set_forkserver_preload(
    ["tests.support.dying_load", "pandas", "pyarrow.pandas_compat", "pyiceberg.io.pyarrow", "pyiceberg.catalog.sql"]
)

TIMEOUT = 60.0

# What the product imports only where it is used: in the server, once, and not in every child.
for _name in (
    "pyarrow.json",
    "psycopg",
    "pgpq",
    "pymysql",
    "sqlalchemy.dialects.mysql",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.dialects.sqlite",
    "airflow_kafka_offsets.database.tables",
    "airflow_kafka_offsets.formats.json_decoder",
    "airflow_kafka_offsets.kafka.reader",
):
    import_module(_name)
for _name in ("connected_table", "mysql_load", "postgres_copy"):
    import_module(f"airflow_kafka_offsets.sinks.sql.{_name}")
_COLUMNS = Json("id BIGINT NOT NULL, name STRING")
_COLUMNS.columns()

# What the steps call, where they call it.
load_module = import_module("airflow_kafka_offsets.loading.load")
prefetch_module = import_module("airflow_kafka_offsets.loading.prefetch")
stage_module = import_module("airflow_kafka_offsets.loading.stage")
commit_module = import_module("airflow_kafka_offsets.loading.commit")
replay_module = import_module("airflow_kafka_offsets.replaying.replay")
claims = import_module("airflow_kafka_offsets.ledger.claims")
commit_transaction = import_module("airflow_kafka_offsets.ledger.commit_transaction")
driver_module = import_module("airflow_kafka_offsets.spark.driver")


@dataclass(frozen=True)
class Load:
    """What to load, as plain data.

    :param options: of the pipeline and of the load, over group `loader`, table `target` and the columns of the tests
    """

    url: str
    bootstrap_servers: str
    topics: tuple[str, ...]
    run: TaskRun
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> LoadResult:
        pipeline, options = pipeline_and_options(self._parameters())
        return self._call(load.load, pipeline, options)

    def _parameters(self) -> dict[str, Any]:
        defaults = {"group_id": "loader", "value_format": _COLUMNS, "sink": SqlTable("target")}
        return {"topics": self.topics} | defaults | self.options

    def _call(self, work: Callable[..., LoadResult], *arguments: Any, **options: Any) -> LoadResult:
        engine = sa.create_engine(self.url, hide_parameters=True)
        try:
            return work(
                *arguments,
                kafka_config={"bootstrap.servers": self.bootstrap_servers},
                engine=engine,
                launcher=self._launcher(),
                run=self.run,
                **options,
            )
        finally:
            engine.dispose()

    def _launcher(self) -> Launcher:
        return InlineLauncher()


@dataclass(frozen=True)
class Replay(Load):
    """What to replay.

    :param bounds: of the replay
    """

    bounds: Bounds | dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    replace: bool = False

    def __call__(self) -> LoadResult:
        return self._call(replay.replay, Pipeline(**self._parameters()), self.bounds, replace=self.replace)


def _before(owner: Any, name: str) -> Callable[[Callable[[], None]], None]:
    def install(stop: Callable[[], None]) -> None:
        original = getattr(owner, name)

        def stopped(*args: Any, **kwargs: Any) -> Any:
            stop()
            return original(*args, **kwargs)

        setattr(owner, name, stopped)

    return install


def _after(owner: Any, name: str) -> Callable[[Callable[[], None]], None]:
    def install(stop: Callable[[], None]) -> None:
        original = getattr(owner, name)

        def stopped(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            stop()
            return result

        setattr(owner, name, stopped)

    return install


def _in_the_second_slice(stop: Callable[[], None]) -> None:
    original = tasks.read_slice

    def second(job: Any, slice_: Slice, *args: Any) -> Any:
        if slice_.index == 1:
            stop()
        return original(job, slice_, *args)

    tasks.read_slice = second  # type: ignore[assignment]


def _while_a_slice_is_read(stop: Callable[[], None]) -> None:

    # The first records are fetched, and nothing is written of them yet.
    _after(polled.Polled, "take")(stop)


def _in_the_middle_of_removing(stop: Callable[[], None]) -> None:
    original = StagingDirectory.remove
    committed: list[bool] = []
    _after(commit_module, "commit_batch")(lambda: committed.append(True))

    def one_file_and_no_more(self: StagingDirectory) -> None:
        if not committed:  # an earlier attempt's: whoever is killed here leaves an orphan, which goes by its age
            original(self)
            return
        self.filesystem.delete_file(self.file("manifest.json"))
        stop()

    StagingDirectory.remove = one_file_and_no_more  # type: ignore[method-assign]


POINTS: dict[str, Callable[[Callable[[], None]], None]] = {
    "before planning": _before(load_module, "plan"),
    "after the ranges are stored": _after(load_module, "plan"),
    "while a slice is read": _while_a_slice_is_read,
    "after some slices are staged": _in_the_second_slice,
    "before the manifest": _before(driver_module, "write_manifest"),
    "after the manifest": _before(stage_module, "mark_staged"),
    "after it is marked as staged": _before(commit_module, "commit"),
    "inside the transaction": _before(claims, "set_positions"),
    "after COMMIT, its answer lost": _before(commit_transaction, "_is_committed"),
    "after COMMIT": _after(commit_transaction, "transact"),
    "before clean-up": _after(commit_module, "commit_batch"),
    "during clean-up": _in_the_middle_of_removing,
}

PUBLISHING_POINTS: dict[str, Callable[[Callable[[], None]], None]] = {
    "before it begins to be published": _before(Publication, "begin"),
    "after it began to be published": _after(Publication, "begin"),
}
"""Points of loads into a target that commits elsewhere; `inside the transaction` is between the two commits there."""

PREFETCH_POINTS: dict[str, Callable[[Callable[[], None]], None]] = {
    "before a batch is planned ahead": _before(prefetch_module, "plan_after"),
    "after a batch is planned ahead": _after(prefetch_module, "plan_after"),
    "after its staging began": _after(prefetch_module, "begin_attempt"),
    "before Spark stages it": _before(prefetch_module, "launch_application"),
    "after Spark staged it": _after(prefetch_module, "launch_application"),
    "before it is opened": _before(claims, "open_prefetched_batch"),
    "after it is opened": _after(claims, "open_prefetched_batch"),
    "before it is marked as staged": _before(prefetch_module, "finish_attempt"),
    "after it is staged": _after(prefetch_module, "finish_attempt"),
}
"""Points of loads with several batches. `Spark` is another thread: the commit of the batch before goes on while it
stands there.
"""

REPLAY_POINTS: dict[str, Callable[[Callable[[], None]], None]] = {
    "before planning a replay": _before(replay_module, "plan_parts"),
    "after the ranges of a replay are stored": _after(replay_module, "_plan"),
    "while a slice is read": _while_a_slice_is_read,
    "after some slices are staged": _in_the_second_slice,
    "before the manifest": _before(driver_module, "write_manifest"),
    "after the manifest": _before(stage_module, "mark_staged"),
    "after a replay is marked as staged": _before(commit_module, "commit"),
    "inside the transaction of a replay": _before(commit_transaction, "_close"),
    "after COMMIT": _after(commit_transaction, "transact"),
    "before clean-up": _after(commit_module, "commit_batch"),
    "during clean-up": _in_the_middle_of_removing,
}


def _main(load: Load, points: tuple[str, ...], pipe: Connection) -> None:
    for point in points:
        (POINTS | PUBLISHING_POINTS | PREFETCH_POINTS | REPLAY_POINTS)[point](partial(_stop, pipe, point))
    try:
        pipe.send(load())
    except Exception as error:  # told to whoever waits at the other end
        pipe.send(error)


class Worker:
    """A process that is given one load after the other, as a context manager."""

    def __init__(self) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_work, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def begin(self, load: Load, *, pauses: dict[str, float]) -> None:
        """
        :param pauses: points at which it is slow, and for how many seconds
        """
        self._pipe.send((load, pauses))

    def result(self) -> Any:
        """The load's result, or the error that ended it."""
        assert self._pipe.poll(TIMEOUT), "the load hangs"
        return self._pipe.recv()


def _work(pipe: Connection) -> None:
    slow: dict[str, float] = {}
    # Whoever waits for the other one looks again soon: a race is over in a fraction of a second.
    load._BUSY_POLL_SECONDS = 0.02
    for point, install in (POINTS | PREFETCH_POINTS).items():
        if point != "during clean-up":
            install(partial(_be_slow, slow, point))
    while True:
        asked, pauses = pipe.recv()
        slow.clear()
        slow.update(pauses)
        try:
            pipe.send(asked())
        except Exception as error:  # told to whoever waits at the other end
            pipe.send(error)


def _be_slow(slow: dict[str, float], point: str) -> None:
    time.sleep(slow.get(point, 0.0))


def _stop(pipe: Connection, point: str) -> None:
    pipe.send(point)
    pipe.recv()


class DyingLoad:
    """A load in a child process, as a context manager that leaves no process behind.

    :param points: of `POINTS`, for example: where it stops, each time it comes by, until it is told to go on
    """

    def __init__(self, load: Load, *points: str) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_main, args=(load, points, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def __enter__(self) -> DyingLoad:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        self._pipe.close()

    def reach(self, point: str) -> None:
        """Wait until it stops at a point."""
        told = self.result()
        if isinstance(told, Exception):
            raise told
        assert told == point, f"the load was to reach {point!r}; {told}"

    def go_on(self) -> None:
        """Let it leave the point at which it stands."""
        self._pipe.send("go on")

    def result(self) -> Any:
        """What it tells next: the point it has reached, its result, or the error that ended it."""
        assert self._pipe.poll(TIMEOUT), "the load hangs"
        return self._pipe.recv()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.join()
