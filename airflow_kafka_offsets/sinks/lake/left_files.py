"""The files of attempts to stage a batch: checked before a commit adds them, and removed if none does."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TypeVar

from airflow_kafka_offsets.core.attempts import is_attempt
from airflow_kafka_offsets.core.text import first_few, shortened
from airflow_kafka_offsets.exceptions import StagedFileError
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.writers.object_files import ObjectFiles

Entry = TypeVar("Entry")

# An object store answers a request in tens of milliseconds, and many at once just as quickly.
_LOOKS_AT_ONCE = 32


def is_below(path: str, directory: str) -> bool:
    """Return whether a path is that of a file in a directory, or in one in it."""
    segments = path.removeprefix(f"{directory}/").split("/")
    return path.startswith(f"{directory}/") and {"", ".", ".."}.isdisjoint(segments)


def prove_files(
    table: str,
    files: Sequence[StagedFile],
    attempt: str,
    is_own: Callable[[str, str], bool],
    size: Callable[[str], int | None],
) -> None:
    """Check that files are those of an attempt, and there with the sizes that they were written with.

    :param table: its name, for messages
    :param is_own: returns whether a path is that of a file which an attempt may write
    :param size: returns the size of a file; None where there is none
    :raises StagedFileError: one is not
    """
    if foreign := [file.name for file in files if not attempt or not is_own(file.name, attempt)]:
        raise StagedFileError(
            f"The manifest of attempt {attempt!r} names files of table {table!r} that are not its own: "
            f"{first_few(foreign, most=3)}"
        )
    if len({file.name for file in files}) < len(files):
        raise StagedFileError(f"The manifest of attempt {attempt!r} names a file of table {table!r} twice")

    def fault(file: StagedFile) -> str | None:
        found = size(file.name)
        if found is None:
            return f"{file.name} is missing"
        return None if found == file.bytes else f"{file.name} has {found:,} bytes, and was written with {file.bytes:,}"

    with ThreadPoolExecutor(_LOOKS_AT_ONCE, thread_name_prefix="lake-files") as pool:
        if faults := list(filter(None, pool.map(fault, files))):
            raise StagedFileError(f"Files of table {table!r}: {first_few(faults, most=3)}")


def read_entries(table: str, files: Sequence[StagedFile], read: Callable[[StagedFile], Entry]) -> list[Entry]:
    """Return the entries of the manifest for files, for a commit.

    :param table: its name, for messages
    :raises StagedFileError: the manifest is not valid
    """
    try:
        return [read(file) for file in files]
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError, struct.error) as error:
        raise StagedFileError(
            f"The manifest of files of table {table!r} cannot be read: {type(error).__name__}"
        ) from error


def left_below(
    files: ObjectFiles, batch_id: int, installation: str, before: datetime | None = None, directory: str = ""
) -> set[str]:
    """Return the paths of the files that attempts to stage a batch wrote.

    :param installation: the state tables with the batch
    :param before: only files that were last written before this
    :param directory: with the directories of attempts
    """
    below = files.directories(directory)
    attempts = [path for path in below if is_attempt(path.rpartition("/")[2], installation, batch_id)]
    found = (file for path in attempts for file in files.find(path))
    old = (file.path for file in found if before is None or file.modified < before.timestamp())
    return set(filter(files.is_inside, old))


def remove_left(files: ObjectFiles, paths: set[str]) -> int:
    """Remove files; return how many.

    :raises OSError: the storage does not answer
    """
    from obstore.exceptions import BaseError

    try:
        for path in sorted(paths):
            files.remove(path)
    except BaseError as error:  # such as a user who may write files, and not delete them
        raise OSError(f"{type(error).__name__}: {shortened(str(error))}") from None
    return len(paths)
