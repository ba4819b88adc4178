"""Staged rows on their way into the target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_kafka_offsets.core.bisection import split_at_failures
from airflow_kafka_offsets.exceptions import RecordError
from airflow_kafka_offsets.staging import rows
from airflow_kafka_offsets.staging.arrow_files import ArrowFileWriter
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest, SliceRead
from airflow_kafka_offsets.staging.rows import RefusedRecords, StagedRows

_DAY_US = 86_400_000_000


def staged(path: Path, **column: pa.Array) -> StagedRows:
    """Rows of the offsets 7, 8 and 9, with a column."""
    origin = {
        "_kafka_topic": ["orders"] * 3,
        "_kafka_partition": pa.array([1] * 3, pa.int32()),
        "_kafka_offset": pa.array([7, 8, 9], pa.int64()),
    }
    batch = pa.RecordBatch.from_pydict(origin | column)
    staging = StagingDirectory(str(path))
    with ArrowFileWriter(staging, "part-1.arrow", batch.schema) as writer:
        writer.write(batch)
    return StagedRows(staging, Manifest(1, "f00d", (writer.file,), ()))


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
    at = pa.array([None, value, 0], number).cast(kind)

    with pytest.raises(RecordError, match=r"offset 8 .* column 'at': it lies outside of the years 1 to 9999"):
        list(staged(tmp_path, at=at).chunks(pa.schema([("at", kind)])))


@pytest.mark.parametrize(
    ("values", "kind", "types"),
    [
        (pa.array([1, 4711_000_000, 2]), pa.int32(), "BIGINT does not fit into INT"),
        (pa.array(["1", "4711x", "2"]), pa.int64(), "STRING does not fit into BIGINT"),
        (pa.array([1.5, 4711e300, 2]), pa.float32(), "DOUBLE does not fit into FLOAT"),
        (pa.array([1.0, 4711e30, 2]), pa.decimal128(9, 2), r"DOUBLE does not fit into DECIMAL\(9,2\)"),
    ],
)
def test_a_value_that_does_not_fit_is_not_shown(
    tmp_path: Path, values: pa.Array, kind: pa.DataType, types: str
) -> None:
    with pytest.raises(RecordError, match=f"offset 8 .* column 'x': a value of type {types}\\.") as refused:
        list(staged(tmp_path, x=values).chunks(pa.schema([("x", kind)])))
    assert "4711" not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_rows_are_refused_for_their_first_column_and_the_others_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 10_000
    columns = {
        name: pa.array([2**40 if row % 2_500 == at else row for row in range(number)])
        for at, name in ((0, "x"), (1, "y"))
    }
    origin = {
        "_kafka_topic": pa.repeat(pa.scalar("orders"), number),
        "_kafka_partition": pa.repeat(pa.scalar(1, pa.int32()), number),
        "_kafka_offset": pa.array(range(number)),
    }
    staging = StagingDirectory(str(tmp_path))
    batch = pa.RecordBatch.from_pydict(origin | columns)
    with ArrowFileWriter(staging, "part-1.arrow", batch.schema) as writer:
        writer.write(batch)
    read = SliceRead(0, "orders", 1, 0, number, number)
    staged_rows = StagedRows(staging, Manifest(1, "f00d", (writer.file,), ()), RefusedRecords(True, reads=[read]))
    tries: list[int] = []

    def noted(count: int, *arguments: Any) -> Iterator[Any]:
        tries.append(count)
        return split_at_failures(count, *arguments)

    monkeypatch.setattr(rows, "split_at_failures", noted)
    (chunk,) = staged_rows.chunks(pa.schema([("x", pa.int32()), ("y", pa.int32())]))

    assert chunk.rows.num_rows == number - 8
    assert tries == [number, number]
    reasons = {record.offset: reason[:10] for record, reason in staged_rows.refused.reasons.items()}
    assert reasons == {2_500 * each + at: f"column '{name}'" for each in range(4) for at, name in ((0, "x"), (1, "y"))}
