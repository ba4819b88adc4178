"""What reads and writes rows runs in Python workers without pandas, and functions of the user run in others, which have
it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_kafka_offsets.spark.dedicated_workers import map_in_own_workers

pytestmark = pytest.mark.server

COLUMNS = "has_pandas BOOLEAN, worker BIGINT"


def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        try:
            import pandas  # type: ignore[import-untyped]
        except ModuleNotFoundError:
            pandas = None
        yield pa.RecordBatch.from_pydict({"has_pandas": [pandas is not None], "worker": [os.getpid()]})


def test_they_never_share_a_worker_with_functions_of_the_user(spark: SparkSession) -> None:
    numbers = spark.range(1).repartition(1)
    before = dict(spark.sparkContext.environment)
    own, users = [], []
    for _ in range(2):
        own += map_in_own_workers(spark, numbers, look, COLUMNS).collect()
        users += numbers.mapInArrow(look, COLUMNS).collect()

    assert [row.has_pandas for row in own] == [False, False]
    assert [row.has_pandas for row in users] == [True, True]
    assert spark.sparkContext.environment == before


def test_a_function_of_pandas_works_between_those_that_read_and_write(spark: SparkSession) -> None:
    def double(frames: Iterator[object]) -> Iterator[object]:
        for frame in frames:
            yield frame * 2  # type: ignore[operator]

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"id": [value + 1 for value in batch.column("id").to_pylist()]})

    read = map_in_own_workers(spark, spark.range(3), add, "id BIGINT")
    doubled = read.mapInPandas(double, "id BIGINT")
    written = map_in_own_workers(spark, doubled, add, "id BIGINT")

    assert sorted(row.id for row in written.collect()) == [3, 5, 7]


def test_the_driver_imports_no_pandas_for_them() -> None:
    code = (
        "import sys\n"
        "from types import SimpleNamespace\n"
        "import pyspark.sql.pandas.functions as functions\n"
        "from airflow_kafka_offsets.spark.dedicated_workers import map_in_own_workers\n"
        "spark = SimpleNamespace(sparkContext=SimpleNamespace(environment={}))\n"
        "rows = SimpleNamespace(mapInArrow=lambda *_: functions.require_minimum_pandas_version())\n"
        "map_in_own_workers(spark, rows, None, '')\n"
        "print('pandas' in sys.modules, spark.sparkContext.environment)\n"
        "functions.require_minimum_pandas_version()\n"
        "print('pandas' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["False {}", "True"]
