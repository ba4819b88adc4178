"""An error in the user's code shows the frames that are the user's, and of values only what the user's message says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_offsets.exceptions import StagingError, TransformError
from airflow_kafka_offsets.spark.driver import failure
from airflow_kafka_offsets.spark.package import write_package
from airflow_kafka_offsets.transforms.dataframe import DataFrameFunction, call
from airflow_kafka_offsets.transforms.user_errors import user_error

PACKAGE = "/tmp/job/airflow_kafka_offsets.zip/airflow_kafka_offsets/spark/tasks.py"

TEXT = f"""\
Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: PythonException:
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1830, in main
    process()
  File "{PACKAGE}", line 12, in read_arrow
    yield rows
  File "/dags/shop/orders.py", line 7, in <lambda>
    return parse(text)
           ^^^^^^^^^^^
  File "/dags/shop/orders.py", line 3, in parse
    raise shop.errors.NoSuchDay(text)
{{last}}

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1830, in main
    process()
  File "/dags/shop/orders.py", line 7, in <lambda>
    return parse(text)
           ^^^^^^^^^^^
{{last}}

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
"""

TRANSFORM = DataFrameFunction("shop.orders.clean")


def test_error_from_spark_keeps_the_users_frames() -> None:
    error = failure(7, RuntimeError(TEXT.format(last="shop.errors.NoSuchDay: day 31")), TRANSFORM)
    assert isinstance(error, TransformError)
    assert str(error) == (
        "Transform 'shop.orders.clean' raised NoSuchDay: day 31\n"
        '  File "/dags/shop/orders.py", line 7, in <lambda>\n'
        "    return parse(text)\n"
        "           ^^^^^^^^^^^"
    )


def test_without_a_frame_of_the_users_it_is_an_error_of_spark() -> None:
    text = TEXT.replace("/dags/shop/orders.py", "/venv/lib/pyspark/udf.py").format(
        last="OSError: No space left on device"
    )
    error = failure(7, RuntimeError(text), TRANSFORM)
    assert (type(error), str(error)) == (StagingError, "Spark did not stage batch 7: OSError: No space left on device")
    without = failure(7, RuntimeError(TEXT.format(last="OSError: No space left on device")))
    assert isinstance(without, StagingError)


def test_the_message_is_cut_and_may_be_missing() -> None:
    error = failure(7, RuntimeError(TEXT.format(last=f"ValueError: {'x' * 300_000}")), TRANSFORM)
    assert len(str(error)) < 1000
    assert (
        str(failure(7, RuntimeError(TEXT.format(last="KeyError")), TRANSFORM))
        .splitlines()[0]
        .endswith("raised KeyError")
    )


def raises(rows: Any) -> Any:
    record = {"card": "4111-1111"}
    assert record
    return deeper(rows)


def deeper(rows: Any) -> Any:
    raise ValueError("no such day")


def caught(function: Callable[[Any], Any]) -> TransformError:
    with pytest.raises(TransformError) as raised:
        call("shop.clean", function, None)  # type: ignore[arg-type]
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    return raised.value


def test_error_keeps_the_users_frames() -> None:
    first, *lines = str(caught(raises)).splitlines()
    assert first == "Transform 'shop.clean' raised ValueError: no such day"
    frames = [line for line in lines if line.startswith("  File")]
    assert [frame.rpartition(", in ")[2] for frame in frames] == ["raises", "deeper"]
    assert all(frame.startswith(f'  File "{Path(__file__)}", line ') for frame in frames)
    assert "return deeper(rows)" in str(caught(raises))
    assert "4111" not in str(caught(raises))


def test_frames_of_this_package_in_its_archive_are_not_the_users(tmp_path: Path) -> None:
    archive = write_package(tmp_path / "airflow_kafka_offsets.zip")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from airflow_kafka_offsets.core import text\n"
        "from airflow_kafka_offsets.transforms.user_errors import from_text, user_error\n"
        "assert text.__file__.startswith(sys.argv[1])\n"
        "import traceback\n"
        "try: text.count('x', 'y')\n"
        "except ValueError as error:\n"
        "    error = error.with_traceback(error.__traceback__.tb_next)\n"
        "    print(user_error('T', error))\n"
        "    print(from_text('T', ''.join(traceback.format_exception(error))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(archive)], capture_output=True, text=True, cwd=tmp_path)
    assert "File" not in done.stdout, done.stdout
    assert done.stdout.splitlines()[-1] == "None", done.stderr


def test_a_long_message_is_cut() -> None:
    def quotes(rows: Any) -> Any:
        raise ValueError("x" * 10_000)

    assert len(str(caught(quotes))) < 1000


def test_a_function_that_cannot_be_called_has_no_frames() -> None:
    assert "\n" not in str(caught(lambda: None))  # type: ignore[misc,arg-type]


def test_a_user_may_have_a_folder_of_our_name(tmp_path: Path) -> None:
    (tmp_path / "airflow_kafka_offsets_dags").mkdir()
    file = tmp_path / "airflow_kafka_offsets_dags" / "orders.py"
    file.write_text("def clean(rows):\n    raise KeyError('a')\n")
    scope: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    with pytest.raises(KeyError) as raised:
        scope["clean"](None)
    assert f'File "{file}", line 2, in clean' in str(user_error("Transform 'x'", raised.value))


def test_the_application_prints_no_more_than_that() -> None:
    """Its output is the task's log."""
    code = """
import sys
from airflow_kafka_offsets.exceptions import TransformError
from airflow_kafka_offsets.spark import driver
class Job:
    python_path, staging_uri = (), "/nowhere"
driver.report_failure = lambda job, error: None
class Application(driver.Application):
    def stage(self, job, display):
        raise TransformError("Transform 'x' raised ValueError: no such day")
print(driver._stage(Application({}), Job, None).name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("FAILED\n", "TransformError: Transform 'x' raised ValueError: no such day\n")
