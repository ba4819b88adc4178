"""The manifest of a staged batch: which files were accepted, and what reading the slices showed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class StagedFile:
    """A file that an accepted task attempt wrote.

    :param name: its name below the staging directory
    """

    name: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class SliceRead:
    """What reading a slice to its end showed.

    :param records: those that the batch loads, dead letters among them; None where the slice was not read, because the
        transform's result does not depend on it
    :param first_timestamp_ms: the oldest loaded record's timestamp, None where no record had one
    :param last_timestamp_ms: the newest record's
    :param bytes: of keys and values, as read
    :param dead_letters: how many records could not be decoded
    :param dead_letters_file: the file below the staging directory that holds them, None where there are none
    """

    index: int
    topic: str
    partition: int
    start: int
    end: int
    records: int | None
    first_timestamp_ms: int | None = None
    last_timestamp_ms: int | None = None
    bytes: int = 0
    dead_letters: int = 0
    dead_letters_file: str | None = None


@dataclass(frozen=True)
class Manifest:
    """The accepted files of a staged batch. Files that it does not name do not exist for the commit.

    :param fingerprint: the job's
    """

    batch_id: int
    fingerprint: str
    files: tuple[StagedFile, ...]
    reads: tuple[SliceRead, ...]

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.files)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        plain = json.loads(text)
        return cls(
            plain["batch_id"],
            plain["fingerprint"],
            from_dicts(StagedFile, plain["files"]),
            from_dicts(SliceRead, plain["reads"]),
        )


def from_dicts(kind: type[Any], items: Sequence[dict[str, Any]]) -> tuple[Any, ...]:
    """Build one object for each mapping of its fields."""
    return tuple(kind(**item) for item in items)
