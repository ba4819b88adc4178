"""The log of the task that submitted an application: the lines of this package stand out, and Spark's are folded into
groups. Airflow's log view folds what is between `::group::` and `::endgroup::`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from logging import Handler, Logger, LogRecord, getLogger
from threading import Event, RLock, get_ident

from airflow_kafka_offsets.escaping import printable
from airflow_kafka_offsets.spark.progress import Display, MarkedLine, end_of_job

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

    def end_job(self, *, is_printed: bool = True) -> None:
        """Wait until the lines of the job are logged, end the group, and remove the bar.

        :param is_printed: whether the lines are among those of Spark
        """
        # They are on their way when the job has ended, unless a transform has closed the standard output.
        if is_printed:
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
            if self.show_own(line.strip()):
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

    def show_own(self, line: str) -> bool:
        """Log a line if this package printed it; return whether it did."""
        if (own := MarkedLine.of(line, self.mark)) is None:
            return False
        self._has_begun = True
        self._show(own)
        return True

    def show_sent(self, text: str) -> None:
        """Log the lines that an application has sent; all others are in its own log."""
        for line in printable(text, keep="\n").splitlines():
            self.show_own(line)

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
