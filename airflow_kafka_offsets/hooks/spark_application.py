"""A submitted application, seen from the task: a thread runs spark-submit and logs what it prints, and jobs go over a
socket.

The lines of this package stand out in the task's log, and Spark's are folded into groups: Airflow's log view folds what
is between `::group::` and `::endgroup::`.
"""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import copy_context
from logging import Handler, Logger, LogRecord, getLogger
from multiprocessing.connection import wait
from pathlib import Path
from threading import Event, RLock, Thread, get_ident
from typing import Any, NoReturn

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_kafka_offsets.escaping import printable
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.spark.job import Answer, StageJob
from airflow_kafka_offsets.spark.package import DIRECTORY, temporary_directory, write_application
from airflow_kafka_offsets.spark.progress import Bar, Display, MarkedLine, end_of_job, is_watched, mark_of

# The addresses of Unix domain sockets have 108 bytes on Linux and 104 on macOS, the last of which is zero.
_LONGEST_PATH = 103

# What is created in it has an unguessable name, and is its owner's alone.
_SHORT_DIRECTORY = "/tmp"  # noqa: S108

_SOCKET = "jobs"

_PACKAGE = __name__.partition(".")[0]

_LATE_SECONDS = 5.0

# Lines of log4j, of spark-submit and of Java's stack traces. What a transform prints looks different.
_SPARKS = re.compile(
    r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (TRACE|DEBUG|INFO|WARN|ERROR|FATAL) |\[Stage \d|:: |Caused by: |Suppressed: "
    r"|\.\.\. \d+ "
    r"|SQLSTATE: |(WARNING|Using|Setting|To adjust|Picked up|Warning)[: ]"
    r"|(java|javax|scala|org\.apache|py4j)\.[\w.$]+(:|$)"
)


# The end of a traceback, whose other lines are indented.
_RAISED = re.compile(r"[\w.]+(Error|Exception)\b")


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
        make_hook: Callable[[str, str], SparkHook],
        environment: Mapping[str, str],
        secret_properties: Mapping[str, str],
        *,
        is_local: bool = False,
    ) -> None:
        self._secret_properties = secret_properties
        self._error: Exception | None = None
        self._connection: socket.socket | None = None
        with ExitStack() as stack:
            directory = stack.enter_context(_job_directory())
            application, package = write_application(directory)
            path = str(directory / _SOCKET)
            self._listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._listener.bind(path)
            self._listener.listen(1)
            # Readable from the end of spark-submit on.
            self._ended, self._runs = map(stack.enter_context, socket.socketpair())
            if is_local:
                # For Python workers, whose daemon is a module of the package.
                python_path = [str(package), environment.get("PYTHONPATH", "")]
                environment = {**environment, "PYTHONPATH": os.pathsep.join(filter(None, python_path))}
            self._hook = make_hook(str(package), path)
            self._hook.folded.mark = mark_of(path)
            self._resources = stack.pop_all()
        # What is logged there belongs to the same task.
        work = (self._submit, str(application), environment)
        self._thread = Thread(target=copy_context().run, args=work, name="spark-submit", daemon=True)

    def stage(self, job: StageJob) -> None:
        """Stage a job.

        :raises ApplicationEndedError: it staged other jobs, and ended before it took this one
        :raises Exception: the job failed; the staging directory may say why
        """
        self._hook.folded.begin_job()
        try:
            answer = self._outcome(job)
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
        if answer is Answer.FAILED:
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

    def _submit(self, application: str, environment: Mapping[str, str]) -> None:
        try:
            with self._hook.folded.apart():
                # What a library prints need not be UTF-8.
                self._hook.submit(application, env=environment, errors="replace")
        except Exception as error:
            # It is raised where a job waits for it.
            self._error = error
            # Where nobody reads what it prints any more, it would wait for that.
            self._hook.on_kill()
        finally:
            self._hook.close()
            self._runs.close()

    def _outcome(self, job: StageJob) -> Answer:
        """Have a job staged, and return what became of it."""
        is_first = self._connection is None
        if self._connection is None:
            self._connection = self._connect(job)
            self._send(json.dumps(dict(self._secret_properties)))
        # It sends nothing by itself, so that only its end can be read.
        elif wait([self._connection, self._ended], timeout=0):
            raise ApplicationEndedError
        self._send(job.to_text())
        if self._answer() is not Answer.BEGUN:
            if not is_first:
                raise ApplicationEndedError
            self._raise_end(job)
        return self._answer() or self._raise_end(job)

    def _connect(self, job: StageJob) -> socket.socket:
        """Start the application, and wait until it connects."""
        self._thread.start()
        if self._listener not in wait([self._listener, self._ended]):
            self._raise_end(job)
        connection = self._resources.enter_context(self._listener.accept()[0])
        # No other may connect.
        self._listener.close()
        return connection

    def _send(self, line: str) -> None:
        assert self._connection is not None
        # If the application is gone already, it gives no answer either.
        with suppress(ConnectionError):
            self._connection.sendall(f"{line}\n".encode())

    def _answer(self) -> Answer | None:
        """Wait for an answer; return None where the application has ended."""
        assert self._connection is not None
        if self._connection in wait([self._connection, self._ended]):
            with suppress(ConnectionError):
                if answer := self._connection.recv(1):
                    return Answer(answer)
        return None

    def _raise_end(self, job: StageJob) -> NoReturn:
        self._join()
        raise self._error or RuntimeError(f"spark-submit exited before batch {job.batch_id} was staged")


def _job_directory() -> AbstractContextManager[Path]:
    """Create a directory that only its owner can enter, and whose path leaves room for the name of a socket.

    :raises ConfigurationError: there is none
    """
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) + len(f"/{DIRECTORY}01234567/{_SOCKET}") > _LONGEST_PATH:
        long, parent = parent, _SHORT_DIRECTORY
        if not os.access(parent, os.W_OK | os.X_OK):
            raise ConfigurationError(
                f"The path of the temporary directory {long} is too long for a socket, and this user cannot create "
                f"files in {parent}: set TMPDIR to a shorter path"
            )
    return temporary_directory(parent)


class SparkHook(SparkSubmitHook):
    """The provider's hook, and the only place that uses its internals: it has no public way to them."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.folded = CollapsedLog(getLogger(__name__), lambda: Bar() if is_watched() else None)
        self._is_killed = False

    @property
    def resolved(self) -> Mapping[str, Any]:
        """The connection as the hook understands it: `master`, `deploy_mode`, `spark_binary`."""
        resolved: Mapping[str, Any] = self._connection
        return resolved

    def set_properties(self, properties: Mapping[str, Any]) -> None:
        """Set Spark's properties. The constructor takes them too, but they depend on the master that it resolves."""
        self._conf = dict(properties)

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run spark-submit, and log what it prints as `CollapsedLog` does."""
        # The command line is long, and the first of Spark's lines.
        self.folded.fold()
        try:
            return super().submit(application, **kwargs)
        finally:
            self.folded.close()

    def on_kill(self) -> None:
        """Stop spark-submit, also if it is only about to be started."""
        self._is_killed = True
        super().on_kill()

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        # From here on there is a process.
        if self._is_killed:
            super().on_kill()
        super()._process_spark_submit_log(self.folded.others(itr))

    def close(self) -> None:
        """Wait until spark-submit has exited, and close its pipe, which the hook leaves to the garbage collector."""
        if self._submit_sp is not None:
            self._submit_sp.wait()
            self._submit_sp.stdout.close()


class CollapsedLog:
    """Folds Spark's lines, the command line of spark-submit first.

    One thread logs the lines; the thread that the jobs come from waits for the end of each.

    :param log: gets the package's lines, and the marks of groups
    :param make_bar: makes, for each job, what shows progress in place of lines; returns None where nobody looks at a
        terminal
    :ivar mark: of the lines of this package, see `mark_of`
    """

    mark = ""

    def __init__(self, log: Logger, make_bar: Callable[[], Display | None] = lambda: None) -> None:
        self._log = log
        self._make_bar = make_bar
        self._bar: Display | None = None
        self._is_open = self._is_closed = False
        self._has_begun = False
        self._lock = RLock()
        self._job_ended = Event()

    def begin_job(self) -> None:
        """Show the progress of another job from now on."""
        with self._lock:
            if not self._is_closed:
                self._job_ended.clear()
            self._bar = self._make_bar()

    def end_job(self) -> None:
        """Wait until the lines of the job are logged, end the group, and remove the bar."""
        # They are on their way when the job has ended, unless a transform has closed the standard output.
        self._job_ended.wait(_LATE_SECONDS)
        with self._lock:
            self.unfold()
            if self._bar is not None:
                self._bar.close()
                self._bar = None

    def fold(self) -> None:
        """Begin a group, if none is open."""
        with self._lock:
            if not self._is_open:
                self._log.info("::group::Spark")
                self._is_open = True

    def unfold(self) -> None:
        """End the group that is open."""
        with self._lock:
            if self._is_open:
                # The mark is a line of this package, too.
                self._is_open = False
                self._log.info("::endgroup::")

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Keep what other threads of this package log out of the groups, for the duration of the block."""
        package, handler = getLogger(_PACKAGE), _Unfold(self.unfold)
        package.addHandler(handler)
        try:
            yield
        finally:
            package.removeHandler(handler)

    def others(self, lines: Iterable[str]) -> Iterator[str]:
        """Log the package's lines, and yield the others, each inside or outside of a group as it should be logged."""
        is_indented = False
        for line in (printable(line, keep="\n\t") for line in lines):
            if line.strip() == end_of_job(self.mark):
                self._job_ended.set()
                continue
            if (own := MarkedLine.of(line.strip(), self.mark)) is not None:
                self._has_begun = True
                self._show(own)
                continue
            # A line that is indented belongs to the one before it. Before the application runs, all lines are Spark's.
            was_indented, is_indented = is_indented, not line[:1].strip()
            ends_traceback = was_indented and self._is_open and _RAISED.match(line) is not None
            if not is_indented:
                if self._has_begun and _SPARKS.match(line) is None and not ends_traceback:
                    self.unfold()
                else:
                    self.fold()
            yield line

    def close(self) -> None:
        """End the group; there are no more lines."""
        with self._lock:
            self.unfold()
            self._is_closed = True
            self._job_ended.set()

    def _show(self, own: MarkedLine) -> None:
        with self._lock:
            self.unfold()
            if self._bar is not None and own.progress is not None:
                self._bar.progress([own.text], *own.progress)
            elif self._bar is None or not own.text.startswith("  "):
                self._log.info("%s", own.text)


class _Unfold(Handler):
    """Ends the group before a line of another thread than the one that made this handler is logged.

    A logger calls its own handlers before those of its parents, which write.

    :param unfold: ends the group
    """

    def __init__(self, unfold: Callable[[], None]) -> None:
        super().__init__()
        self._unfold = unfold
        self._thread = get_ident()

    def handle(self, record: LogRecord) -> bool:
        # Without the lock of the superclass, with which two threads could wait for each other.
        if get_ident() != self._thread:
            self._unfold()
        return True
