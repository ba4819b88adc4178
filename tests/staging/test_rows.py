"""Staged rows on their way into the target."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from airflow_kafka_offsets.exceptions import RecordError
from airflow_kafka_offsets.staging.arrow_files import ArrowFileWriter
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest
from airflow_kafka_offsets.staging.rows import StagedRows

_DAY_US = 86_400_000_000


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.date32(), -719_163),
        (pa.date32(), 2_932_897),
        (pa.timestamp("us", "UTC"), -719_162 * _DAY_US - 1),
        (pa.timestamp("us"), 2_932_897 * _DAY_US),
    ],
)
def test_a_transform_may_not_return_what_no_client_can_read(tmp_path: Path, kind: pa.DataType, value: int) -> None:
    number = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    rows = pa.RecordBatch.from_pydict(
        {
            "_kafka_topic": ["orders"] * 3,
            "_kafka_partition": pa.array([1] * 3, pa.int32()),
            "_kafka_offset": pa.array([7, 8, 9], pa.int64()),
            "at": pa.array([None, value, 0], number).cast(kind),
        }
    )
    staging = StagingDirectory(str(tmp_path))
    with ArrowFileWriter(staging, "part-1.arrow", rows.schema) as writer:
        writer.write(rows)
    staged = StagedRows(staging, Manifest(1, "f00d", (writer.file,), ()))

    with pytest.raises(RecordError, match=r"offset 8 .* column 'at': it lies outside of the years 1 to 9999"):
        list(staged.chunks(pa.schema([("at", kind)])))
