"""Which files below the location of a table are of attempts to stage a batch, and are named by no snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime

from pyarrow import fs

_RANDOM_DIGITS = 32


def left_files(
    filesystem: fs.FileSystem, root: str, batch_id: int, named: Collection[str], before: datetime
) -> Iterator[str]:
    """Yield the paths of files that attempts to stage a batch left.

    Their directories are `batch-<id>-<32 hexadecimal digits>`, wherever they are below the first level of the root.

    :param root: the directory with the directories of attempts
    :param named: the paths of all files that a snapshot names
    :param before: only files that were last written before this
    """
    for directory in filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True)):
        if directory.type != fs.FileType.Directory or not is_attempt(directory.base_name, batch_id):
            continue
        for info in filesystem.get_file_info(fs.FileSelector(directory.path, recursive=True, allow_not_found=True)):
            if info.type != fs.FileType.File or info.path in named:
                continue
            # Stores that do not say when a file was written keep it.
            if info.mtime is not None and info.mtime < before:
                yield info.path


def is_attempt(name: str, batch_id: int) -> bool:
    """Return whether a directory is of an attempt to stage a batch; see `loading.staging_area.create_directory`."""
    prefix, random = name[:-_RANDOM_DIGITS], name[-_RANDOM_DIGITS:]
    return prefix == f"batch-{batch_id}-" and set(random) <= set("0123456789abcdef") and len(random) == _RANDOM_DIGITS


def remove_files(filesystem: fs.FileSystem, paths: Collection[str]) -> int:
    """Remove files; return how many there were."""
    for path in paths:
        filesystem.delete_file(path)
    return len(paths)
