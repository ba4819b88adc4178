"""What an exception of Spark's means for the task."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets.exceptions import ConfigurationError, StagingError
from airflow_kafka_offsets.spark.driver import failure

TEXT = """\
Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times
Traceback (most recent call last):
  File "/opt/spark/python/worker.py", line 1, in main
{last}

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException
Driver stacktrace:
Caused by: org.apache.spark.api.python.PythonException: again
"""


@pytest.mark.parametrize("module", ["pyarrow", "confluent_kafka", "fastavro", "ours.models"])
def test_a_missing_module_is_a_mistake_that_no_retry_can_help(module: str) -> None:
    error = failure(7, RuntimeError(TEXT.format(last=f"ModuleNotFoundError: No module named '{module}'")))
    assert isinstance(error, ConfigurationError)
    assert not error.retriable
    assert str(error).startswith(f"Spark's Python has no module '{module}': where the executors run, install")


def test_anything_else_may_pass_and_its_cause_is_named() -> None:
    error = failure(7, RuntimeError(TEXT.format(last="OSError: [Errno 28] No space left on device")))
    assert isinstance(error, StagingError)
    assert error.retriable
    assert str(error) == "Spark did not stage batch 7: OSError: [Errno 28] No space left on device"


def test_the_part_of_the_query_is_not_taken_for_the_cause() -> None:
    said = "[UNSUPPORTED] Not now. SQLSTATE: 0A000\n== SQL (line 1, position 1) ==\n100 div (id-2)\n^^^^^^^^^^^^^^\n"
    assert str(failure(7, RuntimeError(said))) == (
        "Spark did not stage batch 7: [UNSUPPORTED] Not now. SQLSTATE: 0A000"
    )


def test_an_application_that_failed_in_a_cluster_is_named() -> None:
    """By what spark-submit printed last, which Airflow's hook quotes without its indentation."""
    printed = (
        "Cannot execute: spark-submit --master yarn. Error code is: 1.\nLast spark-submit output:\n"
        'Exception in thread "main" org.apache.spark.SparkException: Application application_17_3 finished with failed '
        "status\nat org.apache.spark.deploy.yarn.Client.run(Client.scala:1403)\n... 6 more"
    )
    named = "org.apache.spark.SparkException: Application application_17_3 finished with failed status"
    assert str(failure(7, RuntimeError(printed))).endswith(named)


def test_quotations_by_spark_are_cut() -> None:
    error = failure(7, RuntimeError(TEXT.format(last="ValueError: " + "x" * 300_000)))
    assert str(error).startswith("Spark did not stage batch 7: ValueError: xxx")
    assert len(str(error)) < 600
