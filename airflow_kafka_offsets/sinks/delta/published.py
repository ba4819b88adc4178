"""What a commit to a Delta table says of the batch that it published, and how it is read back from the history."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from airflow_kafka_offsets.sinks.lake.file_table import PublicationResult
from airflow_kafka_offsets.sinks.table import Output

# What DESCRIBE HISTORY shows.
_METADATA = "userMetadata"
_KEY = "kafka_offsets"


class Published(NamedTuple):
    """A commit that published a batch.

    :param version: of the table
    """

    series: str
    batch_id: int
    group_id: str
    did: PublicationResult
    version: int


def commit_metadata(output: Output, did: PublicationResult) -> dict[str, str]:
    """Return what a commit says of itself."""
    ranges = [[read.topic, read.partition, read.start, read.end] for read in output.ranges]
    names = {"series": output.series, "batch": output.batch_id, "group": output.group_id}
    return {_METADATA: json.dumps({_KEY: {**names, "ranges": ranges, **did._asdict()}})}


def published_by(entry: dict[str, Any]) -> Published | None:
    """Return what a commit in the history of a table published; None where it is somebody else's."""
    try:
        plain = json.loads(entry[_METADATA])[_KEY]
        did = PublicationResult(plain["rows"], tuple(map(tuple, plain["removed"])), tuple(plain["columns"]))
        return Published(plain["series"], plain["batch"], plain["group"], did, entry["version"])
    except (KeyError, TypeError, ValueError):  # a text of somebody else's
        return None
