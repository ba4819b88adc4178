"""Data files that failed attempts left, and that no snapshot names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from airflow_kafka_offsets.core.attempts import is_attempt
from airflow_kafka_offsets.writers.object_files import is_below, remove_below


def remove_leftovers(table: Table, batch_id: int, before: datetime, installation: str) -> int:
    """Remove the files that attempts to stage a batch left; see `Table.remove_leftovers`.

    Files are found where Iceberg puts them by default. Where `write.object-storage.enabled` spreads them, they stay.
    """
    io = table.io
    if not isinstance(io, PyArrowFileIO):
        return 0
    scheme, host, root = io.parse_location(table.location().rstrip("/"), table.io.properties)
    filesystem = io.fs_by_scheme(scheme, host)
    left = set(left_files(filesystem, root, before, lambda name: is_attempt(name, installation, batch_id)))
    # Of most batches there are none, and what snapshots name is looked up for those that are there.
    if left:
        left -= _named(_Version(table.metadata_location, tuple(io.properties.items()), table))
    for path in sorted(left):
        if isinstance(filesystem, fs.LocalFileSystem):
            remove_below(root, Path(path).relative_to(root))
        else:
            filesystem.delete_file(path)
    return len(left)


def left_files(filesystem: fs.FileSystem, root: str, before: datetime, is_own: Callable[[str], bool]) -> Iterator[str]:
    """Yield the paths of files that attempts to stage a batch wrote.

    :param root: the directory of the table, which has that of data files
    :param before: only files that were last written before this
    :param is_own: returns whether a directory is that of such an attempt, by its name
    """
    is_local = isinstance(filesystem, fs.LocalFileSystem)
    for directory in filesystem.get_file_info(fs.FileSelector(f"{root}/data", allow_not_found=True)):
        if directory.type != fs.FileType.Directory or not is_own(directory.base_name):
            continue
        for info in filesystem.get_file_info(fs.FileSelector(directory.path, recursive=True, allow_not_found=True)):
            # Stores that do not say when a file was written keep it.
            is_old = info.type == fs.FileType.File and info.mtime is not None and info.mtime < before
            if is_old and (not is_local or is_below(root, info.path)):
                yield info.path


@dataclass(frozen=True)
class _Version:
    """One version of a table.

    :param properties: of its storage
    """

    metadata_location: str
    properties: tuple[tuple[str, Any], ...]
    table: Table = field(compare=False)


@lru_cache(maxsize=1)
def _named(version: _Version) -> frozenset[str]:
    """Return the paths of the files that a snapshot names, whichever it is; a load asks for one batch after the
    other.
    """
    table = version.table
    manifests = {each.manifest_path: each for snapshot in table.snapshots() for each in snapshot.manifests(table.io)}
    return frozenset(
        PyArrowFileIO.parse_location(entry.data_file.file_path, table.io.properties)[2]
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io)
    )
