"""The notes that the readers of slices leave in the staging directory, and the driver's view of them.

`progress-N.json` exists from the moment that slice N is started, and is overwritten while the slice is read. Each evaluation that
reads slice N to its end writes a `slice-N-*.json`.

The notes are not part of the rows: with a transform between reading and writing, Spark may evaluate the reader more than once, or
drop all rows.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import SliceRead

_PROGRESS = re.compile(r"progress-([0-9]+)\.json")

_SLICE = re.compile(r"slice-([0-9]+)-[0-9a-f]+\.json")


class SliceReport:
    """Writes the notes of a slice while it is read.

    :param interval: seconds between two notes of progress
    """

    def __init__(self, slice_: Slice, staging: StagingDirectory, interval: float) -> None:
        self._staging = staging
        self._interval = interval
        self._next_note = time.monotonic() + interval
        self._read = SliceRead(slice_.index, slice_.topic, slice_.partition, slice_.start, slice_.end, 0)
        # From here on the slice is started: a slice that is started and not finished is one that a transform stopped reading.
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

    def finish(self, dead_letters_file: str | None) -> None:
        """Write the note of a slice that was read to its end.

        :param dead_letters_file: complete, if there is one
        """
        write_slice(self._staging, replace(self._read, dead_letters_file=dead_letters_file))


def _milliseconds(known: int | None, microseconds: int | None) -> list[int]:
    """Return those of two timestamps that are known."""
    return [ms for ms in (known, None if microseconds is None else microseconds // 1000) if ms is not None]


class SlicesFound(NamedTuple):
    """The slices of a job as their notes show them, by index.

    :param started: all that were started, the finished ones included
    :param finished: those that were read to their end
    """

    started: frozenset[int]
    finished: Mapping[int, SliceRead]


class SliceNotes:
    """The notes in a staging directory. The note of a finished slice is read once, however often the directory is listed."""

    def __init__(self, staging: StagingDirectory) -> None:
        self._staging = staging
        self._finished: dict[str, SliceRead] = {}

    def find(self) -> SlicesFound:
        """Return which slices are started, and what reading the finished ones showed."""
        started: set[int] = set()
        newest: dict[int, tuple[int, str]] = {}
        for note in self._staging.find("", ".json"):
            if (match := _PROGRESS.fullmatch(note.name)) is not None:
                started.add(int(match[1]))
            elif (match := _SLICE.fullmatch(note.name)) is not None:
                # If a slice was read twice, the later evaluation counts.
                index = int(match[1])
                newest[index] = max(newest.get(index, (-1, "")), (note.written_ns, note.name))
        self._finished |= self._reads([name for _, name in newest.values() if name not in self._finished])
        return SlicesFound(
            frozenset(started | newest.keys()), {index: self._finished[name] for index, (_, name) in newest.items()}
        )

    def progress(self, indexes: frozenset[int]) -> dict[int, SliceRead]:
        """Return how far slices are that are being read."""
        reads = self._reads([_progress_name(index) for index in sorted(indexes)])
        return {read.index: read for read in reads.values()}

    def _reads(self, names: list[str]) -> dict[str, SliceRead]:
        return {name: SliceRead(**json.loads(text)) for name, text in self._staging.read_texts(names).items()}


def write_progress(staging: StagingDirectory, read: SliceRead) -> None:
    """Write how far a slice is. The name alone says that the slice is started, even if the note is incomplete."""
    staging.write_again(_progress_name(read.index), json.dumps(asdict(read)))


def write_slice(staging: StagingDirectory, read: SliceRead) -> None:
    """Write what reading a slice to its end showed."""
    # Each evaluation has a name of its own: HDFS cannot replace a file by renaming another.
    staging.write_text(f"slice-{read.index}-{uuid.uuid4().hex}.json", json.dumps(asdict(read)))


def _progress_name(index: int) -> str:
    return f"progress-{index}.json"
