"""Files whose rows take much more memory than the file has bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from airflow_kafka_offsets.sinks.iceberg.private import _stored_rows
from airflow_kafka_offsets.sinks.lake.snapshot import read_parquet, rows_at_once
from airflow_kafka_offsets.writers.object_files import ObjectFiles

Reader = Callable[[Path, str], Iterator[pa.RecordBatch]]

_MIB = 1 << 20
_COLUMNS = pa.schema([("text", pa.string())])


def by_delta(directory: Path, name: str) -> Iterator[pa.RecordBatch]:
    return read_parquet(ObjectFiles(str(directory), {}), name, _COLUMNS, {})


def by_iceberg(directory: Path, name: str) -> Iterator[pa.RecordBatch]:
    with (directory / name).open("rb") as stream:
        yield from _stored_rows(ds.ParquetFileFormat().make_fragment(pa.PythonFile(stream)), _COLUMNS.names)


@pytest.mark.parametrize("read", [by_delta, by_iceberg])
@pytest.mark.parametrize("use_dictionary", [False, True])
def test_a_small_file_of_long_texts_is_read_in_parts(tmp_path: Path, read: Reader, use_dictionary: bool) -> None:
    group = pa.table({"text": pa.array(["x" * _MIB] * 16)})
    with pq.ParquetWriter(tmp_path / "a.parquet", _COLUMNS, compression="zstd", use_dictionary=use_dictionary) as file:
        for _ in range(32):
            file.write_table(group)
    del group
    assert (tmp_path / "a.parquet").stat().st_size < _MIB

    rows = most = 0
    before = pa.total_allocated_bytes()
    for batch in read(tmp_path, "a.parquet"):
        rows += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)

    assert rows == 512
    assert most < 200 * _MIB


def test_rows_of_usual_size_are_read_many_at_once() -> None:
    assert rows_at_once(1_000_000, 100_000_000) == 65_536
    assert rows_at_once(100, 1_000_000_000) == 6
    assert rows_at_once(1, 1 << 40) == 1
    assert rows_at_once(0, 0) == 1
