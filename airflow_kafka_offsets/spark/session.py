"""Run the application inside a Spark session that exists already: a notebook, a script, Spark Connect."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_kafka_offsets.spark.application import run
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.package import write_package

if TYPE_CHECKING:
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
        # Adding the same archive again does nothing.
        self._spark.addArtifacts(str(_archive()), pyfile=True)
        run(self._spark, job)


@cache
def _archive() -> Path:
    """The archive of this process: Spark fetches it whenever an executor starts, as long as the session lives."""
    directory = tempfile.mkdtemp(prefix="kafka-offsets-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return write_package(Path(directory) / "airflow_kafka_offsets.zip")
