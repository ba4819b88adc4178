"""A submitted application, seen from the task: spark-submit runs in a thread, which logs what it prints, and jobs go
over a socket.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from contextvars import copy_context
from pathlib import Path
from typing import NoReturn, Protocol

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.hooks.spark_log import CollapsedLog
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.job_socket import Answer
from airflow_kafka_offsets.spark.package import write_application

# The addresses of Unix domain sockets have 108 bytes on Linux and 104 on macOS, the last of which is zero.
_LONGEST_PATH = 103

# What is created in it has an unguessable name, and is its owner's alone.
_SHORT_DIRECTORY = "/tmp"  # noqa: S108

_SOCKET = "jobs"


class SubmitHook(Protocol):
    """Runs spark-submit, as the provider's hook does."""

    folded: CollapsedLog

    def submit(self, application: str = "", **kwargs: object) -> str | None:
        """Run spark-submit until it exits."""

    def on_kill(self) -> None:
        """Stop it, from another thread."""

    def close(self) -> None:
        """Leave no process, and no pipe open."""


class ApplicationEndedError(Exception):
    """An application that had staged other jobs ended before it took a job: another one can stage it."""


class SparkApplication:
    """An application that stages job after job. The first job starts it.

    :param make_hook: takes the path of the package's archive, and the argument of the application
    :param environment: of spark-submit
    :param secret_properties: Spark properties that the application sets itself
    :param is_local: whether executors run on this machine
    """

    def __init__(
        self,
        make_hook: Callable[[str, str], SubmitHook],
        environment: Mapping[str, str],
        secret_properties: Mapping[str, str],
        *,
        is_local: bool = False,
    ) -> None:
        self._secret_properties = secret_properties
        self._error: Exception | None = None
        self._connection: socket.socket | None = None
        self._received = b""
        with ExitStack() as stack:
            directory = Path(stack.enter_context(_job_directory()))
            application, package = write_application(directory)
            path = str(directory / _SOCKET)
            self._listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._listener.bind(path)
            self._listener.listen(1)
            # Readable from the end of spark-submit on.
            self._ended, self._runs = socket.socketpair()
            stack.callback(self._runs.close)
            stack.callback(self._ended.close)
            self._application = str(application)
            self._environment = dict(environment)
            if is_local:
                # For Python workers, whose daemon is a module of the package.
                python_path = [str(package), environment.get("PYTHONPATH", "")]
                self._environment["PYTHONPATH"] = os.pathsep.join(filter(None, python_path))
            self._hook = make_hook(str(package), path)
            self._resources = stack.pop_all()
        # What is logged there belongs to the same task.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._submit,), name="spark-submit", daemon=True
        )

    def stage(self, job: StageJob) -> None:
        """Stage a job.

        :raises ApplicationEndedError: it staged other jobs, and ended before it took this one
        :raises Exception: the job failed; the staging directory may say why
        """
        self._hook.folded.begin_job()
        try:
            answer = self._start(job) if self._connection is None else self._next(job)
        except ApplicationEndedError:
            raise
        except BaseException:
            # On a timeout Airflow raises an exception here, and calls on_kill only after it.
            self.kill()
            self._disconnect()
            self._join()
            raise
        finally:
            self._hook.folded.end_job()
        if answer == Answer.FAILED:
            raise RuntimeError(f"the Spark application did not stage batch {job.batch_id}")

    @property
    def has_ended(self) -> bool:
        """Whether it was started, and has ended."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def kill(self) -> None:
        """Stop it, and wait for nothing."""
        self._hook.on_kill()

    def close(self) -> Exception | None:
        """End it, and wait until it has ended.

        :return: the error with which spark-submit ended
        """
        with self._resources:
            self._disconnect()
            try:
                self._join()
            except BaseException:
                self.kill()
                self._join()
                raise
        return self._error

    def _disconnect(self) -> None:
        """End the driver's Python: it outlives its JVM where it waits for a job, or is only about to connect."""
        self._listener.close()
        if self._connection is not None:
            with suppress(OSError):  # it has closed its end
                self._connection.shutdown(socket.SHUT_RDWR)

    def _join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def _submit(self) -> None:
        try:
            with self._hook.folded.apart():
                # What a library prints need not be UTF-8.
                self._hook.submit(self._application, env=self._environment, errors="replace")
        except Exception as error:
            # It is raised where a job waits for it.
            self._error = error
            # Where nobody reads what it prints any more, it would wait for that.
            self._hook.on_kill()
        finally:
            self._hook.close()
            self._runs.close()

    def _start(self, job: StageJob) -> Answer:
        self._thread.start()
        if not _is_readable(self._listener, self._ended):
            self._raise_end(job)
        self._connection = self._resources.enter_context(self._listener.accept()[0])
        # No other may connect.
        self._listener.close()
        # If it is gone already, it gives no answer either.
        with suppress(ConnectionError):
            self._connection.sendall(f"{json.dumps(dict(self._secret_properties))}\n{job.to_json()}\n".encode())
        return self._outcome(job) if self._answer() == Answer.BEGUN else self._raise_end(job)

    def _next(self, job: StageJob) -> Answer:
        assert self._connection is not None
        # It sends nothing by itself, so that only its end can be read.
        if _is_readable(self._connection, self._ended, timeout=0) is not None:
            raise ApplicationEndedError
        try:
            self._connection.sendall(f"{job.to_json()}\n".encode())
        except ConnectionError as error:
            raise ApplicationEndedError from error
        if self._answer() != Answer.BEGUN:
            raise ApplicationEndedError
        return self._outcome(job)

    def _outcome(self, job: StageJob) -> Answer:
        return self._answer() or self._raise_end(job)

    def _answer(self) -> Answer | None:
        """Wait for an answer; return None where the application has ended."""
        assert self._connection is not None
        # A buffered reader could hold an answer back, for which the socket shows nothing.
        while b"\n" not in self._received:
            received = b""
            if _is_readable(self._connection, self._ended):
                with suppress(ConnectionError):
                    received = self._connection.recv(4096)
            if not received:
                return None
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        return Answer(line.decode())

    def _raise_end(self, job: StageJob) -> NoReturn:
        self._join()
        raise self._error or RuntimeError(f"spark-submit exited before batch {job.batch_id} was staged")


def _is_readable(wanted: socket.socket, ended: socket.socket, timeout: float | None = None) -> bool | None:
    """Wait until there is something to read.

    :param ended: is readable when nothing more can come
    :return: whether it is there; None if nothing happens in time
    """
    with selectors.DefaultSelector() as selector:
        selector.register(wanted, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        ready = [key.fileobj for key, _ in selector.select(timeout)]
    return wanted in ready if ready else None


def _job_directory() -> tempfile.TemporaryDirectory[str]:
    """Create a directory that only its owner can enter, and whose path leaves room for the name of a socket.

    :raises ConfigurationError: there is none
    """
    directory = tempfile.TemporaryDirectory(prefix="kafka-offsets-job-")
    if len(os.fsencode(directory.name)) + len(f"/{_SOCKET}") <= _LONGEST_PATH:
        return directory
    long = directory.name
    directory.cleanup()
    try:
        return tempfile.TemporaryDirectory(prefix="kafka-offsets-job-", dir=_SHORT_DIRECTORY)
    except OSError as error:
        raise ConfigurationError(
            f"The path of the temporary directory {long} is too long for a socket, and nothing can be created in "
            f"{_SHORT_DIRECTORY} ({error.strerror}): set TMPDIR to a shorter path"
        ) from error
