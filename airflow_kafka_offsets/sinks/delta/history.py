"""The published batches in the commits of a Delta table, and whether a RESTORE removed rows.

The positions and the application transactions of a table do not go back with a RESTORE.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any, NamedTuple

from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.sinks.lake.snapshot import Change, KnownRollbacks, PublicationResult, check_said
from airflow_kafka_offsets.writers.object_files import ObjectFiles

# What DESCRIBE HISTORY shows.
_METADATA = "userMetadata"
_KEY = "kafka_offsets"


# Commits that are read at the same time.
_AT_ONCE = 16


class Published(NamedTuple):
    """A commit that published a batch.

    :param version: of the table
    :param timestamp_ms: of the commit
    """

    series: str
    batch_id: int
    group_id: str
    result: PublicationResult
    version: int
    timestamp_ms: int


def commit_metadata(change: Change) -> dict[str, str]:
    """Return the metadata of a commit."""
    output = change.output
    ranges = [[read.topic, read.partition, read.start, read.end] for read in output.ranges]
    names = {"series": output.series, "batch": change.number, "group": output.group_id}
    return {_METADATA: json.dumps({_KEY: {**names, "ranges": ranges, **change.result._asdict()}})}


@dataclass(frozen=True)
class Log:
    """What the commits of a table say of themselves. deltalake's `history` refuses what some writers say, such as Spark
    of a table that it converted.

    :param version: of the table
    :param files: of the table
    """

    version: int
    files: ObjectFiles

    def commits(self) -> Iterator[dict[str, Any]]:
        """Yield the commits, the last one first, as far as the log has them."""
        # Of a group that never published, or long ago, all are read: one after another would take minutes from S3.
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for last in range(self.version, -1, -_AT_ONCE):
                versions = range(last, max(last - _AT_ONCE, -1), -1)
                for version, found in zip(versions, pool.map(self._commit, versions), strict=True):
                    if found is None:
                        return
                    stamp = found.get("timestamp")
                    yield {**found, "version": version, "timestamp": stamp if isinstance(stamp, int) else 0}

    def _commit(self, version: int) -> dict[str, Any] | None:
        """Return what a commit says; None where it was removed when the log was cleaned up."""
        try:
            with self.files.open(f"_delta_log/{version:020}.json") as file:
                return _commit_info(file.read())
        except FileNotFoundError:
            return None


def _commit_info(text: bytes) -> dict[str, Any]:
    for line in text.splitlines():
        if b'"commitInfo"' not in line:
            continue
        try:
            found = json.loads(line).get("commitInfo")
        except (AttributeError, RecursionError, ValueError):
            continue
        if isinstance(found, dict):
            return found
    return {}


def publications(log: Log) -> Iterator[Published]:
    """Yield the commits that published a batch, the last one first, as far as the log has them."""
    for entry in log.commits():
        try:
            plain = json.loads(entry[_METADATA])[_KEY]
            result = PublicationResult.parsed(plain["rows"], plain["removed"], plain["columns"])
            names = plain["series"], plain["batch"], plain["group"]
            check_said((plain["batch"],), (plain["series"], plain["group"]))
        except (KeyError, RecursionError, TypeError, ValueError):  # a text of another program's
            continue
        yield Published(*names, result, entry["version"], entry["timestamp"])


def last_published(log: Log, group_id: str, besides: Collection[int] = ()) -> Published | None:
    """Return the last commit that published a batch of a group; None where the log does not have it.

    :param besides: batches that are left out
    """
    of_group = (each for each in publications(log) if each.group_id == group_id)
    return next((each for each in of_group if each.batch_id not in besides), None)


def refuse_restored(name: str, log: Log, group_id: str, known: KnownRollbacks) -> None:
    """Raise if the table was restored to a version before the last publication of a group.

    After a later publication of the group the positions are right again.

    :raises TargetError: rows of the group may be gone
    """
    published = last_published(log, group_id, known.abandoned)
    if published is None:
        return
    later = list(takewhile(lambda entry: entry["version"] > published.version, log.commits()))
    restores = [entry for entry in later if entry.get("operation") == "RESTORE"]
    version = log.version
    for restore in restores:
        # Those between are of a state that an earlier one of the list has undone.
        if restore["version"] <= version:
            version = _restored_version(restore, published)
    if version >= published.version:
        return
    left = (each.batch_id for each in publications(log) if each.group_id == group_id and each.version <= version)
    if known.has(restores[0]["timestamp"], next(left, -1)):
        return
    raise TargetError(
        f"Table {name!r} was restored to a version before {published.version} by its version "
        f"{restores[0]['version']}, and batch {published.batch_id} of group {group_id!r} was committed to it as "
        f"version {published.version}: its rows are gone, but the positions are after them. Nothing was written. "
        f"Restore the table to version {restores[-1]['version'] - 1}, or rewind the group, with replace, to where its "
        "rows end now, abandon its open batch with the rewind, and load again. If no row is gone, rewind it "
        "to-current, without replace"
    )


def _restored_version(restore: dict[str, Any], published: Published) -> int:
    """Return the version to which a table was restored. For a timestamp, it is on the same side of each publication."""
    parameters = restore.get("operationParameters")
    if not isinstance(parameters, dict):
        return -1
    version = _parameter(parameters.get("version"))
    if isinstance(version, int):
        return version
    instant = _parameter(next((parameters[name] for name in ("timestamp", "datetime") if parameters.get(name)), None))
    if isinstance(instant, str):
        try:
            instant = datetime.fromisoformat(instant).astimezone().timestamp() * 1000
        except (ValueError, OverflowError):
            return -1
    is_after = isinstance(instant, (int, float)) and instant >= published.timestamp_ms
    return published.version if is_after else -1


def _parameter(value: Any) -> Any:
    """Return a parameter of an operation, which some writers write as JSON in a text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (RecursionError, ValueError):
        return value
