"""Where the driver and Python workers find PySpark, and what the daemon of the workers imports before it forks them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from airflow_kafka_offsets.spark.daemon import prefer_installed_pyspark

HOME = Path(pyspark.__file__).parent
ARCHIVES = sorted(map(str, (HOME / "python" / "lib").glob("*.zip")))

STATE = (
    "import json, os, sys, pyspark\n"
    "found = {'file': pyspark.__file__, 'modules': sorted(sys.modules), 'threads': "
    "len(os.listdir('/proc/self/task'))}\n"
    "print(json.dumps(found))\n"
)


def state(code: str) -> dict[str, Any]:
    """Of a Python whose path begins with Spark's archives, after some code."""
    path = os.pathsep.join([*ARCHIVES, str(Path.cwd())])
    done = subprocess.run(
        [sys.executable, "-c", code + "\n" + STATE],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_installed_package_goes_before_sparks_archives() -> None:
    assert ".zip/" in state("")["file"]
    found = state(
        "from airflow_kafka_offsets.spark.daemon import prefer_installed_pyspark as f; f(); import py4j; "
        "assert '.zip' not in py4j.__file__"
    )
    assert found["file"] == str(HOME / "__init__.py")


@pytest.mark.parametrize(
    "archive",
    [
        "/opt/spark/python/lib/pyspark.zip",
        "/opt/pyspark/python/lib/pyspark.zip",
        "/opt/pyspark/python/lib/more.txt",
        "relative.zip",
    ],
)
def test_a_spark_that_is_no_installed_package_keeps_its_archives(archive: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = [archive, *sys.path]
    monkeypatch.setattr(sys, "path", list(path))
    prefer_installed_pyspark()
    assert sys.path == path


def test_the_daemon_has_imported_what_workers_run_and_nothing_that_starts_a_thread() -> None:
    found = state(
        "from airflow_kafka_offsets.spark.daemon import prefer_installed_pyspark as f; f()\n"
        "import pyspark.daemon; pyspark.daemon.manager = lambda: None\n"
        "from airflow_kafka_offsets.spark import daemon; daemon.main()"
    )
    assert "pyspark.worker" in found["modules"]
    assert not {"pyarrow", "numpy", "pandas"} & set(found["modules"])
    assert found["threads"] == 1
