"""The parameters of a Delta table, and how it is created."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
from deltalake.exceptions import DeltaError

from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.formats.row_columns import ORIGIN_COLUMNS
from airflow_kafka_offsets.formats.spark_ddl import parse_ddl
from airflow_kafka_offsets.sinks.delta.columns import can_partition, delta_schema, skipping_columns
from airflow_kafka_offsets.sinks.delta.snapshot import DeltaSnapshot
from airflow_kafka_offsets.writers.object_files import is_local, local_path

if TYPE_CHECKING:
    from airflow_kafka_offsets.sinks.delta.table import DeltaTable


def check_parameters(sink: DeltaTable) -> pa.Schema | None:
    """Check the parameters of a sink that need no table.

    :return: the declared columns
    :raises ConfigurationError: one is wrong
    """
    if not sink.uri or (is_local(sink.uri) and not local_path(sink.uri).startswith("/")):
        raise ConfigurationError(f"DeltaTable needs an absolute path or a URI; got uri={sink.uri!r}")
    if "@" in sink.uri.partition("://")[2].partition("/")[0]:
        raise ConfigurationError("uri must not hold credentials: it is stored in the history of batches")
    if sink.file_bytes <= 0:
        raise ConfigurationError(f"file_bytes must be positive; got file_bytes={sink.file_bytes!r}")
    return None if sink.columns is None else parse_ddl(sink.columns, binary=True)


def create(sink: DeltaTable, columns: pa.Schema) -> DeltaSnapshot:
    """Create the table, unless somebody else does at the same moment.

    :param columns: of the rows, or as they were declared
    :raises ConfigurationError: `partition_by` or `sort_by` names no column, or one that cannot be one
    :raises TargetError: it cannot be created
    """
    missing = [column for column in ORIGIN_COLUMNS if column.name not in columns.names] if sink.columns else []
    schema = pa.schema([*columns, *missing, pa.field(BATCH_ID, pa.int64())])
    for parameter, names in (("partition_by", sink.partition_by), ("sort_by", sink.sort_by)):
        if unknown := [name for name in names if name not in schema.names]:
            raise ConfigurationError(
                f"{parameter} names {', '.join(unknown)}, which the rows do not hold: {', '.join(schema.names)}"
            )
    if unfit := [name for name in sink.partition_by if not can_partition(schema.field(name).type)]:
        raise ConfigurationError(
            f"partition_by names {', '.join(unfit)}: a floating, binary or nested column cannot be one that the table is partitioned by"
        )
    # In a partition column an empty text is null.
    schema = pa.schema([each.with_nullable(True) if each.name in sink.partition_by else each for each in schema])
    properties = dict(sink.properties)
    if "delta.dataSkippingNumIndexedCols" not in properties and (chosen := skipping_columns(schema)):
        properties.setdefault("delta.dataSkippingStatsColumns", chosen)
    location = local_path(sink.uri) if is_local(sink.uri) else sink.uri
    try:
        deltalake.DeltaTable.create(
            location,
            delta_schema(schema),
            mode="ignore",
            partition_by=list(sink.partition_by),
            configuration=properties,
            storage_options=dict(sink.storage) or None,
        )
    except (DeltaError, OSError) as error:
        snapshot = sink.snapshot()
        if snapshot is None:
            raise TargetError(f"Table {sink.name!r} does not exist, and cannot be created: {error}") from error
        return snapshot
    snapshot = sink.snapshot()
    assert snapshot is not None
    return snapshot
