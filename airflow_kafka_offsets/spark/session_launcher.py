"""Run the application in an existing Spark session: in a notebook, in a script, or over Spark Connect."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from airflow_kafka_offsets.spark.display import display_here
from airflow_kafka_offsets.spark.driver import run
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.package import write_package

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


# Contexts whose executors have this package. Without this, each batch would send it again.
_with_package: WeakSet[SparkContext] = WeakSet()


class SessionLauncher:
    """Stages batches in a session that belongs to the caller.

    :param spark: any session; its executors need pyarrow and confluent-kafka; the launcher sends them this package
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def check(self, staging_dir: str | None) -> None:
        """Check nothing: the session is running, and only its owner knows whether its executors share a directory with this process."""

    def __call__(self, job: StageJob) -> None:
        """Send this package to the executors of the session, and stage a batch in it."""
        spark = self._spark
        # Spark Connect, whose module is not imported, since it needs gRPC. Spark 3.5 has addArtifacts for it only.
        if any(kind.__module__ == "pyspark.sql.connect.session" for kind in type(spark).__mro__):
            # Adding the same archive again does nothing.
            spark.addArtifacts(str(_archive()), pyfile=True)
        elif spark.sparkContext not in _with_package:
            spark.sparkContext.addPyFile(str(_archive()))
            _with_package.add(spark.sparkContext)
        display = display_here()
        try:
            run(spark, job, display)
        finally:
            display.close()

    def on_kill(self) -> None:
        """Do nothing: the session belongs to the caller, who stops it."""


@cache
def _archive() -> Path:
    """Return this process's archive. It is kept until the process ends: Spark fetches it whenever an executor starts."""
    directory = tempfile.mkdtemp(prefix="kafka-offsets-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return write_package(Path(directory) / "airflow_kafka_offsets.zip")
