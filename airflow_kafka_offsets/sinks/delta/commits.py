"""One commit to the log of a table, with the number of the batch that it publishes, and what it did.

delta-rs would rebase a commit onto those of others, and lose a removal there: a file that OPTIMIZE has replaced meanwhile is
"removed" without effect, and its rows stay. A commit here is for the next version of the table, or fails.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.sinks.delta.snapshot import DeltaSnapshot
from airflow_kafka_offsets.sinks.sink import Output, Removed

# What DESCRIBE HISTORY shows as userMetadata.
_METADATA = "userMetadata"
_KEY = "kafka_offsets"


class Did(NamedTuple):
    """What a commit did.

    :param columns: that were added before it
    """

    rows: int = 0
    removed: tuple[Removed, ...] = ()
    columns: tuple[str, ...] = ()


class Published(NamedTuple):
    """A commit that published a batch.

    :param version: of the table
    """

    series: str
    batch_id: int
    group_id: str
    did: Did
    version: int


def next_version() -> CommitProperties:
    """Return the properties of a commit that is for the next version of the table and for no other."""
    return CommitProperties(max_commit_retries=0)


def commit(
    snapshot: DeltaSnapshot, actions: Sequence[AddAction | RemoveAction], output: Output, number: int, did: Did
) -> bool:
    """Commit actions as the next version after a snapshot.

    :param number: the last one of the series from now on
    :return: False where nothing was committed, because somebody else committed first
    :raises DeltaError: it is not known whether it was committed; or OSError
    """
    metadata = {
        "series": output.series,
        "batch": output.batch_id,
        "group": output.group_id,
        "ranges": [[read.topic, read.partition, read.start, read.end] for read in output.ranges],
        "rows": did.rows,
        "removed": [[part.batch_id, *part.topic_partition, part.rows] for part in did.removed],
        "columns": did.columns,
    }
    properties = CommitProperties(
        max_commit_retries=0,
        app_transactions=[Transaction(output.series, number)],
        custom_metadata={_METADATA: json.dumps({_KEY: metadata})},
    )
    try:
        snapshot.table.create_write_transaction(
            list(actions),
            mode="append",
            schema=snapshot.table.schema(),
            partition_by=snapshot.partition_by,
            commit_properties=properties,
        )
    except CommitFailedError:
        return False
    return True


def find_published(snapshot: DeltaSnapshot, output: Output) -> Published | None:
    """Return the commit that published a batch; None where the log does not have it any more."""
    found = (published_by(entry) for entry in snapshot.history())
    return next(
        (each for each in found if each and (each.series, each.batch_id) == (output.series, output.batch_id)), None
    )


def published_by(entry: dict[str, Any]) -> Published | None:
    """Return what a commit in the history of a table published; None where it is somebody else's."""
    try:
        plain = json.loads(entry[_METADATA])[_KEY]
        removed = [Removed(batch, TopicPartition(*tp), rows) for batch, *tp, rows in plain["removed"]]
    except (KeyError, TypeError, ValueError):  # a text of somebody else's
        return None
    did = Did(plain["rows"], tuple(removed), tuple(plain["columns"]))
    return Published(plain["series"], plain["batch"], plain["group"], did, entry["version"])
