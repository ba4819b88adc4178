"""A load of this package into a lake table, or a table of the database, in a process of its own as a worker of Airflow
has it.

The task is JSON in the environment; what was measured is the last line of the output.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import sqlalchemy as sa

from airflow_kafka_offsets import DeltaTable, IcebergTable, Json, ParquetFiles, Pipeline, SqlTable, Staging
from airflow_kafka_offsets import load as load_batches
from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from airflow_kafka_offsets.sinks.sink import Sink
from benchmarks.datasets import COLUMNS

_COMMIT = "SELECT sum(extract(epoch FROM committed_at - staged_at)) FROM offset_batches"


def main() -> None:
    job = json.loads(os.environ["LAKE_LOAD"])
    engine = sa.create_engine(job["url"])
    pipeline = Pipeline(
        group_id="benchmark",
        topics=(job["topic"],),
        value_format=Json(COLUMNS),
        sink=_sink(job["format"], job["directory"]),
        staging=Staging(dir=f"{job['directory']}/staging", slice_offsets=job["slice_offsets"]),
    )
    launcher = SparkSubmitLauncher("spark_default", conf=job["conf"])
    began = time.monotonic()
    load_batches(
        pipeline, kafka_config={"bootstrap.servers": job["bootstrap_servers"]}, engine=engine, launcher=launcher
    )
    seconds = time.monotonic() - began
    with engine.connect() as conn:
        commit = float(conn.scalar(sa.text(_COMMIT)))
    engine.dispose()
    json.dump({"seconds": seconds, "commit": commit, "memory": _peak_memory()}, sys.stdout)


def _sink(name: str, directory: str) -> Sink:
    if name == "iceberg":
        return IcebergTable("shop.orders", warehouse=f"file://{directory}/lake")
    if name == "delta":
        return DeltaTable(f"file://{directory}/lake")
    if name == "parquet":
        return ParquetFiles(f"file://{directory}/lake")
    return SqlTable("orders")


def _peak_memory() -> int:
    """Return the bytes that this process had in memory at most. Not as getrusage says, which includes the process that
    forked this one.
    """
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


if __name__ == "__main__":
    main()
