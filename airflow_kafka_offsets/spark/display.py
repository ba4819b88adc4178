"""How a running batch is shown: as lines, or as a bar where somebody looks at a terminal or a notebook.

A submitted application cannot know who looks. It prints lines with a mark, by which the task that submitted it knows
them among Spark's own (`hooks.spark_log`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from rich.console import Console

_MARKED = re.compile(r"\[kafka-offsets(?: (\d+)/(\d+))?\] (.*)")

END_OF_JOB = "[kafka-offsets end]"
"""The line after all lines of a job."""


class Display(Protocol):
    """Shows what a batch does."""

    def line(self, text: str) -> None:
        """Show a line."""

    def progress(self, lines: Sequence[str], records: int, planned: int) -> None:
        """Show how far the batch is.

        :param lines: the same in words: the batch, then slices that are being read
        :param records: how many are read
        """

    def close(self) -> None:
        """Leave the terminal as it was."""


class Lines:
    """Prints lines."""

    def line(self, text: str) -> None:
        self._print(text)

    def progress(self, lines: Sequence[str], records: int, planned: int) -> None:
        self._print("\n".join(lines))

    def close(self) -> None:
        """Do nothing."""

    def _print(self, text: str) -> None:
        # Standard output is what reaches the task's log.
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


class MarkedLines(Lines):
    """Prints lines with a mark, for the task that submitted the application."""

    def end(self) -> None:
        """Print that all lines of the job are printed."""
        self._print(END_OF_JOB)

    def line(self, text: str) -> None:
        self._print("\n".join(f"[kafka-offsets] {line}" for line in text.splitlines()))

    def progress(self, lines: Sequence[str], records: int, planned: int) -> None:
        first, *others = lines
        self._print(
            "\n".join([f"[kafka-offsets {records}/{planned}] {first}", *(f"[kafka-offsets] {o}" for o in others)])
        )


class MarkedLine(NamedTuple):
    """A line that `MarkedLines` printed.

    :param progress: the records that are read, and those that are planned
    """

    text: str
    progress: tuple[int, int] | None

    @classmethod
    def of(cls, line: str) -> MarkedLine | None:
        """Return the line without its mark; None where it has none."""
        if (match := _MARKED.match(line)) is None:
            return None
        return cls(match[3], (int(match[1]), int(match[2])) if match[1] else None)


class Bar:
    """Draws a bar of the records that are read; lines are printed above it."""

    def __init__(self, console: Console | None = None) -> None:
        # Airflow brings it. Spark's executors and a submitted application do without it.
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("Kafka records", total=None)
        self._bar.start()

    def line(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)

    def progress(self, lines: Sequence[str], records: int, planned: int) -> None:
        # The text is that of the batch, up to what the bar shows itself.
        self._bar.update(self._task, description=lines[0].partition(":")[0], completed=records, total=planned)

    def close(self) -> None:
        self._bar.stop()


def display_here() -> Display:
    """Return a bar where standard output is a terminal or a notebook, else lines."""
    return Bar() if is_watched() else Lines()


def is_watched() -> bool:
    """Return whether standard output is a terminal or a notebook."""
    shell = sys.modules.get("IPython")
    in_notebook = shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"
    return in_notebook or sys.stdout.isatty()
