"""The entry point of a submitted application."""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path

from airflow_kafka_offsets.exceptions import ConfigurationError, KafkaOffsetsError, StagingError
from airflow_kafka_offsets.spark.driver import run, run_without_sql
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.tasks import leave_failure
from airflow_kafka_offsets.spark.without_pandas import do_without_pandas, hidden_pandas
from airflow_kafka_offsets.staging.directory import StagingDirectory


def main(directory: str) -> int:
    """Run as a Spark application.

    :param directory: the directory that holds `job.json`
    :return: the exit status
    """
    file = Path(directory) / "job.json"
    job = StageJob.from_json(file.read_text(encoding="utf-8"))
    # It holds Kafka's credentials, and nobody else needs it; whoever launched us may be killed before tidying up.
    file.unlink()
    sys.path.extend(path for path in job.python_path if path not in sys.path)
    try:
        _submitted(job)
    except KafkaOffsetsError as error:
        leave_failure(StagingDirectory(job.staging_uri), error)
        traceback.print_exc()
        return 1
    except Exception as error:
        # What a task reported itself says more.
        staging = StagingDirectory(job.staging_uri)
        if not staging.find("failure-", ".json"):
            leave_failure(staging, failure(job.batch_id, error))
        raise
    return 0


def failure(batch_id: int, error: Exception) -> KafkaOffsetsError:
    """What an exception of Spark's is about, in one line of it.

    :return: a ConfigurationError where Spark's Python lacks a module that reading needs, else a StagingError
    """
    text = str(error)
    missing = re.search(r"No module named '(pyarrow|confluent_kafka)\b", text)
    if missing:
        return ConfigurationError(
            f"Spark's Python has no module {missing[1]!r}: install pyarrow and confluent-kafka where the executors run, or set "
            "spark.pyspark.python to a Python that has them"
        )
    # Behind the line that says it come frames of Java's, indented, and the same again as causes.
    said = [line for line in text.splitlines() if re.match(r"(?!Caused by|Driver stacktrace)\S", line)]
    return StagingError(f"Spark did not stage batch {batch_id}: {said[-1] if said else type(error).__name__}")


def _submitted(job: StageJob) -> None:
    """Stage in an application of its own. The JVM stops it when this process ends: PySpark's own way waits for up to a second."""
    if job.transform is None:
        do_without_pandas()
        from pyspark import SparkContext

        run_without_sql(SparkContext.getOrCreate(), job)
    else:
        from pyspark.sql import SparkSession

        with hidden_pandas():
            session = SparkSession.builder.getOrCreate()
        run(session, job)
