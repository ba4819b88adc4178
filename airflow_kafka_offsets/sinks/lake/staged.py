"""The files that Spark's tasks wrote for a batch: proved before a commit adds them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import StagedFileError
from airflow_kafka_offsets.sinks.lake.table_format import LakeFile, Snapshot
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.writers.lake_writer import TableFormat as FileFormat

# An object store answers a request in tens of milliseconds, and many at once just as quickly.
_LOOKS_AT_ONCE = 32


def entries(snapshot: Snapshot, shape: FileFormat, files: Sequence[StagedFile]) -> list[tuple[Any, LakeFile]]:
    """Return files as a commit adds them, and as they are read.

    :raises StagedFileError: one was written for other columns or partitions; staging again helps
    """
    return [snapshot.entry(file, shape) for file in files]


def prove_files(snapshot: Snapshot, files: Sequence[StagedFile], attempt: str) -> None:
    """Check that files are those of an attempt, and there with the sizes that they were written with.

    :raises StagedFileError: one is not
    """
    if foreign := [file.name for file in files if not attempt or not snapshot.is_own(file.name, attempt)]:
        raise StagedFileError(
            f"The manifest of attempt {attempt!r} names files of table {snapshot.name!r} that are not its own: "
            f"{first_few(foreign, most=3)}"
        )

    def fault(file: StagedFile) -> str | None:
        size = snapshot.size(file.name)
        if size is None:
            return f"{file.name} is missing"
        return None if size == file.bytes else f"{file.name} has {size:,} bytes, and was written with {file.bytes:,}"

    with ThreadPoolExecutor(_LOOKS_AT_ONCE, thread_name_prefix="lake-files") as pool:
        if faults := list(filter(None, pool.map(fault, files))):
            raise StagedFileError(f"Files of table {snapshot.name!r}: {first_few(faults, most=3)}")
