"""Loads without Spark, for tests that need hundreds of them: the same tasks, one after another, in this process.

What Spark itself does to a load is tested with real Spark; here its part is only to call the reader and the stager.
"""

from __future__ import annotations

from airflow_kafka_offsets.spark.driver import stage_here
from airflow_kafka_offsets.spark.job import StageJob


class InlineLauncher:
    """Stages a batch in this process, and remembers what it was asked to run. Knows no transform of DataFrames."""

    def __init__(self) -> None:
        self.jobs: list[StageJob] = []
        self.closed = 0

    def check(self, staging_dir: str | None) -> None:
        """Nothing can be missing."""

    def __call__(self, job: StageJob) -> None:
        assert job.dataframe_transform is None
        self.jobs.append(job)
        stage_here(job)

    def cancel(self) -> None:
        """Nothing runs beside this process."""

    def close(self) -> None:
        self.closed += 1


class Fails(InlineLauncher):
    """Ends before it has staged anything."""

    def __call__(self, job: StageJob) -> None:
        raise RuntimeError("no executor left")
