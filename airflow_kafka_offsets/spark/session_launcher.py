"""Run the application inside a Spark session that exists already: a notebook, a script, Spark Connect."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from airflow_kafka_offsets.spark.driver import run
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.package import write_package

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


class SessionLauncher:
    """Stages batches in a session of the caller's.

    :param spark: any session; its executors need pyarrow and confluent-kafka, and get the rest from here
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def check(self, staging_dir: str | None) -> None:
        """Nothing can be missing: the session runs, and whether it shares a directory with us only its owner knows."""

    def __call__(self, job: StageJob) -> None:
        _add_package(self._spark)
        run(self._spark, job)


# Those whose executors have this package. A context would take it once more with every batch.
_with_package: WeakSet[SparkContext] = WeakSet()


def _add_package(spark: SparkSession) -> None:
    """Send this package to the executors of a session."""
    if _is_remote(spark):
        # Adding the same archive again does nothing.
        spark.addArtifacts(str(_archive()), pyfile=True)
        return
    # Spark 3.5 has addArtifacts for Spark Connect only.
    context = spark.sparkContext
    if context not in _with_package:
        context.addPyFile(str(_archive()))
        _with_package.add(context)


def _is_remote(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect; its module is not imported, since it needs gRPC."""
    return any(kind.__module__ == "pyspark.sql.connect.session" for kind in type(spark).__mro__)


@cache
def _archive() -> Path:
    """The archive of this process: Spark fetches it whenever an executor starts, as long as the session lives."""
    directory = tempfile.mkdtemp(prefix="kafka-offsets-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return write_package(Path(directory) / "airflow_kafka_offsets.zip")
