"""The parameters of a table of files below a URI, and the columns with which it is created."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_kafka_offsets.core.addresses import holds_credentials
from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS, parse_ddl
from airflow_kafka_offsets.writers.object_files import is_local, local_path
from airflow_kafka_offsets.writers.table_rows import file_columns

if TYPE_CHECKING:
    from airflow_kafka_offsets.sinks.lake.directory_sink import DirectorySink


def check_parameters(sink: DirectorySink) -> pa.Schema | None:
    """Check the parameters of a sink that need no table.

    :return: the declared columns
    :raises ConfigurationError: one is wrong
    """
    if not sink.uri or (is_local(sink.uri) and not local_path(sink.uri).startswith("/")):
        raise ConfigurationError(f"{type(sink).__name__} needs an absolute path or a URI; got uri={sink.uri!r}")
    if not is_local(sink.uri) and holds_credentials(sink.uri):
        raise ConfigurationError("uri must not hold credentials: it is stored in the history of batches")
    if sink.file_bytes <= 0:
        raise ConfigurationError(f"file_bytes must be positive; got file_bytes={sink.file_bytes!r}")
    for parameter, names in (("partition_by", sink.partition_by), ("sort_by", sink.sort_by)):
        if isinstance(names, str):
            raise ConfigurationError(f"{parameter} is a sequence of columns; got {parameter}={names!r}")
    if sink.columns is None:
        return None
    declared = parse_ddl(sink.columns, binary=True)
    return pa.schema([*declared, *(each for each in ORIGIN_COLUMNS if each.name not in declared.names)])


def created_columns(sink: DirectorySink, columns: pa.Schema) -> pa.Schema:
    """Return the columns of a table that is created.

    :param columns: of the rows, or as they were declared
    :raises ConfigurationError: `partition_by` or `sort_by` names no column, or one that cannot be one
    """
    schema = pa.schema([*columns, pa.field(BATCH_ID, pa.int64())])
    for parameter, names in (("partition_by", sink.partition_by), ("sort_by", sink.sort_by)):
        if unknown := [name for name in names if name not in schema.names]:
            raise ConfigurationError(
                f"{parameter} names {', '.join(unknown)}, which the rows do not hold: {', '.join(schema.names)}"
            )
    if unfit := [name for name in sink.partition_by if not can_partition(schema.field(name).type)]:
        raise ConfigurationError(
            f"partition_by names {', '.join(unfit)}: a floating, binary or nested column cannot be one that the table "
            "is partitioned by"
        )
    # In a partition column an empty text is null.
    fields = [each.with_nullable(True) if each.name in sink.partition_by else each for each in schema]
    return file_columns(pa.schema(fields))


def check_partitions(name: str, columns: pa.Schema, found: Sequence[str], wanted: Sequence[str]) -> None:
    """Check that a table has the partition columns that were asked for, and that this package can write them.

    :raises TargetError: it has others
    """
    if wanted and list(wanted) != list(found):
        raise TargetError(
            f"Table {name!r} is partitioned by {', '.join(found) or 'nothing'}, and not by {', '.join(wanted)}: leave "
            "out partition_by, which is for a table that is created, or create another table"
        )
    if unfit := [column for column in found if not can_partition(columns.field(column).type)]:
        raise TargetError(f"Table {name!r} is partitioned by {', '.join(unfit)}, whose types cannot be written exactly")


def can_partition(kind: pa.DataType) -> bool:
    """Return whether values of a type are written exactly, as texts, and read by all."""
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_floating(kind))
