"""A load with the driver on this machine whose jobs go through a mailbox, as if it were in a cluster."""

from __future__ import annotations

from pathlib import Path

from airflow_kafka_offsets.hooks.job_channel import Channel, MailboxChannel, mailbox_beside
from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from airflow_kafka_offsets.hooks.spark_hook import SparkHook
from airflow_kafka_offsets.hooks.spark_log import CollapsedLog
from airflow_kafka_offsets.spark.job import StageJob


class MailboxLauncher(SparkSubmitLauncher):
    """Submits in client mode, and has jobs go through a mailbox."""

    def _channel(self, hook: SparkHook, directory: Path, job: StageJob, folded: CollapsedLog) -> Channel:
        return MailboxChannel(mailbox_beside(job.staging_uri), folded.show_sent)
