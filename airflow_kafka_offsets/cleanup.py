"""Staging directories that nobody needs any more. Nothing else is ever deleted."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from pyarrow import fs
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import staged
from airflow_kafka_offsets.ledger import OPEN_STATES, Tables
from airflow_kafka_offsets.spark.staging import StagingDirectory

log = logging.getLogger(__name__)


def clean_up(engine: Engine, tables: Tables, staging_dir: str | None, *, older_than: timedelta) -> list[str]:
    """Remove directories that closed batches left, and those that no batch names once they are old.

    A directory that an open batch of these state tables names always stays. One that nobody names here is that of an attempt
    that was followed by another, or of a batch in another database that shares the location: only its age tells.

    :param staging_dir: where batches are staged; None is the user's directory on this machine
    :param older_than: age of the newest file in a directory that no batch names
    :return: the URIs of the directories that were removed
    """
    root = staged.staging_root(staging_dir)
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
        staged.remove(directory)
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
        and (batch_id := staged.batch_of_directory(root, root.child_uri(info.base_name))) is not None
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
