"""pandas takes most of a second to import, and small batches do without it: in Spark's processes, and inside of the
commit.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_kafka_offsets.spark import driver
from airflow_kafka_offsets.spark.display import Lines
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.writers.arrow_writer import ArrowWriter
from airflow_kafka_offsets.writers.refused_rows import RefusedRows
from tests.spark.test_package import JOB

IMPORTED = "; import sys; print('pandas' in sys.modules)"


def printed(code: str) -> str:
    """By a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code + IMPORTED], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import pyarrow as pa; pa.array([1])", id="pyarrow makes an array"),
        pytest.param("import pyspark.testing", id="PySpark looks what there is"),
    ],
)
def test_an_application_without_a_transform_imports_none(code: str) -> None:
    refuse = "from airflow_kafka_offsets.spark.main import without_pandas; without_pandas(); "
    assert printed(code) == "True", "it would not be imported anyway"
    assert printed(refuse + code) == "False"


def test_a_session_for_a_transform_starts_without_it_and_the_transform_may_have_it() -> None:
    hidden = (
        "from airflow_kafka_offsets.spark.main import hidden_pandas; import sys\n"
        "with hidden_pandas():\n"
        "    import pyspark.testing\n"
        "print('pandas' in sys.modules); import pandas"
    )
    assert printed(hidden).splitlines() == ["False", "True"]


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


@pytest.mark.parametrize("shared", [True, False])
def test_only_workers_that_run_nothing_else_do_without_it(monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    hidden: list[bool] = []

    class Rows:
        """As DataFrames of Spark, but that a task runs at once."""

        def mapInArrow(self, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: str) -> None:
            assert list(task(iter(()))) == []

    spark: Any = SimpleNamespace(range=lambda *_: Rows())
    monkeypatch.setattr(driver, "without_pandas", lambda: hidden.append(True))
    monkeypatch.setattr(driver, "split_config", lambda job: job)
    monkeypatch.setattr(driver, "read_arrow", lambda *_: iter(()))
    monkeypatch.setattr(driver, "write_arrow", lambda *_: iter(()))
    monkeypatch.setattr(driver, "stage_files", lambda *_: None)

    driver.run(spark, JOB, Lines(), shared=shared)

    assert hidden == ([] if shared else [True])
