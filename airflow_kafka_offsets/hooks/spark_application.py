"""A submitted application, seen from the task: a thread runs it until it has ended, and jobs go over a channel."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from contextvars import copy_context
from logging import getLogger
from multiprocessing.connection import wait
from socket import socket, socketpair
from threading import Thread
from typing import Any, NoReturn, Protocol

from airflow_kafka_offsets.hooks.job_channel import Channel
from airflow_kafka_offsets.hooks.spark_log import CollapsedLog
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.jobs import Answer
from airflow_kafka_offsets.spark.progress import Bar, is_watched
from airflow_kafka_offsets.spark.properties import split_secrets

log = logging.getLogger(__name__)


class ApplicationEndedError(Exception):
    """An application that had staged other jobs ended before it took a job: another one can stage it."""


class ApplicationRun(Protocol):
    """A run of the application, by `spark-submit` or by a service."""

    def run(self) -> None:
        """Submit the application, and wait until it has ended.

        :raises Exception: it failed, or was killed
        """

    def kill(self) -> None:
        """Stop it, also if it is only about to start, and wait for nothing. Called in any thread."""


class SparkApplication:
    """An application that stages job after job. The first job starts it.

    :param channel: is entered
    :param folded: logs its lines
    :param secret_properties: Spark properties that the application sets itself
    :param resources: are closed at the end
    """

    def __init__(
        self,
        run: ApplicationRun,
        channel: Channel,
        folded: CollapsedLog,
        secret_properties: Mapping[str, str],
        resources: ExitStack,
    ) -> None:
        self._run, self._channel, self._folded = run, channel, folded
        self._secret_properties = secret_properties
        self._resources = resources
        self._error: Exception | None = None
        self._connection: socket | None = None
        # Readable from the end of the run on.
        self._ended, self._runs = map(resources.enter_context, socketpair())
        # What is logged there belongs to the same task.
        self._thread = Thread(target=copy_context().run, args=(self._submit,), name="spark-submit", daemon=True)

    def stage(self, job: StageJob) -> None:
        """Stage a job.

        :raises ApplicationEndedError: it staged other jobs, and ended before it took this one
        :raises Exception: the job failed; the staging directory may say why
        """
        self._folded.begin_job()
        try:
            answer = self._outcome(job)
        except ApplicationEndedError:
            raise
        except BaseException:
            # On a timeout Airflow raises an exception here, and calls on_kill only after it.
            self.kill()
            self._channel.disconnect()
            self._join()
            raise
        finally:
            self._folded.end_job(is_printed=self._channel.is_printed)
        if answer is Answer.FAILED:
            raise RuntimeError(f"the Spark application did not stage batch {job.batch_id}")

    @property
    def has_ended(self) -> bool:
        """Whether it was started, and has ended."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def kill(self) -> None:
        """Stop it, and wait for nothing."""
        self._run.kill()

    def close(self) -> Exception | None:
        """End it, and wait until it has ended.

        :return: the error with which it ended
        """
        with self._resources:
            self._channel.disconnect()
            if self._channel.error is not None:
                # The driver may never read that there are no other jobs.
                self.kill()
            try:
                self._join()
            except BaseException:
                self.kill()
                self._join()
                raise
        return self._error

    def _join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def _submit(self) -> None:
        try:
            self._run.run()
        except Exception as error:
            # It is raised where a job waits for it.
            self._error = error
        finally:
            self._runs.close()

    def _outcome(self, job: StageJob) -> Answer:
        """Have a job staged, and return what became of it."""
        is_first = self._connection is None
        if self._connection is None:
            self._connection = self._connect(job)
            self._channel.send(json.dumps(dict(self._secret_properties)))
        # It sends nothing by itself, so that only its end can be read.
        elif wait([self._connection, self._ended], timeout=0):
            raise ApplicationEndedError
        self._channel.send(job.to_text())
        if self._answer() is not Answer.BEGUN:
            # Nobody knows whether a driver that is only silent stages the job.
            if not is_first and self._channel.error is None:
                raise ApplicationEndedError
            self._raise_end(job)
        return self._answer() or self._raise_end(job)

    def _connect(self, job: StageJob) -> socket:
        """Start the application, and wait until it connects."""
        self._thread.start()
        listener = self._channel.listen()
        if listener not in wait([listener, self._ended]):
            self._raise_end(job)
        return self._channel.accept()

    def _answer(self) -> Answer | None:
        """Wait for an answer; return None where the application has ended."""
        assert self._connection is not None
        ready = wait([self._connection, self._ended])
        if self._connection not in ready:
            self._channel.settle()
            ready = wait([self._connection], timeout=0)
        if ready:
            with suppress(ConnectionError):
                if answer := self._connection.recv(1):
                    return Answer(answer)
        return None

    def _raise_end(self, job: StageJob) -> NoReturn:
        if self._channel.error is not None:
            raise self._channel.error
        self._join()
        raise self._error or RuntimeError(f"the application exited before batch {job.batch_id} was staged")


class ApplicationLauncher(ABC):
    """A launcher that submits an application, which stages job after job.

    :param conn_id: a connection
    :param conf: Spark properties; they take precedence over those that this package sets. Those that hold secrets are
        in no argument and no environment variable: the application sets them itself (see `spark.properties`)
    :param name: the application's name
    """

    def __init__(self, conn_id: str, *, conf: Mapping[str, Any] | None = None, name: str = "kafka-offsets") -> None:
        self._conn_id = conn_id
        self._conf, self._secrets = split_secrets(conf or {})
        self.name = name
        self.last_batch: int | None = None
        """The batch that was last given to Spark."""
        self._application: SparkApplication | None = None
        self._with_sql = False
        self._is_staging = self._is_cancelled = False

    @abstractmethod
    def _open(self, job: StageJob, folded: CollapsedLog, stack: ExitStack) -> tuple[ApplicationRun, Channel]:
        """Return a run of the application that has not begun, and its channel, which is entered.

        :param job: the first
        :param folded: logs its lines
        :param stack: is closed when the application has ended
        """

    def __call__(self, job: StageJob) -> None:
        """Stage a job in the application of the jobs before, or start one."""
        self.last_batch = job.batch_id
        self._is_cancelled, self._is_staging = False, True
        try:
            self._stage(job)
        except BaseException:
            # Its error is the one that is raised.
            if self._application is not None and self._application.has_ended:
                self._end()
            raise
        finally:
            self._is_staging = False

    def cancel(self) -> None:
        """Stop the application, if it stages a job."""
        if self._is_staging:
            self._is_cancelled = True
            if self._application is not None:
                self._application.kill()

    def close(self) -> None:
        """End the application, if one is running."""
        if not self._end():
            log.warning("The Spark application ended with an error after its last batch, which is not affected")

    def _end(self) -> bool:
        """End the application, if one is running; return whether it had no error."""
        application, self._application = self._application, None
        return application is None or application.close() is None

    def _stage(self, job: StageJob) -> None:
        with_sql = job.dataframe_transform is not None
        if self._with_sql != with_sql:
            self.close()
        if self._application is not None:
            try:
                self._application.stage(job)
                return
            except ApplicationEndedError:
                log.warning(
                    "The Spark application ended after the batch before, and batch %d starts another", job.batch_id
                )
                self._end()
        self._with_sql = with_sql
        self._application = self._start(job)
        if self._is_cancelled:
            self._application.kill()
        self._application.stage(job)

    def _start(self, job: StageJob) -> SparkApplication:
        folded = CollapsedLog(getLogger(__name__), lambda: Bar() if is_watched() else None)
        with ExitStack() as stack:
            run, channel = self._open(job, folded, stack)
            folded.mark = channel.mark
            return SparkApplication(run, channel, folded, self._secrets, stack.pop_all())
