"""Brokers that stop answering for a moment, again and again: their late answers end no process."""

from __future__ import annotations

import subprocess
import sys
import time
from random import Random

from devstack.kafka import KafkaBroker
from devstack.topics import create_topic

# Eight threads ask until sixty requests have failed, some with errors that are kept.
ASKS = """
import itertools, sys, threading
from airflow_kafka_offsets.exceptions import KafkaOffsetsError
from airflow_kafka_offsets.kafka import admin
from airflow_kafka_offsets.kafka.cluster import Cluster

admin._FIRST_REQUEST_SECONDS = 0.1
errors = []

def ask():
    cluster = Cluster({"bootstrap.servers": sys.argv[1]}, timeout=0.3)
    questions = [
        lambda: cluster.logs(["orders"]),
        cluster.cluster_id,
        lambda: cluster.committed("group", None),
        lambda: cluster.consumer_group("group"),
        lambda: cluster.retention(["orders"]),
    ]
    for question in itertools.cycle(questions):
        try:
            question()
        except KafkaOffsetsError as error:
            errors.append(error)
        if len(errors) > 60:
            break

threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("asked")
"""


def test_late_answers_do_not_end_the_process_that_asks() -> None:
    # Sooner or later an answer comes right after its request has failed, wherever it is then.
    pauses = Random(1)
    with KafkaBroker() as kafka:
        create_topic(kafka.bootstrap_servers, "orders", partitions=3)
        command = (sys.executable, "-c", ASKS, kafka.bootstrap_servers)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asking:
            begun = time.monotonic()
            while asking.poll() is None and time.monotonic() < begun + 120:
                kafka.pause()
                time.sleep(pauses.uniform(0, 1))
                kafka.resume()
                time.sleep(pauses.uniform(0, 0.5))
            asking.kill()
            out, err = asking.communicate()
    assert (asking.returncode, out) == (0, "asked\n"), err
