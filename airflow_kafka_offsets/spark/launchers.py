"""Launchers in this process: in an existing Spark session (in a notebook, in a script, over Spark Connect), and without
Spark.
"""

from __future__ import annotations

import atexit
import sys
import threading
import uuid
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from airflow_kafka_offsets.spark.driver import run, stage_here
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.package import temporary_directory, write_package
from airflow_kafka_offsets.spark.progress import display_here

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# Contexts and sessions of Spark Connect whose executors have this package. Without this, each batch would send it
# again.
_with_package: WeakSet[SparkContext | SparkSession] = WeakSet()

_INTERRUPT_SECONDS = 0.2


class SessionLauncher:
    """Stages batches in a session that belongs to the caller.

    :param spark: any session; its executors need pyarrow and confluent-kafka; the launcher sends them this package
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._running: _Running | None = None

    def check(self, staging_dir: str | None) -> None:
        """Do nothing: the session is running, and its owner knows whether its executors share a directory with this
        process.
        """

    def __call__(self, job: StageJob) -> None:
        """Send this package to the executors of the session, and stage a batch in it."""
        spark = self._spark
        _send_package(spark)
        if job.dataframe_transform is not None:
            _make_active(spark)
        with closing(display_here()) as display, _Running(spark) as self._running:
            run(spark, job, display)

    def cancel(self) -> None:
        """Interrupt the job that is running, if there is one; the session stays."""
        if self._running is not None:
            self._running.interrupt()

    def close(self) -> None:
        """Do nothing: the session belongs to the caller, who stops it."""


class InProcessLauncher:
    """Stages jobs in this process, without Spark: few records, and no transform of DataFrames. They are decoded in a
    child process: this one is Airflow's.
    """

    def check(self, staging_dir: str | None) -> None:
        """Do nothing: this process has all it needs."""

    def __call__(self, job: StageJob) -> None:
        stage_here(job.isolating(job.slices))

    def cancel(self) -> None:
        """Do nothing: no other process stages the job."""

    def close(self) -> None:
        """Do nothing: no application was started."""


class _Running:
    """A job that is running in a session; a tag distinguishes it from other jobs.

    Tags belong to threads: enter it in the thread that calls Spark.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._tag = f"kafka-offsets-{uuid.uuid4().hex}"
        names = ("addTag", "removeTag", "interruptTag")
        if (owner := _owner(spark)) is not spark:
            # A classic session of Spark 3.5 has no tags, but its context has.
            names = ("addJobTag", "removeJobTag", "cancelJobsWithTag")
        self._add, self._remove, self._cancel = (getattr(owner, name) for name in names)
        self._ended = threading.Event()
        self._interrupts = threading.Event()

    def __enter__(self) -> _Running:
        self._add(self._tag)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._remove(self._tag)

    def interrupt(self) -> None:
        """Interrupt the job, and wait for nothing."""
        if not self._interrupts.is_set():
            self._interrupts.set()
            threading.Thread(target=self._interrupt, name="interrupt", daemon=True).start()

    def _interrupt(self) -> None:
        # Spark interrupts what it runs at that moment: before the job is submitted, that is nothing.
        while not self._ended.is_set():
            try:
                self._cancel(self._tag)
            except Exception:
                # Whoever owns the session may end it as soon as the job has ended.
                if not self._ended.is_set():
                    raise
            self._ended.wait(_INTERRUPT_SECONDS)


def _make_active(spark: SparkSession) -> None:
    """Make a session the active one of this thread: a transform may ask for it, and the thread that prefetches does not
    inherit it.
    """
    kind = type(spark)
    if kind.getActiveSession() is not None:
        return
    if _is_connect(spark):
        kind._set_default_and_active_session(spark)  # type: ignore[attr-defined]
    else:
        # The public call that does so.
        spark.createDataFrame([], "nothing INT")


def _send_package(spark: SparkSession) -> None:
    """Send this package to the executors of a session that do not have it."""
    owner = _owner(spark)
    if owner in _with_package:
        return
    archive = str(_archive())
    # Spark 3.5 has addArtifacts for Spark Connect only.
    if owner is spark:
        spark.addArtifacts(archive, pyfile=True)
        # It is for the executors. This process has the package, and is not to import any more of it from there.
        while archive in sys.path:
            sys.path.remove(archive)
    else:
        spark.sparkContext.addPyFile(archive)
    _with_package.add(owner)


@cache
def _archive() -> Path:
    """Return this process's archive. It is kept until the process ends: Spark fetches it whenever an executor
    starts.
    """
    until_exit = ExitStack()
    atexit.register(until_exit.close)
    return write_package(until_exit.enter_context(temporary_directory()) / "airflow_kafka_offsets.zip")


def _owner(spark: SparkSession) -> SparkSession | SparkContext:
    """Return what has the files and tags of a session: a classic one shares those of its context."""
    return spark if _is_connect(spark) else spark.sparkContext


def _is_connect(spark: SparkSession) -> bool:
    """Return whether it is a session of Spark Connect, whose module is not imported, since it needs gRPC."""
    return any(kind.__module__ == "pyspark.sql.connect.session" for kind in type(spark).__mro__)
