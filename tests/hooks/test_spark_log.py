"""The task's log of a submitted application: what is folded, and what stands out."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest

from airflow_kafka_offsets.hooks.spark_hook import SparkHook
from airflow_kafka_offsets.hooks.spark_log import CollapsedLog
from airflow_kafka_offsets.spark.progress import Display
from tests.support.hostile import HOSTILE, controls

PRINTED = """\
:: loading settings ::
an early line of some launcher
26/11/23 01:00:00 WARN Utils: Set SPARK_LOCAL_IP
[kafka-offsets a1] Batch 3: 10 offsets in 2 slices for Spark
printed by a transform
  and its second line
26/11/23 01:00:01 ERROR Executor: Exception in task 0.0
java.lang.IllegalStateException: no room
\tat org.apache.spark.Task.run(Task.scala:1)
  File "worker.py", line 1
airflow_kafka_offsets.exceptions.RecordError: Record at topic 'orders'
SQLSTATE: 38000
\tat org.apache.spark.Task.run(Task.scala:1)
Caused by: java.io.IOException
[kafka-offsets] Batch 3: 9 records were loaded
[kafka-offsets a1 4/10] Batch 3: read 4 records of 10 planned (40%)
[kafka-offsets a1]   slice 1: orders[0] 4..10, 0 records of 6 planned
26/11/23 01:00:02 WARN Utils: the end
"""

FOLDED = """\
::group::Spark
Spark-Submit cmd: …
:: loading settings ::
an early line of some launcher
26/11/23 01:00:00 WARN Utils: Set SPARK_LOCAL_IP
::endgroup::
Batch 3: 10 offsets in 2 slices for Spark
printed by a transform
and its second line
::group::Spark
26/11/23 01:00:01 ERROR Executor: Exception in task 0.0
java.lang.IllegalStateException: no room
at org.apache.spark.Task.run(Task.scala:1)
File "worker.py", line 1
airflow_kafka_offsets.exceptions.RecordError: Record at topic 'orders'
SQLSTATE: 38000
at org.apache.spark.Task.run(Task.scala:1)
Caused by: java.io.IOException
::endgroup::
[kafka-offsets] Batch 3: 9 records were loaded
Batch 3: read 4 records of 10 planned (40%)
  slice 1: orders[0] 4..10, 0 records of 6 planned
::group::Spark
26/11/23 01:00:02 WARN Utils: the end
::endgroup::
"""


@pytest.fixture
def submit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A spark-submit that prints what an application could."""
    program = tmp_path / "spark3-submit"
    program.write_text(f"#!{sys.executable}\nprint({PRINTED!r}, end='')\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    connection = {"conn_type": "spark", "host": "local[2]", "extra": {"spark-binary": "spark3-submit"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))


@pytest.mark.usefixtures("submit")
def test_sparks_lines_are_folded_and_others_stand_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hook = SparkHook(conn_id="spark_default")
    hook.folded.mark = "a1"
    # Airflow's own does not reach the root logger.
    monkeypatch.setattr(hook, "_log", logging.getLogger(__name__))
    with caplog.at_level(logging.INFO):
        hook.submit("application.py")
    hook.close()

    logged = [record.getMessage() for record in caplog.records]
    first = logged.index("::group::Spark")
    shown = ["Spark-Submit cmd: …" if line.startswith("Spark-Submit cmd: ") else line for line in logged[first:]]
    assert shown == FOLDED.splitlines()


def test_a_group_ends_where_spark_submit_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connection = {"conn_type": "spark", "host": "local[2]", "extra": {"spark-binary": "spark3-submit"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    with caplog.at_level(logging.INFO), pytest.raises(FileNotFoundError):
        SparkHook(conn_id="spark_default").submit("application.py")

    assert [line for line in caplog.messages if line.startswith("::")] == ["::group::Spark", "::endgroup::"]


class Drawn(Display):
    """A bar that remembers what it was given."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []
        self.is_closed = False

    def progress(self, lines: object, records: int, planned: int) -> None:
        self.seen.append((records, planned))

    def close(self) -> None:
        self.is_closed = True


def test_lines_of_spark_have_no_control_characters(caplog: pytest.LogCaptureFixture) -> None:
    """Code of a DAG prints what is in records."""
    folded = CollapsedLog(logging.getLogger(__name__))
    folded.mark = "a1"
    lines = [f"ValueError: {line}\n" for line in HOSTILE.split("\n")] + [f"[kafka-offsets a1] {HOSTILE}"]

    with caplog.at_level(logging.INFO):
        printed = list(folded.others(lines))

    assert len(printed) == 2
    assert controls("".join([*printed, *caplog.messages])) <= {"\n"}


def test_a_bar_takes_the_place_of_progress_in_lines(caplog: pytest.LogCaptureFixture) -> None:
    bar = Drawn()
    folded = CollapsedLog(logging.getLogger(__name__), lambda: bar)
    folded.mark = "a1"
    with caplog.at_level(logging.INFO):
        folded.begin_job()
        assert list(folded.others(line for line in PRINTED.splitlines() if line.startswith("[kafka-offsets a1"))) == []
        folded.close()
        folded.end_job()

    assert (bar.seen, bar.is_closed) == ([(4, 10)], True)
    assert caplog.messages == ["Batch 3: 10 offsets in 2 slices for Spark"]
