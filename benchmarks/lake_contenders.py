"""Ways to load a topic into a lake table: this package, and Spark's own connectors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import deltalake
import pyarrow.compute as pc
from pyarrow.dataset import dataset
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable  # noqa: TID251 - of its own table

from benchmarks.datasets import COLUMNS, Dataset
from devstack.kafka import KafkaBroker
from devstack.paths import REPOSITORY
from devstack.postgres import PostgresServer
from devstack.spark_jars import ConnectedSpark, spark_with_delta, spark_with_iceberg

CONF = {"spark.ui.enabled": "false", "spark.log.level": "WARN", "spark.sql.session.timeZone": "UTC"}
# As much as it wants: with less it would collect garbage.
_DRIVER = {"spark.driver.memory": "4g"}
_OWN_SLICES = 250_000


class Task(NamedTuple):
    """What every contender does: load all records of a topic into an empty table.

    :param master: of Spark, for each SPARK_HOME
    :param conf: Spark properties of a cluster
    :param directory: where the table's files are
    :param database: an empty one
    :param env: of Airflow
    """

    kafka: KafkaBroker
    postgres: PostgresServer
    dataset: Dataset
    master: Mapping[Path, str]
    conf: Mapping[str, str]
    directory: Path
    database: str
    env: Mapping[str, str]


class Figures(NamedTuple):
    """What a load took.

    :param seconds: of the whole load
    :param files: of data
    :param commit: seconds from everything staged to everything committed; None where it cannot be told apart
    :param processor: seconds, of all processes
    :param memory: bytes that the worker's process had at most; None where there is none
    """

    seconds: float
    files: int
    commit: float | None = None
    memory: int | None = None
    processor: float = 0.0


Contender = Callable[[Task], Figures]


def package(name: str, slice_offsets: int = _OWN_SLICES) -> Contender:
    """Return this package.

    :param name: `iceberg`, `delta`, `parquet` or `table`
    """

    def run(task: Task) -> Figures:
        spark = spark_with_delta()
        job = {
            "bootstrap_servers": task.kafka.bootstrap_servers,
            "topic": task.dataset.topic,
            "url": task.postgres.url(task.database),
            "format": name,
            "directory": str(task.directory),
            "conf": CONF | dict(task.conf),
            "slice_offsets": slice_offsets,
        }
        connection = json.dumps({"conn_type": "spark", "host": task.master[spark.home]})
        env = spark.env | dict(task.env) | {"LAKE_LOAD": json.dumps(job), "AIRFLOW_CONN_SPARK_DEFAULT": connection}
        done = _run([sys.executable, "-m", "benchmarks.lake_load"], env)
        figures = json.loads(done.splitlines()[-1])
        files = [] if name == "table" else _files(name, task)
        if name != "table":
            _check(files, task)
        return Figures(files=len(files), **figures)

    return run


def available_now(name: str) -> Contender:
    """Return Structured Streaming with Spark's own connector.

    :param name: `iceberg`, `delta` or `parquet`
    """

    def run(task: Task) -> Figures:
        spark = spark_with_iceberg() if name == "iceberg" else spark_with_delta()
        job = {
            "bootstrap_servers": task.kafka.bootstrap_servers,
            "topic": task.dataset.topic,
            "columns": COLUMNS.replace(" NOT NULL", ""),
            "format": name,
            "path": f"{task.directory}/lake",
            "checkpoint": f"{task.directory}/checkpoint",
        }
        seconds = _submit(
            spark, task, {"STREAMING_JOB": json.dumps(job)}, Path(__file__).with_name("streaming_application.py")
        )
        files = _files(f"streamed {name}", task)
        _check(files, task)
        return Figures(seconds, len(files))

    return run


def _submit(spark: ConnectedSpark, task: Task, env: Mapping[str, str], application: Path) -> float:
    warehouse = {"spark.sql.catalog.lake.warehouse": f"{task.directory}/lake"}
    conf = CONF | _DRIVER | spark.conf | warehouse | dict(task.conf)
    options = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    command = [str(spark.home / "bin" / "spark-submit"), "--master", task.master[spark.home], "--jars", spark.jars]
    began = time.monotonic()
    _run([*command, *options, str(application)], spark.env | dict(env))
    return time.monotonic() - began


def _run(command: list[str], env: Mapping[str, str]) -> str:
    done = subprocess.run(command, env=dict(os.environ) | dict(env), capture_output=True, text=True, cwd=REPOSITORY)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def _files(name: str, task: Task) -> list[str]:
    """Return the paths of the table's data files, as a reader of its format finds them."""
    lake = task.directory / "lake"
    if name == "iceberg":
        url = task.postgres.url(task.database)
        catalog = SqlCatalog("default", uri=url, warehouse=f"file://{lake}", init_catalog_tables="false")
        found = catalog.load_table("shop.orders").inspect.files()["file_path"].to_pylist()
        catalog.engine.dispose()
    elif name == "streamed iceberg":
        newest = max(lake.glob("shop/orders/metadata/v*.metadata.json"), key=lambda path: path.stat().st_mtime)
        found = StaticTable.from_metadata(f"file://{newest}").inspect.files()["file_path"].to_pylist()
    elif name.endswith("delta"):
        found = deltalake.DeltaTable(str(lake)).file_uris()
    else:
        found = list(map(str, lake.glob("*.parquet")))
    return [path.removeprefix("file://") for path in found]


def _check(files: list[str], task: Task) -> None:
    """Check the rows.

    :raises AssertionError: the table does not contain each record once
    """
    rows = total = 0
    for batch in dataset(files, format="parquet").to_batches(columns=["id"]):
        rows += len(batch)
        total += pc.sum(batch["id"]).as_py() or 0
    records = task.dataset.records
    assert (rows, total) == (records, records * (records - 1) // 2), f"{rows} of {records} rows are in {files[:3]} …"


CONTENDERS: Mapping[str, Contender] = {
    "this package, IcebergTable": package("iceberg"),
    "this package, DeltaTable": package("delta"),
    "this package, ParquetFiles": package("parquet"),
    "this package, SqlTable (COPY)": package("table"),
    "availableNow, Iceberg's connector": available_now("iceberg"),
    "availableNow, Delta's connector": available_now("delta"),
    "availableNow, Parquet": available_now("parquet"),
}
