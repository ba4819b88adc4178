"""The manifest of a staged batch: which files count, and what reading each slice showed. Spark's driver writes it last."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class StagedFile:
    """A file that an accepted task attempt wrote.

    :param name: in the staging directory
    """

    name: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class SliceRead:
    """What reading a slice to its end showed.

    :param records: number of records, dead letters included; None if the slice was not read, because the transform's result
        does not depend on it
    :param first_timestamp_ms: timestamp of the oldest record, None if no record has one
    :param last_timestamp_ms: timestamp of the newest record, None if no record has one
    :param bytes: size of keys and values, as read
    :param dead_letters: number of records that could not be decoded
    :param dead_letters_file: name of the file with these records, None if there are none
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
    """The accepted files of a staged batch. The commit ignores files that the manifest does not name.

    :param fingerprint: of the job
    """

    batch_id: int
    fingerprint: str
    files: tuple[StagedFile, ...]
    reads: tuple[SliceRead, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        plain = json.loads(text)
        return cls(
            plain["batch_id"],
            plain["fingerprint"],
            tuple(StagedFile(**fields) for fields in plain["files"]),
            tuple(SliceRead(**fields) for fields in plain["reads"]),
        )
