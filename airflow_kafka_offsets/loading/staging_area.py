"""The directories below `Staging.dir`: create one for each attempt, and remove those that no batch needs any more.

The package `staging` knows the contents of a directory.
"""

from __future__ import annotations

import logging
import os
import random
import re
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import sqlalchemy as sa
from pyarrow import fs

from airflow_kafka_offsets.core.history import UNFINISHED_STATES
from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.escaping import printable
from airflow_kafka_offsets.exceptions import ConfigurationError, StagingError
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.staging.directory import StagingDirectory

log = logging.getLogger(__name__)

# The names of attempts, and of mailboxes (`spark.mailbox`). A directory of any other name is not this package's. No
# database has a longer number.
_ATTEMPT = re.compile(r"batch-([0-9]{1,18})-[0-9a-f]{32}")

_MAILBOX = re.compile(r"mailbox-[0-9a-f]{32}")

# So many directories one load looks at, each of which takes requests to the store.
_MOST_DIRECTORIES = 500


def staging_root(staging_dir: str | None) -> StagingDirectory:
    """Return the directory in which the directories of attempts are created.

    :param staging_dir: None is a directory below the system's temporary one that belongs to this user alone
    :raises ConfigurationError: that directory belongs to another user, or others may write to it
    :raises StagingError: the store of `staging_dir` cannot be opened
    """
    if staging_dir:
        try:
            return StagingDirectory(staging_dir)
        except (OSError, pa.ArrowException) as error:
            raise StagingError(
                f"Staging.dir={staging_dir!r} cannot be opened: {shortened(str(error))}. Correct it, or give the "
                "worker and Spark's executors access to the store"
            ) from error
    # By number: the user of a container need not have a name.
    directory = Path(tempfile.gettempdir()) / f"airflow-kafka-offsets-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    status = directory.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022 or directory.is_symlink():
        raise ConfigurationError(
            f"The staging directory {directory} belongs to another user, or others may write to it; set Staging.dir"
        )
    return StagingDirectory(str(directory))


def check_staging(staging_dir: str | None) -> None:
    """Check, before anything is created, that batches can be staged: that the store can be opened, and directories can
    be created in a local one, which is created if it is missing.

    :raises ConfigurationError: they cannot
    :raises StagingError: see `staging_root`
    """
    root = staging_root(staging_dir)
    if not root.is_local:
        return
    directory = Path(root.path)
    is_new = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise ConfigurationError(
            f"Staging.dir: {root.path!r} cannot be written: {error.strerror}. Name a directory in which the user of "
            "the worker may create directories"
        ) from error
    if is_new:
        log.info("Created the staging directory %s", root.uri)


def create_directory(attempt: str, staging_dir: str | None) -> StagingDirectory:
    """Create the directory of an attempt to stage a batch.

    :param attempt: its name
    """
    directory = staging_root(staging_dir).child(attempt)
    directory.create()
    return directory


def directory_of_attempt(batch_id: int, uri: str, staging_dir: str | None) -> StagingDirectory | None:
    """Return the directory of an attempt to stage a batch, which may be read and removed.

    The URI may come from the state tables, which other users may be able to change.

    :param staging_dir: where the load stages batches now
    :return: None, with a warning, if the URI is not a directory of this batch below the root of this load: it is not
        opened
    """
    root = staging_root(staging_dir)
    if _batch_of(root, uri) == batch_id:
        directory = StagingDirectory(uri)
        # Who may write the root may have put a link there, to the directory of another batch.
        if not (directory.is_local and Path(directory.path).is_symlink()):
            return directory
    log.warning(
        "The staging directory %s of batch %d is not removed: it is not a directory of this batch in %s, the staging "
        "directory of this load. A load with its staging directory removes it after Staging.retention",
        printable(uri),
        batch_id,
        root.uri,
    )
    return None


def remove_attempt(batch_id: int, uri: str, staging_dir: str | None) -> None:
    """Remove the directory of an attempt to stage a batch, see `directory_of_attempt`."""
    if (directory := directory_of_attempt(batch_id, uri, staging_dir)) is not None:
        _remove(directory)


def clean_up(ledger: Ledger, pipeline: Pipeline) -> None:
    """Remove directories of closed batches, and old directories that no batch names, mailboxes included.

    A directory that an open batch of these state tables names, or a prefetched one, always stays. A directory that no
    batch names here is that of a replaced attempt, or of a batch in another database that shares the location. Only its
    age tells which. If there are many directories, or one cannot be removed, others are left to later loads.

    :param pipeline: has the location of staged batches, and the age at which a directory is old, by its newest file
    """
    directories = _directories(staging_root(pipeline.staging.dir))
    if not directories:
        return
    # Any of them: those that cannot be removed do not keep a load from the others.
    directories = random.sample(directories, min(len(directories), _MOST_DIRECTORIES))
    batches = ledger.tables.offset_batches.c
    query = sa.select(batches.batch_id, batches.staging_uri, batches.state).where(
        batches.batch_id.in_({batch_id for batch_id, _ in directories if batch_id is not None}),
        batches.staging_uri.is_not(None),
    )
    with ledger.connect() as conn:
        states = {(row.batch_id, row.staging_uri): row.state for row in conn.execute(query)}
    now = datetime.now(UTC)
    for batch_id, directory in directories:
        state = states.get((batch_id, directory.uri))
        if state in UNFINISHED_STATES:
            continue
        if state is not None or now - _last_written(directory, now) >= pipeline.staging.retention:
            log.info(
                "Removing the staging directory %s: %s", directory.uri, state or "no batch names it, and it is old"
            )
            if not _remove(directory):
                return


def _directories(root: StagingDirectory) -> list[tuple[int | None, StagingDirectory]]:
    """Return the directories of attempts below a root, each with the id of its batch, and mailboxes, without one."""
    try:
        infos = root.filesystem.get_file_info(fs.FileSelector(root.path, allow_not_found=True))
    except OSError as error:
        log.warning("The staging directories in %s cannot be listed: %s", root.uri, error)
        return []
    names = [str(info.base_name) for info in infos if info.type == fs.FileType.Directory]
    batches = {name: _batch_of(root, root.child_uri(name)) for name in names}
    return [
        (batch_id, root.child(name))
        for name, batch_id in batches.items()
        if batch_id is not None or _MAILBOX.fullmatch(name)
    ]


def _batch_of(root: StagingDirectory, uri: str) -> int | None:
    """Return the id of the batch whose attempt a directory below a root holds.

    :return: None for any other directory: such a directory must never be removed
    """
    name = uri.partition("?")[0].rpartition("/")[2]
    attempt = _ATTEMPT.fullmatch(name)
    return int(attempt.group(1)) if attempt is not None and root.child_uri(name) == uri else None


def _last_written(directory: StagingDirectory, unknown: datetime) -> datetime:
    """Return when a directory or a file in it was last written; `unknown` where the store does not say."""
    try:
        infos = directory.filesystem.get_file_info(fs.FileSelector(directory.path, allow_not_found=True))
        infos.append(directory.filesystem.get_file_info(directory.path))
    except OSError as error:
        log.warning("The age of %s is not known: %s", directory.uri, error)
        return unknown
    return max((info.mtime for info in infos if info.mtime is not None), default=unknown)


def _remove(directory: StagingDirectory) -> bool:
    """Remove a directory; return False, with a warning, where it cannot be removed now."""
    try:
        directory.remove()
    except OSError as error:
        log.warning("The staging directory %s could not be removed: %s", directory.uri, error)
        return False
    return True
