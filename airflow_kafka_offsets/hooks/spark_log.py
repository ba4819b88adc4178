"""What a submitted application prints, in the task's log: the package's lines stand out, and Spark's are folded into
groups.

Airflow's log view folds what is between `::group::` and `::endgroup::`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from logging import Handler, Logger, LogRecord, getLogger
from threading import Event, RLock, get_ident

from airflow_kafka_offsets.spark.display import END_OF_JOB, Display, MarkedLine

_TITLE = "Spark"

_PACKAGE = __name__.partition(".")[0]

_LATE_SECONDS = 5.0

# Lines of log4j, of spark-submit and of Java's stack traces. What a transform prints looks different.
_SPARKS = re.compile(
    r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (TRACE|DEBUG|INFO|WARN|ERROR|FATAL) |\[Stage \d|:: |Caused by: |Suppressed: "
    r"|\.\.\. \d+ "
    r"|(WARNING|Using|Setting|To adjust|Picked up|Warning)[: ]|(java|javax|scala|org\.apache|py4j)\.[\w.$]+(:|$)"
)


class CollapsedLog:
    """Folds Spark's lines, the command line of spark-submit first.

    One thread logs the lines; the thread that the jobs come from waits for the end of each.

    :param log: gets the package's lines, and the marks of groups
    :param make_bar: makes, for each job, what shows progress in place of lines; returns None where nobody looks at a
        terminal
    """

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
                self._log.info("::group::%s", _TITLE)
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
        for line in lines:
            if line.strip() == END_OF_JOB:
                self._job_ended.set()
                continue
            if (own := MarkedLine.of(line.strip())) is not None:
                self._has_begun = True
                self._show(own)
                continue
            # A line that is indented belongs to the one before it. Before the application runs, all lines are Spark's.
            if line[:1].strip():
                if self._has_begun and _SPARKS.match(line) is None:
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

    def createLock(self) -> None:  # noqa: N802
        # With a lock of its own here, two threads could wait for each other.
        self.lock = None

    def emit(self, record: LogRecord) -> None:
        if get_ident() != self._thread:
            self._unfold()
