"""Records in a staging directory, for tasks that read them there instead of in Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.staging.arrow_files import ArrowFileWriter
from airflow_kafka_offsets.staging.directory import StagingDirectory

SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""The columns of records, as `kafka.reader.read` yields them with headers."""


def write_records(staging: StagingDirectory, index: int, records: Iterable[pa.RecordBatch]) -> None:
    """Write the records of a slice, with the columns of `SCHEMA`.

    :param index: of the slice
    """
    with ArrowFileWriter(staging, _name(index), SCHEMA) as writer:
        for batch in records:
            writer.write(batch)


def read_records(staging: StagingDirectory, slice_: Slice) -> Iterator[pa.RecordBatch]:
    """Yield the records of a slice."""
    with (
        staging.filesystem.open_input_file(staging.file(_name(slice_.index))) as stream,
        pa.ipc.open_file(stream) as reader,
    ):
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)


def _name(index: int) -> str:
    return f"records-{index}.arrow"
