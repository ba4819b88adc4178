"""A load with the driver on this machine whose jobs go through a mailbox, as if it were in a cluster."""

from __future__ import annotations

import sys

from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from airflow_kafka_offsets.hooks.spark_hook import SparkHook

PYTHON = {"spark.pyspark.driver.python": sys.executable, "spark.pyspark.python": sys.executable}
"""A driver in a cluster has its own Python."""


class MailboxLauncher(SparkSubmitLauncher):
    """Submits in client mode, and has jobs go through a mailbox."""

    def _deploy_mode(self, hook: SparkHook) -> tuple[str, str]:
        return "cluster", "this class"

    def _check_deploy_mode(self, hook: SparkHook) -> None:
        """Refuse nothing: the driver is here."""
