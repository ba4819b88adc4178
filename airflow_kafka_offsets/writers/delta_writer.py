"""Final data files of a Delta table, and the actions that add them to its log."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_kafka_offsets.writers.data_files import DataFile
from airflow_kafka_offsets.writers.statistics import delta_statistics, delta_value
from airflow_kafka_offsets.writers.table_writer import TableWriter


@dataclass(frozen=True)
class DeltaWriter(TableWriter):
    """Write the rows of a Spark partition into the location of a Delta table."""

    kind: ClassVar[str] = "delta"

    def path(self, partition: Mapping[str, Any]) -> str:
        """Return the path of a new file."""
        return new_path(self.directory)

    def plain(self, file: DataFile) -> dict[str, Any]:
        """Return the fields of the action that adds a file."""
        return add_action(file)


def new_path(directory: str) -> str:
    """Return the path of a new file in a directory of a table; nothing in it has to be encoded in the log."""
    return f"{directory}/part-{uuid.uuid4().hex}.parquet"


def add_action(file: DataFile) -> dict[str, Any]:
    """Return the fields of the action that adds a file, for deltalake's `AddAction`."""
    return {
        "path": file.path,
        "size": file.bytes,
        "partition_values": {name: delta_value(value) for name, value in file.partition.items()},
        "modification_time": int(time.time() * 1000),
        "data_change": True,
        "stats": delta_statistics(file.rows, file.ranges),
    }
