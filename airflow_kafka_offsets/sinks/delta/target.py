"""The commit of a batch to a Delta table.

delta-rs would rebase a commit onto those of others, and lose a removal there: a file that OPTIMIZE has replaced
meanwhile is "removed" without effect, and its rows stay. A commit here is for the next version of the table, or fails.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.schema import Field
from deltalake.transaction import AddAction, RemoveAction

from airflow_kafka_offsets.sinks.delta.columns import delta_schema
from airflow_kafka_offsets.sinks.delta.published import commit_metadata
from airflow_kafka_offsets.sinks.delta.snapshot import DeltaSnapshot
from airflow_kafka_offsets.sinks.lake.file_table import ActiveFile
from airflow_kafka_offsets.sinks.lake.target import LakeTarget
from airflow_kafka_offsets.writers.data_files import DataFile
from airflow_kafka_offsets.writers.delta_files import add_action, delta_path, delta_value


class DeltaTarget(LakeTarget[DeltaSnapshot]):
    """A Delta table, and what is done to it; see `Target`."""

    def grow(self, snapshot: DeltaSnapshot, lacking: Sequence[pa.Field]) -> DeltaSnapshot | None:
        """Add columns, in a commit of their own: if nothing follows it, they are there and null."""
        fields: list[Field] = list(delta_schema(pa.schema(lacking)).fields)
        try:
            snapshot.table.alter.add_columns(fields, commit_properties=CommitProperties(max_commit_retries=0))
        except CommitFailedError:
            return None
        return snapshot.refresh()

    def publish(self, snapshot: DeltaSnapshot, number: int) -> bool:
        """Commit as the next version after a snapshot; see `LakeTarget.publish`."""
        actions: list[AddAction | RemoveAction] = [AddAction(**add) for add in (*self.adds, *self.rewritten)]
        if self.removal is not None:
            actions += map(remove_action, (*self.removal.whole, *self.removal.mixed))
        properties = CommitProperties(
            max_commit_retries=0,
            app_transactions=[Transaction(self.output.series, number)],
            custom_metadata=commit_metadata(self.output, self.did),
        )
        try:
            snapshot.table.create_write_transaction(
                actions,
                mode="append",
                schema=snapshot.table.schema(),
                partition_by=snapshot.partition_by,
                commit_properties=properties,
            )
        except CommitFailedError:
            return False
        return True

    def path(self, directory: str, partition: Mapping[str, Any]) -> str:
        """Return the path of a new file."""
        return delta_path(directory, partition)

    def plain(self, file: DataFile) -> dict[str, Any]:
        """Return the fields of the action that adds a file."""
        return add_action(file)


def remove_action(file: ActiveFile) -> RemoveAction:
    """Return the action that removes a file from the log. Like `AddAction`, it URL-encodes the path."""
    values = {name: delta_value(value) for name, value in file.partition.items()}
    return RemoveAction(file.name, True, int(time.time() * 1000), file.bytes, values)
