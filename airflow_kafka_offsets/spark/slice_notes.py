"""What the readers of slices leave in the staging directory: how far each is, and what it has read to its end.

`progress-N.json` is there from the moment slice N is begun, and is written again while it is read. `slice-N-*.json` is written once
by each evaluation that reads slice N to its end.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import SliceRead

_PROGRESS = re.compile(r"progress-([0-9]+)\.json")

_SLICE = re.compile(r"slice-([0-9]+)-[0-9a-f]+\.json")


@dataclass(frozen=True, slots=True)
class SlicesFound:
    """The slices of a job as their notes show them, by index.

    :param begun: those that were begun, also where they are finished
    :param finished: those that were read to their end
    """

    begun: frozenset[int]
    finished: Mapping[int, SliceRead]


class SliceNotes:
    """The notes of a staging directory. A note of a finished slice is opened once, however often the directory is looked at."""

    def __init__(self, staging: StagingDirectory) -> None:
        self._staging = staging
        self._opened: dict[str, SliceRead] = {}

    def find(self) -> SlicesFound:
        """Return which slices are begun, and what those that are finished have read."""
        begun: set[int] = set()
        newest: dict[int, tuple[int, str]] = {}
        for note in self._staging.find("", ".json"):
            if (matched := _PROGRESS.fullmatch(note.name)) is not None:
                begun.add(int(matched[1]))
            elif (matched := _SLICE.fullmatch(note.name)) is not None:
                # Of a slice that was read twice, the later evaluation counts.
                index = int(matched[1])
                newest[index] = max(newest.get(index, (-1, "")), (note.written_ns, note.name))
        unread = [name for _, name in newest.values() if name not in self._opened]
        for name, text in self._staging.read_texts(unread).items():
            self._opened[name] = SliceRead(**json.loads(text))
        return SlicesFound(
            frozenset(begun | newest.keys()), {index: self._opened[name] for index, (_, name) in newest.items()}
        )

    def progress(self, indexes: frozenset[int]) -> dict[int, SliceRead]:
        """Return how far slices are that are being read."""
        texts = self._staging.read_texts([_progress(index) for index in sorted(indexes)])
        reads = [SliceRead(**json.loads(text)) for text in texts.values()]
        return {read.index: read for read in reads}


def write_progress(staging: StagingDirectory, read: SliceRead) -> None:
    """Leave how far a slice is. That it is begun is in the name, so that a note that is half written says it too."""
    staging.write_again(_progress(read.index), json.dumps(asdict(read)))


def write_slice(staging: StagingDirectory, read: SliceRead) -> None:
    """Leave what a slice that was read to its end has shown."""
    # A name of its own for every evaluation: HDFS moves no file over another.
    staging.write_text(f"slice-{read.index}-{uuid.uuid4().hex}.json", json.dumps(asdict(read)))


def _progress(index: int) -> str:
    return f"progress-{index}.json"
