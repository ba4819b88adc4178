"""The files of a Delta table's log, before delta-rs reads them.

A checkpoint may name sidecars, other files with a part of the list of the table's files. delta-rs reads them wherever
they are that the login of the storage reaches, and in a file system through links: then this would be a list of the
files of another table, with their statistics, which the next checkpoint has, too.

https://github.com/delta-io/delta/blob/master/PROTOCOL.md#checkpoints
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pyarrow as pa

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import DatabaseUnavailableError, TargetError
from airflow_kafka_offsets.sinks.lake.snapshot import open_parquet, rows_at_once
from airflow_kafka_offsets.writers.object_files import ObjectFiles

_LOG = "_delta_log"

_CHECKPOINT = re.compile(rf"{_LOG}/(\d+)\.checkpoint\..*", re.ASCII)

_WHOLE = re.compile(rf"{_LOG}/\d+\.checkpoint\.parquet", re.ASCII)
_PART = re.compile(rf"{_LOG}/\d+\.checkpoint\.\d+\.\d+\.parquet", re.ASCII)

# More than any writer writes.
_MOST_HINT_BYTES = 1 << 20


def refuse_foreign_lists(name: str, files: ObjectFiles) -> None:
    """Refuse a log that leads to files of other tables.

    :param name: of the table
    :raises TargetError: it has links to somewhere else, or checkpoints that name other files
    :raises DatabaseUnavailableError: it cannot be read
    """
    from obstore.exceptions import BaseError

    files.refuse_links(_LOG)
    try:
        for path in _checkpoints(files):
            if not (_WHOLE.fullmatch(path) or _PART.fullmatch(path)) or _has_sidecars(files, path):
                raise TargetError(
                    f"Table {name!r} is refused: its checkpoint {path!r} is of version 2 and may name further files, "
                    "which are not read here. Set the property delta.checkpointPolicy to 'classic', drop the feature "
                    "v2Checkpoint, and have the table's engine write a checkpoint"
                )
    except (BaseError, OSError) as error:  # another process may have cleaned the log up meanwhile
        reason = shortened(str(error).partition("\n")[0])  # without the stack of Rust
        raise _unreadable(name, f"{type(error).__name__}: {reason}") from None
    except (pa.ArrowException, ValueError) as error:
        raise _unreadable(name, f"a checkpoint is damaged: {type(error).__name__}") from None


def _unreadable(name: str, reason: str) -> DatabaseUnavailableError:
    return DatabaseUnavailableError(f"Table {name!r} cannot be read: {reason}. Nothing was written")


def _checkpoints(files: ObjectFiles) -> Iterator[str]:
    """Yield the paths of the checkpoints among which delta-rs chooses."""
    first = _hint(files)
    yield from (found := _newest(files, first))
    # Without one that is whole it looks for others.
    if first and not any(map(_WHOLE.fullmatch, found)):
        yield from _newest(files, 0)


def _newest(files: ObjectFiles, first: int) -> list[str]:
    """Return the paths of checkpoints down to the first one that is whole, which no older one can follow.

    :param first: the first version to look at
    """
    found: dict[int, list[str]] = {}
    for file in files.find(_LOG, after=f"{_LOG}/{first:020}"):
        if match := _CHECKPOINT.fullmatch(file.path):
            found.setdefault(int(match[1]), []).append(file.path)
    chosen: list[str] = []
    for version in sorted(found, reverse=True):
        chosen += found[version]
        if any(map(_WHOLE.fullmatch, found[version])):
            break
    return chosen


def _hint(files: ObjectFiles) -> int:
    """Return the version of the last checkpoint, as the log says; 0 where it does not."""
    try:
        with files.open(f"{_LOG}/_last_checkpoint") as file:
            version = json.loads(file.read(_MOST_HINT_BYTES))["version"]
    except (FileNotFoundError, KeyError, RecursionError, TypeError, ValueError):
        return 0
    return version if isinstance(version, int) and 0 <= version < 10**20 else 0


def _has_sidecars(files: ObjectFiles, path: str) -> bool:
    with files.open(path) as opened, open_parquet(opened) as parquet:
        names = [name for name in parquet.schema_arrow.names if name.lower() == "sidecar"]
        for number in range(parquet.num_row_groups) if names else ():
            group = parquet.metadata.row_group(number)
            for rows in parquet.iter_batches(rows_at_once(group.num_rows, group.total_byte_size), [number], names):
                if any(column.null_count < len(column) for column in rows.columns):
                    return True
    return False
