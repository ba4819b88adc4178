"""The protocol of launchers, which run the Spark application for one job.

`session_launcher` and `hooks.spark` implement it. A launcher knows nothing of batches, positions and targets.
"""

from __future__ import annotations

from typing import Protocol

from airflow_kafka_offsets.spark.job import StageJob


class Launcher(Protocol):
    """Runs the Spark application for a job, and returns when it has finished."""

    def check(self, staging_dir: str | None) -> None:
        """Check, before anything is planned, that Spark can be launched and reach the staging directory.

        :raises ConfigurationError: something is missing; the message says what
        """

    def __call__(self, job: StageJob) -> None:
        """Stage a job, and raise an exception if that fails.

        An error that the application left in the staging directory takes precedence over the exception.
        """

    def on_kill(self) -> None:
        """Stop the application, if one is running: Airflow stops the task."""
