"""The entry point of a submitted application: `package` writes the file that calls it."""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path

from airflow_kafka_offsets.exceptions import ConfigurationError, KafkaOffsetsError, StagingError
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.quick_start import run_submitted
from airflow_kafka_offsets.spark.tasks import report_failure
from airflow_kafka_offsets.staging.directory import StagingDirectory


def main(directory: str) -> int:
    """Stage the batch of a job file.

    :param directory: the directory that holds `job.json`
    :return: the exit status
    """
    file = Path(directory) / "job.json"
    job = StageJob.from_json(file.read_text(encoding="utf-8"))
    # It holds Kafka's credentials, and only this process needs it. The launcher may be killed before it removes the directory.
    file.unlink()
    sys.path.extend(path for path in job.python_path if path not in sys.path)
    try:
        run_submitted(job)
    except KafkaOffsetsError as error:
        report_failure(StagingDirectory(job.staging_uri), error)
        traceback.print_exc()
        return 1
    except Exception as error:
        # The report of a task says more than Spark's exception.
        staging = StagingDirectory(job.staging_uri)
        if not staging.find("failure-", ".json"):
            report_failure(staging, failure(job.batch_id, error))
        raise
    return 0


def failure(batch_id: int, error: Exception) -> KafkaOffsetsError:
    """Return the error for an exception that Spark raised, with the line of its text that names the cause.

    :return: a ConfigurationError where Spark's Python lacks a module that a task needs, else a StagingError
    """
    text = str(error)
    missing = re.search(r"No module named '(pyarrow|confluent_kafka)\b", text)
    if missing:
        return ConfigurationError(
            f"Spark's Python has no module {missing[1]!r}: install pyarrow and confluent-kafka where the executors run, or set "
            "spark.pyspark.python to a Python that has them"
        )
    # After that line come Java's stack frames, indented, and the same again as causes.
    lines = [line for line in text.splitlines() if re.match(r"(?!Caused by|Driver stacktrace)\S", line)]
    return StagingError(f"Spark did not stage batch {batch_id}: {lines[-1] if lines else type(error).__name__}")
