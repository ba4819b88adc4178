"""The columns of a decoded row: those of its format, then the origin columns, which say which record it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_kafka_offsets.core.origin import BATCH_ID, OFFSET, PARTITION, RESERVED_PREFIX, TIMESTAMP, TOPIC
from airflow_kafka_offsets.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow_kafka_offsets.formats.record_format import RecordFormat

ORIGIN_COLUMNS = pa.schema(
    [(TOPIC, pa.string()), (PARTITION, pa.int32()), (OFFSET, pa.int64()), (TIMESTAMP, pa.timestamp("us", "UTC"))]
)
"""The columns that say which record a row came from."""


def row_columns(record_format: RecordFormat) -> pa.Schema:
    """Return the columns of a decoded row.

    :raises ConfigurationError: a column of the format has a reserved name
    """
    columns = record_format.columns()
    for name in columns.names:
        if name.lower().startswith(RESERVED_PREFIX) or name.lower() == BATCH_ID:
            raise ConfigurationError(
                f"Column {name!r} cannot be declared: names that start with {RESERVED_PREFIX!r}, and {BATCH_ID!r}, "
                "are reserved for the columns that say where a row came from"
            )
    return pa.schema([*columns, *ORIGIN_COLUMNS])


def format_columns(columns: pa.Schema) -> pa.Schema:
    """Return the columns of the format among those of a decoded row."""
    return pa.schema(list(columns)[: -len(ORIGIN_COLUMNS)])


def add_origin(rows: pa.RecordBatch, records: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
    """Return decoded rows with the columns that say which record each came from.

    :param records: the records that the rows were decoded from, one a row
    """
    origin = [
        pa.repeat(pa.scalar(topic), records.num_rows),
        pa.repeat(pa.scalar(partition, pa.int32()), records.num_rows),
        records.column("offset"),
        records.column("timestamp"),
    ]
    return pa.RecordBatch.from_arrays([*rows.columns, *origin], schema=pa.schema([*rows.schema, *ORIGIN_COLUMNS]))
