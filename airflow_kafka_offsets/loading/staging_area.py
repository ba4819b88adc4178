"""Where staging directories are made, and which of them may be removed."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_hex

import sqlalchemy as sa
from pyarrow import fs
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.ledger.batch_rows import OPEN_STATES, Batch
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.staging.directory import StagingDirectory

log = logging.getLogger(__name__)


def clean_up(engine: Engine, tables: Tables, staging_dir: str | None, *, older_than: timedelta) -> list[str]:
    """Remove directories that closed batches left, and those that no batch names once they are old.

    A directory that an open batch of these state tables names always stays. One that nobody names here is that of an attempt
    that was followed by another, or of a batch in another database that shares the location: only its age tells.

    :param staging_dir: where batches are staged; None is the user's directory on this machine
    :param older_than: age of the newest file in a directory that no batch names
    :return: the URIs of the directories that were removed
    """
    root = staging_root(staging_dir)
    found = _directories(root)
    if not found:
        return []
    states = _states(engine, tables, {batch_id for batch_id, _ in found})
    now = datetime.now(UTC)
    removed: list[str] = []
    for _, directory in found:
        state = states.get(directory.uri)
        if state in OPEN_STATES or (state is None and now - _newest(directory, now) < older_than):
            continue
        log.info("Removing the staging directory %s: %s", directory.uri, state or "no batch names it, and it is old")
        remove_directory(directory)
        removed.append(directory.uri)
    return removed


def _directories(root: StagingDirectory) -> list[tuple[int, StagingDirectory]]:
    """The directories of attempts below a root, with the number of their batch."""
    try:
        infos = root.filesystem.get_file_info(fs.FileSelector(root.path, allow_not_found=True))
    except OSError as error:
        log.warning("The staging directories in %s cannot be listed: %s", root.uri, error)
        return []
    return [
        (batch_id, root.child(info.base_name))
        for info in infos
        if info.type == fs.FileType.Directory
        and (batch_id := batch_of_directory(root, root.child_uri(info.base_name))) is not None
    ]


def _states(engine: Engine, tables: Tables, batch_ids: set[int]) -> dict[str, str]:
    """The state of the batch that names a directory, by the directory's URI."""
    batches = tables.offset_batches.c
    query = sa.select(batches.staging_uri, batches.state).where(
        batches.batch_id.in_(batch_ids), batches.staging_uri.is_not(None)
    )
    with engine.connect() as conn:
        return {row.staging_uri: row.state for row in conn.execute(query)}


def _newest(directory: StagingDirectory, unknown: datetime) -> datetime:
    """When something in a directory was last written; `unknown` where the store does not tell."""
    try:
        infos = [
            directory.filesystem.get_file_info(directory.path),
            *directory.filesystem.get_file_info(fs.FileSelector(directory.path, allow_not_found=True)),
        ]
    except OSError as error:
        log.warning("The age of %s is not known: %s", directory.uri, error)
        return unknown
    return max((info.mtime for info in infos if info.mtime is not None), default=unknown)


# The names that `make_directory` gives. Directories of any other name are somebody else's.
_ATTEMPT = re.compile(r"batch-([0-9]+)-[0-9a-f]{32}")


def make_staging_directory(batch: Batch, staging_dir: str | None) -> StagingDirectory:
    """A new directory for one attempt, with a name that nobody can guess."""
    directory = staging_root(staging_dir).child(f"batch-{batch.batch_id}-{token_hex(16)}")
    directory.create()
    return directory


def staging_root(staging_dir: str | None) -> StagingDirectory:
    """Where the directories of attempts are made.

    :param staging_dir: None is a directory of the user's on this machine
    """
    return StagingDirectory(staging_dir or str(_own_directory()))


def batch_of_directory(root: StagingDirectory, uri: str) -> int | None:
    """Return the batch of which a directory below a root holds an attempt.

    :return: its id, or None for any directory that no attempt made there: such must never be deleted
    """
    name = uri.partition("?")[0].rpartition("/")[2]
    attempt = _ATTEMPT.fullmatch(name)
    return int(attempt.group(1)) if attempt is not None and root.child_uri(name) == uri else None


def remove_attempt(batch_id: int, uri: str, staging_dir: str | None) -> None:
    """Remove the directory of an attempt to stage a batch.

    Its URI may come from the state tables, which other users may be allowed to change: only a directory of this batch below the
    root of this load is deleted.

    :param staging_dir: where the load stages batches now
    """
    root = staging_root(staging_dir)
    if batch_of_directory(root, uri) != batch_id:
        log.warning(
            "The staging directory %s of batch %d is left as it is: it is not a directory of this batch in %s, where this load "
            "stages. A load with its staging_dir removes it after staging_retention",
            uri,
            batch_id,
            root.uri,
        )
        return
    remove_directory(StagingDirectory(uri))


def remove_directory(directory: StagingDirectory) -> None:
    """Remove a directory that no batch needs; log a warning where it cannot be removed now."""
    try:
        directory.remove()
    except OSError as error:
        log.warning("The staging directory %s could not be removed: %s", directory.uri, error)


def _own_directory() -> Path:
    """Return a directory below the system's temporary one that belongs to this user alone.

    :raises ConfigurationError: another user made it first
    """
    # By number: containers run with any uid, which need not have a name.
    directory = Path(tempfile.gettempdir()) / f"airflow-kafka-offsets-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022 or directory.is_symlink():
        raise ConfigurationError(
            f"The staging directory {directory} belongs to another user, or others may write to it; set staging_dir"
        )
    return directory
