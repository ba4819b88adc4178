"""Which files below the location of a table are of attempts to stage a batch, and are named by no snapshot."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.writers.object_files import ObjectFiles

_RANDOM_DIGITS = 32


def is_attempt(name: str, batch_id: int) -> bool:
    """Return whether a directory is of an attempt to stage a batch; see `loading.staging_area.create_directory`."""
    prefix, random = name[:-_RANDOM_DIGITS], name[-_RANDOM_DIGITS:]
    return prefix == f"batch-{batch_id}-" and set(random) <= set("0123456789abcdef") and len(random) == _RANDOM_DIGITS


def left_below(files: ObjectFiles, batch_id: int, before: datetime) -> set[str]:
    """Return the paths of the files that attempts to stage a batch wrote.

    :param before: only files that were last written before this
    """
    attempts = [name for name in files.directories() if is_attempt(name, batch_id)]
    found = (file for name in attempts for file in files.find(name))
    return {file.path for file in found if file.modified < before.timestamp()}


def remove_left(files: ObjectFiles, paths: set[str], named: Callable[[set[str]], set[str]]) -> int:
    """Remove files; return how many.

    :param named: returns which of some files a version of the table names: these stay
    :raises OSError: the storage does not answer
    """
    from obstore.exceptions import BaseError

    try:
        left = sorted(paths - named(paths)) if paths else []
        for path in left:
            files.remove(path)
    except BaseError as error:  # such as a user who may write files, and not delete them
        raise OSError(f"{type(error).__name__}: {shortened(str(error))}") from None
    return len(left)
