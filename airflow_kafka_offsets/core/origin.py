"""The columns that say where a row came from: topic, partition, offset, timestamp and batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


BATCH_ID = "_batch_id"
"""The column that a commit adds: the batch a row belongs to."""

RESERVED_PREFIX = "_kafka_"


def audit_columns() -> pa.Schema:
    """The columns that say where a row came from; they follow the declared ones."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("_kafka_topic", pa.string()),
            pa.field("_kafka_partition", pa.int32()),
            pa.field("_kafka_offset", pa.int64()),
            pa.field("_kafka_timestamp", pa.timestamp("us", "UTC")),
        ]
    )
