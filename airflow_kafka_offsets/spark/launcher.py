"""What a launcher of the Spark application is."""

from __future__ import annotations

from typing import Protocol

from airflow_kafka_offsets.spark.job import StageJob


class Launcher(Protocol):
    """Runs the Spark application for a job, and returns when it has ended."""

    def check(self, staging_dir: str | None) -> None:
        """Find out, before anything is planned, whether Spark can be launched and reach the staging directory.

        :raises ConfigurationError: what is missing
        """

    def __call__(self, job: StageJob) -> None:
        """Stage a job; raise where that fails."""
