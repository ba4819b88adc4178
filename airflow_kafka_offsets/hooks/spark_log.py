"""What a submitted application prints, in the task's log: the package's lines stand out, and Spark's are folded into groups.

Airflow's log view folds what is between `::group::` and `::endgroup::`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from logging import Logger

from airflow_kafka_offsets.spark.display import Display, MarkedLine

_TITLE = "Spark"

# Lines of log4j, of spark-submit and of Java's stack traces. What a transform prints looks different.
_SPARKS = re.compile(
    r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (TRACE|DEBUG|INFO|WARN|ERROR|FATAL) |\[Stage \d|:: |Caused by: |Suppressed: |\.\.\. \d+ "
    r"|(WARNING|Using|Setting|To adjust|Picked up|Warning)[: ]|(java|javax|scala|org\.apache|py4j)\.[\w.$]+(:|$)"
)


class FoldedLog:
    """Folds Spark's lines, the command line of spark-submit first.

    :param log: gets the package's lines, and the marks of groups
    :param bar: shows progress in place of lines; None where nobody looks at a terminal
    """

    def __init__(self, log: Logger, bar: Display | None = None) -> None:
        self._log = log
        self._bar = bar
        self._is_open = False
        self._has_begun = False

    def fold(self) -> None:
        """Begin a group, if none is open."""
        if not self._is_open:
            self._log.info("::group::%s", _TITLE)
            self._is_open = True

    def unfold(self) -> None:
        """End the group that is open."""
        if self._is_open:
            self._log.info("::endgroup::")
            self._is_open = False

    def others(self, lines: Iterable[str]) -> Iterator[str]:
        """Log the package's lines, and yield the others, each inside or outside of a group as it should be logged."""
        for line in lines:
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
        """End the group, and remove the bar."""
        self.unfold()
        if self._bar is not None:
            self._bar.close()

    def _show(self, own: MarkedLine) -> None:
        self.unfold()
        if self._bar is not None and own.progress is not None:
            self._bar.progress([own.text], *own.progress)
        elif self._bar is None or not own.text.startswith("  "):
            self._log.info("%s", own.text)
