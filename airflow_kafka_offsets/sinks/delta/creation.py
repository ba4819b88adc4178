"""How a Delta table is created."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
from deltalake.exceptions import DeltaError

from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.sinks.delta.columns import delta_schema, skipping_columns
from airflow_kafka_offsets.sinks.delta.snapshot import DeltaSnapshot
from airflow_kafka_offsets.sinks.lake.creation import created_columns
from airflow_kafka_offsets.writers.object_files import is_local, local_path

if TYPE_CHECKING:
    from airflow_kafka_offsets.sinks.delta.table import DeltaTable


def create(sink: DeltaTable, columns: pa.Schema) -> DeltaSnapshot:
    """Create the table, unless somebody else does at the same moment.

    :param columns: of the rows, or as they were declared
    :raises ConfigurationError: Delta cannot have these columns, or partitions
    :raises TargetError: it cannot be created
    """
    schema = created_columns(sink, columns)
    properties = dict(sink.properties)
    if "delta.dataSkippingNumIndexedCols" not in properties and (chosen := skipping_columns(schema)):
        properties.setdefault("delta.dataSkippingStatsColumns", chosen)
    location = local_path(sink.uri) if is_local(sink.uri) else sink.uri
    failure: Exception | None = None
    try:
        deltalake.DeltaTable.create(
            location,
            delta_schema(schema),
            mode="ignore",
            partition_by=list(sink.partition_by),
            configuration=properties,
            storage_options=dict(sink.storage) or None,
        )
    except (DeltaError, OSError) as error:  # perhaps because somebody else was first
        failure = error
    snapshot = sink.snapshot()
    if snapshot is None:
        raise TargetError(f"Table {sink.name!r} does not exist, and cannot be created: {failure}") from failure
    return snapshot
