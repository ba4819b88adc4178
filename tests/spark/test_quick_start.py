"""pandas takes most of a second to import, and the commit does without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.writers.row_writer import ArrowWriter
from airflow_kafka_offsets.writers.table_rows import RefusedRows

IMPORTED = "; import sys; print('pandas' in sys.modules)"


def printed(code: str) -> str:
    """By a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code + IMPORTED], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_staged_rows_are_read_without_it(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"id": pa.array([1, 2, 3], pa.int64())})
    staging = StagingDirectory(str(tmp_path))
    (file,) = ArrowWriter().write([rows], staging, {}, RefusedRows(staging))
    code = (
        "import pyarrow as pa; "
        "from airflow_kafka_offsets.staging.rows import StagedRows; "
        "from airflow_kafka_offsets.staging.directory import StagingDirectory; "
        "from airflow_kafka_offsets.staging.manifest import Manifest, StagedFile; "
        f"manifest = Manifest(7, 'x', ({file!r},), ()); "
        "columns = pa.schema([('id', pa.int64()), ('_batch_id', pa.int32())]); "
        f"(chunk,) = StagedRows(StagingDirectory({str(tmp_path)!r}), manifest).chunks(columns); "
        "print(chunk.rows.column(1).to_pylist(), chunk.rows.column(1).type)"
    )
    assert printed(code).splitlines() == ["[7, 7, 7] int32", "False"]
