"""The worker's end of a mailbox, and drivers that do not keep to the rules."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

from airflow_kafka_offsets.hooks.job_channel import MailboxChannel
from airflow_kafka_offsets.spark.mailbox import Mailbox
from airflow_kafka_offsets.staging.directory import StagingDirectory


def test_a_driver_that_sends_more_than_anybody_reads_keeps_no_worker(tmp_path: Path) -> None:
    directory = StagingDirectory(f"{tmp_path}/mailbox-{'a' * 32}")

    def work() -> None:
        with MailboxChannel(directory, print) as channel:
            channel.listen()
            driver = Mailbox.of_driver(directory, channel.arguments[1])
            answers = channel.accept()
            driver.send("a" + "b" * 3_000_000)
            assert answers.recv(1) == b"b"
            channel.disconnect()

    worker = Thread(target=work, daemon=True)
    worker.start()
    worker.join(120)
    assert not worker.is_alive()
