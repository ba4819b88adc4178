"""Stages a job in a process of its own, as a Python worker of Spark does, and prints the most memory that it had.

Standard input is a `StageJob` as text.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.tasks import stage_slices


def most_memory(job: StageJob) -> int:
    """Stage a job in a process of its own, and return its highest resident set in MiB."""
    command = [sys.executable, "-m", __name__]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, input=job.to_text(), capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    rows, memory = map(int, done.stdout.split())
    assert rows == job.offsets
    return memory


if __name__ == "__main__":
    asked = StageJob.from_text(sys.stdin.read())
    staged = sum(file.rows for number in range(len(asked.tasks)) for file in stage_slices(asked, [number]))
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    sys.stdout.write(f"{staged} {int(status['VmHWM'].split()[0]) >> 10}")
