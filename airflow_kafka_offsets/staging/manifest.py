"""The manifest: the accepted files of a staging directory, with their sizes and digests. No I/O."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from airflow_kafka_offsets.core.plain import checked
from airflow_kafka_offsets.formats.read_schemas import ReadSchema

MANIFEST = "manifest.json"

# Such a number of bytes of each of a hundred thousand slices is one that a database can store.
_MOST_BYTES = 1 << 46


@dataclass(frozen=True)
class StagedFile:
    """A file that an accepted task attempt wrote.

    :param name: the name in the staging directory, or the address of a final file
    :param rows: the number of rows, or of dead letters
    :param sha256: the digest of its bytes; empty for a final file
    :param data: the data of the sink's writer that the commit needs for a final file; empty for a file in the staging
        directory
    :param branch: the number of the branch whose rows it holds, in a fan-out
    """

    name: str
    rows: int
    bytes: int
    sha256: str
    data: str = ""
    branch: int | None = None

    @property
    def is_final(self) -> bool:
        """Whether it is a file of the target, and not in the staging directory."""
        return bool(self.data)


@dataclass(frozen=True)
class SliceRead:
    """The result of reading a slice to its end.

    :param records: number of records, dead letters included; None if the slice was not read, because the transform's
        result does not depend on it
    :param first_timestamp_ms: timestamp of the oldest record, None if no record has one
    :param last_timestamp_ms: timestamp of the newest record, None if no record has one
    :param bytes: size of keys and values, as read
    :param dead_letters: number of records that could not be decoded
    :param dead_letters_file: the file with these records, None if there are none
    :param schemas: of a registry that its records were read with; the manifest has them once for all slices
    :param nulls: the columns that have no value, if there are rows
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
    dead_letters_file: StagedFile | None = None
    schemas: tuple[ReadSchema, ...] = ()
    nulls: tuple[str, ...] = ()

    @classmethod
    def from_plain(cls, fields: Mapping[str, Any]) -> SliceRead:
        """Return what `asdict` made plain; see `checked` for errors."""
        file = fields["dead_letters_file"]
        made = checked(cls, {**fields, "dead_letters_file": None, "schemas": (), "nulls": tuple(fields["nulls"])})
        file, schemas = None if file is None else checked(StagedFile, file), _schemas(fields["schemas"])
        return replace(made, dead_letters_file=file, schemas=schemas)


@dataclass(frozen=True)
class Manifest:
    """The accepted files of a staged batch. The commit ignores files that the manifest does not name.

    In addition to the final files of a target, there may be staged ones, with the rows that it refuses.

    :param fingerprint: of the job
    :param schemas: of a registry that records were read with, with their texts
    :param columns: of the rows, where the files are final ones; see `staging.rows.schema_text`
    """

    batch_id: int
    fingerprint: str
    files: tuple[StagedFile, ...]
    reads: tuple[SliceRead, ...]
    schemas: tuple[ReadSchema, ...] = ()
    columns: str | None = None

    @property
    def row_files(self) -> tuple[StagedFile, ...]:
        """The files with the rows of the target."""
        return tuple(file for file in self.files if self.columns is None or file.is_final)

    @property
    def refused_files(self) -> tuple[StagedFile, ...]:
        """The files with rows that the tasks could not write into final files."""
        return tuple(file for file in self.files if self.columns is not None and not file.is_final)

    @property
    def nulls(self) -> list[str]:
        """The columns that have no value in any row."""
        found = [read.nulls for read in self.reads if (read.records or 0) > read.dead_letters]
        return sorted(set(found[0]).intersection(*found)) if found else []

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.row_files)

    def staged_files(self) -> Iterator[StagedFile]:
        """Yield the files in the staging directory: those of rows, then those of dead letters."""
        yield from (file for file in self.files if not file.is_final)
        yield from (read.dead_letters_file for read in self.reads if read.dead_letters_file is not None)

    def check(self) -> None:
        """Check that the manifest does not contradict itself.

        :raises ValueError: it names a file twice, or the numbers of a slice cannot be right
        """
        files = [*self.files, *(read.dead_letters_file for read in self.reads if read.dead_letters_file is not None)]
        if len({file.name for file in files}) < len(files):
            raise ValueError("it names a file twice")
        for read in self.reads:
            bad = 0 if read.dead_letters_file is None else read.dead_letters_file.rows
            offsets = read.end - read.start
            records = offsets if read.records is None else read.records
            if not 0 <= bad == read.dead_letters <= records <= offsets or not 0 <= read.bytes <= _MOST_BYTES:
                raise ValueError(f"the numbers of {read.topic}[{read.partition}] contradict each other")

    def to_json(self) -> str:
        plain = asdict(self)
        return json.dumps({"sha256": _digest(plain), **plain}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Return the manifest of a text that `to_json` wrote.

        Whoever may write the staging directory may have written it.

        :raises ValueError: the text is incomplete or was altered; a text of another kind also
            raises AttributeError, KeyError, TypeError or RecursionError
        """
        plain = json.loads(text)
        expected = plain["sha256"]
        del plain["sha256"]
        if _digest(plain) != expected:
            raise ValueError("it is not as it was written: its checksum does not match")
        files = tuple(checked(StagedFile, fields) for fields in plain["files"])
        reads, schemas = tuple(map(SliceRead.from_plain, plain["reads"])), _schemas(plain["schemas"])
        made = checked(cls, {**plain, "files": (), "reads": (), "schemas": ()})
        return replace(made, files=files, reads=reads, schemas=schemas)


def _schemas(plain: Iterable[Mapping[str, Any]]) -> tuple[ReadSchema, ...]:
    return tuple(checked(ReadSchema, fields) for fields in plain)


def _digest(plain: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()
