"""The progress of a running batch: the notes that tasks write into the staging directory, and their display as lines in
a log, or as a bar in a terminal or a notebook.

`progress-N.json` exists from the moment that slice N is started, and is overwritten while the slice is read. Each
evaluation that reads slice N to its end writes a `slice-N-*.json`. The notes are not part of the rows: with a transform
between reading and writing, Spark may evaluate the reader more than once, or drop all rows.

A submitted application does not know where it is displayed. It prints lines with a mark, by which the task that
submitted it finds them among Spark's own (`hooks.spark_application`).
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.chunks import portions
from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.formats.read_schemas import ReadSchema
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import SliceRead, StagedFile

if TYPE_CHECKING:
    from rich.console import Console

_MARKED = re.compile(r"\[kafka-offsets (\w+)(?: (\d{1,19})/(\d{1,19}))?\] (.*)")


def mark_of(path: str) -> str:
    """Return what marks the lines of an application, by the path of its socket, which is random: a value in an error of
    Spark must not be taken for one of them.
    """
    return hashlib.sha256(path.encode()).hexdigest()[:8]


def end_of_job(mark: str) -> str:
    """Return the line after all lines of a job."""
    return f"[kafka-offsets {mark} end]"


class Display:
    """Shows what a batch does: prints lines."""

    def line(self, text: str) -> None:
        """Show a line."""
        self._print(text)

    def progress(self, lines: Sequence[str], records: int, planned: int) -> None:
        """Show how far the batch is.

        :param lines: the same in words: the batch, then slices that are being read
        :param records: how many are read
        """
        self._print("\n".join(lines))

    def close(self) -> None:
        """Leave the terminal as it was."""

    def _print(self, text: str) -> None:
        # Standard output is what reaches the task's log.
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


class MarkedLines(Display):
    """Prints lines with a mark, for the task that submitted the application; see `mark_of`."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def end(self) -> None:
        """Print the mark for the end of a job's lines."""
        self._print(end_of_job(self._mark))

    def line(self, text: str) -> None:
        self._print("\n".join(f"[kafka-offsets {self._mark}] {line}" for line in text.splitlines()))

    def progress(self, lines: Sequence[str], records: int, planned: int) -> None:
        self._print(f"[kafka-offsets {self._mark} {records}/{planned}] {lines[0]}")
        for line in lines[1:]:
            self.line(line)


class MarkedLine(NamedTuple):
    """A line that `MarkedLines` printed.

    :param progress: the records that are read, and those that are planned
    """

    text: str
    progress: tuple[int, int] | None

    @classmethod
    def of(cls, line: str, mark: str) -> MarkedLine | None:
        """Return the line without its mark; None where it has none."""
        if (match := _MARKED.match(line)) is None or match[1] != mark:
            return None
        return cls(match[4], (int(match[2]), int(match[3])) if match[2] else None)


class Bar(Display):
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
    return Bar() if is_watched() else Display()


def is_watched() -> bool:
    """Return whether standard output is a terminal or a notebook."""
    shell = sys.modules.get("IPython")
    in_notebook = shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"
    return in_notebook or sys.stdout.isatty()


# A line for each slice helps if there are few. Of hundreds, the slowest are enough.
_MAX_SLICES = 8

# A batch that takes hours fills no log: after the first minutes, the pause between reports grows with its time.
_REPORTS, _LONGEST_PAUSE = 20, 60.0

# Notes hold the schemas of their records. Those of a batch are one JSON text, with up to twelve characters for one.
_NOTES_AT_ONCE, _MOST_CHARACTERS = 16, 16 << 20

# A note of a slice that is being read, or of one that was read to its end.
_NOTE = re.compile(r"(?:progress-([0-9]+)|slice-([0-9]+)-[0-9a-f]+)\.json")


class SliceReport:
    """Writes the notes of a slice while it is read.

    :param interval: seconds between two notes of progress
    """

    def __init__(self, slice_: Slice, staging: StagingDirectory, interval: float) -> None:
        self._staging = staging
        self._interval = interval
        self._next_note = time.monotonic() + interval
        self._read = SliceRead(slice_.index, slice_.topic, slice_.partition, slice_.start, slice_.end, 0)
        self._nulls: list[str] | None = None
        # From here on the slice is started: a slice that is started and not finished is one that a transform stopped
        # reading.
        write_progress(staging, self._read)

    def add(self, records: pa.RecordBatch, dead_letters: int) -> None:
        """Add a batch of records, and write a note if it is time for one.

        :param dead_letters: how many the slice has so far
        """
        read = self._read
        times = pc.min_max(records.column("timestamp").cast(pa.int64()))
        oldest, newest = times["min"].as_py(), times["max"].as_py()
        sizes = (pc.sum(pc.binary_length(records.column(name))).as_py() or 0 for name in ("key", "value"))
        self._read = replace(
            read,
            records=(read.records or 0) + records.num_rows,
            first_timestamp_ms=min(_milliseconds(read.first_timestamp_ms, oldest), default=None),
            last_timestamp_ms=max(_milliseconds(read.last_timestamp_ms, newest), default=None),
            bytes=read.bytes + sum(sizes),
            dead_letters=dead_letters,
        )
        if time.monotonic() >= self._next_note:
            self._next_note = time.monotonic() + self._interval
            write_progress(self._staging, self._read)

    def note_nulls(self, rows: pa.RecordBatch) -> None:
        """Note which columns still have no value."""
        names = rows.schema.names if self._nulls is None else self._nulls
        self._nulls = [name for name in names if rows.column(name).null_count == rows.num_rows]

    def finish(self, dead_letters_file: StagedFile | None, schemas: tuple[ReadSchema, ...] = ()) -> None:
        """Write the note of a slice that was read to its end.

        :param dead_letters_file: complete, if there is one
        :param schemas: of a registry that its records were read with
        """
        nulls = tuple(self._nulls or ())
        write_slice(
            self._staging, replace(self._read, dead_letters_file=dead_letters_file, schemas=schemas, nulls=nulls)
        )


def _milliseconds(known: int | None, microseconds: int | None) -> list[int]:
    """Return the known ones of two timestamps."""
    return [ms for ms in (known, None if microseconds is None else microseconds // 1000) if ms is not None]


class SlicesFound(NamedTuple):
    """The slices of a job as their notes show them, by index.

    :param started: all that were started, the finished ones included
    :param finished: those that were read to their end
    """

    started: frozenset[int]
    finished: Mapping[int, SliceRead]


class SliceNotes:
    """The notes in a staging directory. The note of a finished slice is read once, however often the directory is
    listed.
    """

    def __init__(self, staging: StagingDirectory) -> None:
        self._staging = staging
        self._finished: dict[str, SliceRead] = {}
        self._schemas: dict[tuple[str, int], ReadSchema] = {}
        self._characters = 0

    def find(self) -> SlicesFound:
        """Return the started slices, and the reads of the finished ones."""
        started: set[int] = set()
        newest: dict[int, tuple[int, str]] = {}
        for name, written_ns in self._staging.find().items():
            if (match := _NOTE.fullmatch(name)) is not None:
                index = int(match[1] or match[2])
                started.add(index)
                if match[2]:
                    # If a slice was read twice, the later evaluation counts.
                    newest[index] = max(newest.get(index, (-1, "")), (written_ns, name))
        new = [name for _, name in newest.values() if name not in self._finished]
        for some in portions(new, _NOTES_AT_ONCE):
            for name, read in self._reads(some).items():
                self._finished[name] = replace(read, schemas=tuple(map(self._once, read.schemas)))
        return SlicesFound(frozenset(started), {index: self._finished[name] for index, (_, name) in newest.items()})

    def progress(self, indexes: frozenset[int]) -> dict[int, SliceRead]:
        """Return how far slices are that are being read."""
        reads = self._reads([_progress_name(index) for index in sorted(indexes)])
        return {read.index: read for read in reads.values()}

    def _once(self, schema: ReadSchema) -> ReadSchema:
        """Return the same object for the same schema, of which each slice has its own.

        :raises StagingError: all of them together have too many characters
        """
        known = self._schemas.setdefault((schema.part, schema.schema_id), schema)
        if known is not schema and known == schema:
            return known
        self._characters += len(json.dumps(schema.text))
        if self._characters > _MOST_CHARACTERS:
            raise StagingError(
                f"The schemas that the records of the batch name have more than {_MOST_CHARACTERS:,} characters "
                "together. Abandon the batch, and load smaller ones, with Limits(max_records=…)"
            )
        return schema

    def _reads(self, names: Sequence[str]) -> dict[str, SliceRead]:
        return {name: SliceRead.from_plain(json.loads(text)) for name, text in self._staging.read_texts(names).items()}


def write_progress(staging: StagingDirectory, read: SliceRead) -> None:
    """Write how far a slice is. The name alone says that the slice is started, even if the note is incomplete."""
    staging.write_again(_progress_name(read.index), json.dumps(asdict(read)))


def write_slice(staging: StagingDirectory, read: SliceRead) -> None:
    """Write the result of reading a slice to its end."""
    # Each evaluation has a unique name: HDFS cannot replace a file by renaming another.
    staging.write_text(f"slice-{read.index}-{uuid.uuid4().hex}.json", json.dumps(asdict(read)))


def _progress_name(index: int) -> str:
    return f"progress-{index}.json"


class Progress:
    """Shows how many of the planned records are read, in total and for each slice that is being read."""

    def __init__(self, job: StageJob, notes: SliceNotes, display: Display | None = None) -> None:
        self._display = display if display is not None else Display()
        self._job = job
        self._notes = notes
        self._started = time.monotonic()
        self._is_complete = False

    @contextmanager
    def printed(self) -> Iterator[None]:
        """Print progress regularly, in a thread, until the end of the block, and once more if the block succeeds."""
        stop = threading.Event()

        def report() -> None:
            while not stop.wait(self._pause()):
                self.report()

        thread = threading.Thread(target=report, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if not self._is_complete:
            self.report()

    def _pause(self) -> float:
        """Return the seconds until the next report: the longer the batch takes, the rarer are lines in the log."""
        elapsed = time.monotonic() - self._started
        return max(self._job.progress_interval, min(elapsed / _REPORTS, _LONGEST_PAUSE))

    def report(self) -> None:
        """Print how far the slices are, from the notes that their readers leave."""
        try:
            found = self._notes.find()
            reading = self._notes.progress(found.started - found.finished.keys())
        except (OSError, ValueError) as error:
            # This is only a display. A store that fails now fails the batch where it matters.
            self._display.line(f"Progress is not known: {error}")
            return
        job, reads = self._job, [*found.finished.values(), *reading.values()]
        records = sum(read.records or 0 for read in reads)
        dead_letters = sum(read.dead_letters for read in reads)
        seconds = time.monotonic() - self._started
        bad = f", {count(dead_letters, 'dead letter')}" if dead_letters else ""
        lines = [
            f"Batch {job.batch_id}: read {records:,} records of {job.offsets:,} planned ({records / job.offsets:.0%}), "
            f"{len(found.finished)} of {count(len(job.slices), 'slice')} finished, {records / seconds:,.0f} records/s"
            f"{bad}"
        ]
        slowest = sorted(reading.values(), key=lambda read: read.records or 0)
        lines += [
            f"  slice {read.index}: {read.topic}[{read.partition}] {read.start}..{read.end}, "
            f"{read.records:,} records of {read.end - read.start:,} planned"
            for read in slowest[:_MAX_SLICES]
        ]
        if len(slowest) > _MAX_SLICES:
            lines.append(
                f"  and {count(len(slowest) - _MAX_SLICES, 'more slice that is', 'more slices that are')} further"
            )
        self._display.progress(lines, records, job.offsets)
        self._is_complete = len(found.finished) == len(job.slices)
