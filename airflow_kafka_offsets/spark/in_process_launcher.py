"""The launcher of batches that need no Spark: few records, and no transform of DataFrames."""

from __future__ import annotations

from airflow_kafka_offsets.spark.driver import stage_here
from airflow_kafka_offsets.spark.job import StageJob


class InProcessLauncher:
    """Stages jobs in this process."""

    def check(self, staging_dir: str | None) -> None:
        """Do nothing: this process has all it needs."""

    def __call__(self, job: StageJob) -> None:
        stage_here(job)

    def cancel(self) -> None:
        """Do nothing: no other process stages the job."""

    def close(self) -> None:
        """Do nothing: no application was started."""
