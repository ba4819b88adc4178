"""Seconds of the table of groups in the web interface, for 500 groups of 10,000 partitions in all: the first answer
after the app has started, the first one that has every lag, and later ones; with the broker, and without.

Broker and Postgres are on this machine. The app runs in this process, with Airflow's login, connections and metadata
database.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import sqlalchemy as sa
from confluent_kafka import Producer

from benchmarks import machine
from benchmarks.rewind import RECORDS
from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer
from devstack.topics import create_topics
from tests.support.web_groups import many

_PARTITIONS = 20
"""Of each topic. Each group has read one topic."""

_TOPICS_AT_ONCE = 25
_MEASURED = "being measured"


class Round(NamedTuple):
    """Seconds of the answers of one app.

    :param first: of the first answer
    :param whole: from the first request until an answer had every lag, or said why it is not known
    :param later: of the next answer
    :param size: of what the page sends at a refresh, in bytes
    """

    first: float
    whole: float
    later: float
    size: int


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.pages", description=__doc__)
    parser.add_argument("--groups", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=10, help="rounds; medians are printed")
    options = parser.parse_args()
    with KafkaBroker(heap="1g") as kafka, PostgresServer() as postgres:
        topics = [f"topic-{number}" for number in range(options.groups)]
        fill(kafka, topics)
        engine = sa.create_engine(postgres.create_database("pages"))
        many(engine, kafka, topics, options.groups)
        engine.dispose()
        sys.stdout.write(f"{machine.in_short()}; medians of {options.rounds} rounds\n")
        sys.stdout.write(f"{options.groups:,} groups, {options.groups * _PARTITIONS:,} partitions\n\n")
        sys.stdout.write(f"{'':14} {'first':>8} {'with every lag':>15} {'later':>8} {'slowest':>8} {'page':>8}\n")
        sys.stdout.flush()
        connections = {
            "pages": postgres.airflow_uri("pages"),
            "kafka_up": as_connection(kafka.bootstrap_servers),
            "kafka_down": as_connection("127.0.0.1:1"),
        }
        with AirflowHome(connections=connections) as home:
            # Airflow reads them when it is imported.
            os.environ.update({name: text for name, text in home.env.items() if name.startswith("AIRFLOW_")})
            for title, conn_id in (("broker is up", "kafka_up"), ("broker is down", "kafka_down")):
                os.environ["AIRFLOW__KAFKA_OFFSETS__CONN_IDS"] = f"pages?kafka_conn_id={conn_id}"
                rounds = [measure(options.groups) for _ in range(options.rounds)]
                write(title, rounds)
    return 0


def as_connection(servers: str) -> str:
    return json.dumps({"conn_type": "kafka", "extra": json.dumps({"bootstrap.servers": servers})})


def fill(kafka: KafkaBroker, topics: Sequence[str]) -> None:
    """Create topics, with some records in each partition."""
    for start in range(0, len(topics), _TOPICS_AT_ONCE):
        create_topics(kafka.bootstrap_servers, topics[start : start + _TOPICS_AT_ONCE], _PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 50})
    for topic in topics:
        for partition in range(_PARTITIONS):
            for _ in range(RECORDS):
                producer.produce(topic, b"{}", partition=partition)
        producer.poll(0)
    assert producer.flush(300) == 0


def measure(groups: int) -> Round:
    """Measure an app from its start on."""
    from airflow_kafka_offsets.hooks.connections import kafka_cluster, kafka_config, open_ledger
    from airflow_kafka_offsets.plugin.app import SerializedDags, configured_sources
    from airflow_kafka_offsets.plugin.readings import Readings
    from tests.support.web import PREFIX, Web

    cluster = partial(kafka_cluster, timeout=8.0)
    readings = Readings(open_ledger, cluster, kafka_config, configured_sources, SerializedDags().registered)
    client = Web(readings).client("operator")

    def answer() -> tuple[float, str]:
        began = time.monotonic()
        page = client.get(f"{PREFIX}/", headers={"X-Part": "live"})
        assert page.status_code == 200, page.text
        return time.monotonic() - began, page.text

    began = time.monotonic()
    first, page = answer()
    while f" of {groups:,}<" not in page or _MEASURED in page:
        time.sleep(0.05)
        _, page = answer()
    whole = time.monotonic() - began
    later, page = answer()
    return Round(first, whole, later, len(page.encode()))


def write(title: str, rounds: Sequence[Round]) -> None:
    first, whole, later = (statistics.median(each[place] for each in rounds) for place in range(3))
    slowest = max(max(each.first, each.later) for each in rounds)
    size = rounds[-1].size // 1000
    sys.stdout.write(f"{title:14} {first:6.2f} s {whole:13.2f} s {later:6.2f} s {slowest:6.2f} s {size:5,} kB\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
