"""Run the application inside a Spark session that exists already: a notebook, a script, Spark Connect."""

from __future__ import annotations

import tempfile
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
        # Kept as long as the launcher: executors that start late fetch the archive then.
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def check(self, staging_dir: str | None) -> None:
        """Nothing can be missing: the session runs, and whether it shares a directory with us only its owner knows."""

    def __call__(self, job: StageJob) -> None:
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="kafka-offsets-")
            archive = write_package(Path(self._directory.name) / "airflow_kafka_offsets.zip")
            self._spark.addArtifacts(str(archive), pyfile=True)
        run(self._spark, job)
