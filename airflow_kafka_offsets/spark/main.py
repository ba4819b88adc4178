"""The entry point of a submitted application, which `package` writes the file for, and tricks that make it start and
end sooner.

Without any of these the same rows would be staged, later. They matter for small batches, which take a few seconds
(docs/speed.md).

* Without a transform of DataFrames no SQL session is started: an RDD needs no query plan.
* The JVM compiles with its quick compiler only, and finds its classes in an archive (`class_archive`).
* PySpark is imported with its bytecode (`installed_pyspark`), and once for all Python workers (`daemon`).
* A session is not stopped. The JVM stops it when the process ends; PySpark's own way waits for up to a second.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.core.text import count, shortened
from airflow_kafka_offsets.exceptions import ConfigurationError, KafkaOffsetsError, StagingError, TransformError
from airflow_kafka_offsets.spark.display import Display, MarkedLines
from airflow_kafka_offsets.spark.driver import run, stage_files
from airflow_kafka_offsets.spark.installed_pyspark import prefer_installed_pyspark
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.job_socket import Answer, Jobs
from airflow_kafka_offsets.spark.split_config import split_config
from airflow_kafka_offsets.spark.tasks import report_failure, stage_slices
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.transforms.transform import DataFrameTransform
from airflow_kafka_offsets.transforms.user_errors import from_text

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_QUICK_COMPILER = "-XX:TieredStopAtLevel=1"

# Up to so many rows, optimizing the code of a transform takes longer than it saves; with three times as many it breaks
# even.
_FEW_ROWS = 1_000_000


def main(path: str) -> int:
    """Stage the jobs that a launcher sends.

    :param path: of the launcher's socket
    :return: the exit status
    """
    prefer_installed_pyspark()
    jobs = Jobs(path)
    application = Application(jobs.properties())
    for job in jobs:
        if application.is_stopped():
            jobs.answer(Answer.STOPPED)
            return 1
        jobs.answer(Answer.BEGUN)
        display = MarkedLines()
        answer = _stage(application, job, display)
        display.end()
        jobs.answer(answer)
    return 0


def _stage(application: Application, job: StageJob, display: Display) -> Answer:
    """Stage a job, and report its failure in the staging directory.

    :raises Exception: no task has reported the failure: Spark, or this process, may be in any state
    """
    sys.path.extend(path for path in job.python_path if path not in sys.path)
    try:
        application.stage(job, display)
    except KafkaOffsetsError as error:
        report_failure(StagingDirectory(job.staging_uri), error)
        if isinstance(error, TransformError):
            # It has the frames that are the user's.
            sys.stderr.write(f"TransformError: {error}\n")
        else:
            traceback.print_exc()
        return Answer.FAILED
    except Exception as error:
        # The report of a task says more than Spark's exception.
        staging = StagingDirectory(job.staging_uri)
        if not staging.find("failure-"):
            report_failure(staging, failure(job.batch_id, error, job.dataframe_transform))
            raise
        traceback.print_exc()
        return Answer.FAILED
    return Answer.DONE


def failure(batch_id: int, error: Exception, transform: DataFrameTransform | None = None) -> KafkaOffsetsError:
    """Return the error for an exception that Spark raised, with the line of its text that names the cause.

    :return: a ConfigurationError where Spark's Python lacks a module that a task needs, a TransformError where the code
        of a UDF of the transform raised, else a StagingError
    """
    text = str(error)
    missing = re.search(r"No module named '([\w.]+)'", text)
    if missing:
        return ConfigurationError(
            f"Spark's Python has no module {missing[1]!r}: install pyarrow, confluent-kafka and what the format or the "
            "transform imports where the executors run, or set spark.pyspark.python to a Python that has them"
        )
    if transform is not None and (users := from_text(f"Transform {transform.name!r}", text)) is not None:
        return users
    # After that line come Java's stack frames, indented, and the same again as causes.
    lines = [line for line in text.splitlines() if re.match(r"(?!Caused by|Driver stacktrace)\S", line)]
    cause = shortened(lines[-1]) if lines else type(error).__name__
    return StagingError(f"Spark did not stage batch {batch_id}: {cause}")


class Application:
    """Spark in an application that does nothing else, started as the first job needs it.

    :param properties: those of Spark's that hold secrets
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._properties = dict(properties)
        self._session: SparkSession | None = None
        self._context: SparkContext | None = None

    def is_stopped(self) -> bool:
        """Return whether Spark was started, and was stopped since, for example by the cluster."""
        from py4j.protocol import Py4JError

        if self._context is None:
            return False
        try:
            # A stopped context refuses it; without the JVM nothing answers.
            _ = self._context.defaultParallelism
        except Py4JError:
            return True
        return False

    def stage(self, job: StageJob, display: Display) -> None:
        """Stage a job: all have a transform of DataFrames, or none has one."""
        display.line(
            f"Batch {job.batch_id}: {count(job.offsets, 'offset')} in {count(len(job.slices), 'slice')} for Spark"
        )
        if job.dataframe_transform is not None:
            run(self._sql(), job, display)
        else:
            self._stage_without_sql(split_config(job), display)

    def _sql(self) -> SparkSession:
        if self._session is None:
            from pyspark.sql import SparkSession

            self._session = SparkSession.builder.config(map=self._properties).getOrCreate()
            self._context = self._session.sparkContext
        else:
            # What the transform of the batch before has cached.
            self._session.catalog.clearCache()
        return self._session

    def _stage_without_sql(self, job: StageJob, display: Display) -> None:
        from pyspark import SparkConf, SparkContext

        if self._context is None:
            self._context = SparkContext.getOrCreate(SparkConf().setAll(list(self._properties.items())))
        tasks = self._context.parallelize(range(len(job.tasks)), len(job.tasks))
        stage_files(job, tasks.mapPartitions(lambda numbers: stage_slices(job, numbers)).collect, display)


def java_options(job: StageJob, environment: Mapping[str, str], classes: str = "") -> dict[str, str]:
    """Return environment variables for the JVM that builds spark-submit's command line, and for the driver.

    The driver only hands slices to Python, or few rows to a transform. The user's own options, in these variables or in
    `spark.driver.extraJavaOptions`, come later and win.

    :param environment: may hold the user's own options
    :param classes: options of the driver for its archive of classes
    """
    is_quick = job.dataframe_transform is None or job.offsets <= _FEW_ROWS
    options = {"SPARK_LAUNCHER_OPTS": [_QUICK_COMPILER], "SPARK_SUBMIT_OPTS": [_QUICK_COMPILER] * is_quick + [classes]}
    merged = {name: " ".join([*ours, environment.get(name, "")]).strip() for name, ours in options.items()}
    return {name: text for name, text in merged.items() if text}
