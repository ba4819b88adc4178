"""Names of the columns that say where a row came from: topic, partition, offset and timestamp of its record, and its
batch.
"""

from __future__ import annotations

TOPIC = "_kafka_topic"
PARTITION = "_kafka_partition"
OFFSET = "_kafka_offset"
TIMESTAMP = "_kafka_timestamp"

RECORD = (TOPIC, PARTITION, OFFSET)
"""The columns that name the record."""

BATCH_ID = "_batch_id"
"""The column that a commit adds: the batch a row belongs to."""

RESERVED_PREFIX = "_kafka_"
"""What the names of columns start with that this package adds to those of the format."""
