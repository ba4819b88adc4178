"""A thousand armed lag triggers in a real triggerer: its memory, its polls, and how long its event loop was held up.

Airflow, broker and Postgres are on this machine.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import psutil
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from benchmarks import machine
from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from devstack.postgres import PostgresServer
from devstack.process import wait_until

TOPICS, PARTITIONS = 5, 4
_MANY = 10**12

DAGS = """
from datetime import datetime, timedelta
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow_kafka_offsets import KafkaLagEventTrigger

assets = [
    Asset(
        f"asset_{{number}}",
        watchers=[
            AssetWatcher(
                name=f"watcher_{{number}}",
                trigger=KafkaLagEventTrigger(
                    group_id=f"group_{{number}}",
                    conn_id="warehouse",
                    min_lag={many},
                    max_delay=timedelta(days=365),
                    poll_interval=timedelta(seconds={interval}),
                ),
            )
        ],
    )
    for number in range({triggers})
]
with DAG("watching", schedule=assets, start_date=datetime(2026, 1, 1)):
    pass
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.triggers", description=__doc__)
    parser.add_argument("--triggers", type=int, default=1000, help="each for a group of its own")
    parser.add_argument("--interval", type=float, default=10, help="seconds between polls")
    parser.add_argument("--polls", type=int, default=12, help="how many are measured")
    options = parser.parse_args()
    with KafkaBroker() as kafka, PostgresServer() as postgres, tempfile.TemporaryDirectory() as dags:
        url = postgres.create_database("warehouse")
        engine = sa.create_engine(url)
        topics = [f"orders-{number}" for number in range(TOPICS)]
        for topic in topics:
            produce_orders(kafka.bootstrap_servers, topic, 1000, partitions=PARTITIONS)
        store_positions(engine, kafka, topics, options.triggers)
        engine.dispose()
        metrics = Metrics()
        baseline = measured(kafka, postgres, metrics, Path(dags), 0, options)
        found = measured(kafka, postgres, metrics, Path(dags), options.triggers, options)
    sys.stdout.write(
        f"{machine.in_short()}; {TOPICS} topics of {PARTITIONS} partitions\n\n"
        f"{'triggers':>8} {'memory of the process':>22} {'polls':>6} {'each took':>10} "
        f"{'loop blocked for over 0.1 s':>28}\n"
    )
    for triggers, (memory, polls, seconds, blocked) in ((0, baseline), (options.triggers, found)):
        longest = f"{len(blocked)} times, at most {max(blocked):.2f} s" if blocked else "never"
        sys.stdout.write(f"{triggers:8,} {memory / 2**20:19,.0f} MB {polls:6} {seconds:8.2f} s {longest:>28}\n")
    return 0


class Metrics:
    """Receives Airflow's StatsD metrics, and keeps the durations of polls."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._polls: list[float] = []
        threading.Thread(target=self._receive, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def take(self) -> list[float]:
        """Return the seconds of each poll since the last call."""
        taken, self._polls = self._polls, []
        return taken

    def _receive(self) -> None:
        while True:
            line = self._socket.recv(65536).decode()
            found = re.search(r"kafka_offsets\.poll\.duration:([\d.]+)\|ms", line)
            if found is not None:
                self._polls.append(float(found[1]) / 1000)


def store_positions(engine: Engine, kafka: KafkaBroker, topics: list[str], groups: int) -> None:
    """Store positions of every group in every partition of its topic, all at the beginning."""
    tables, now = Tables(), datetime.now(UTC)
    initialize(Ledger(engine, tables))
    cluster = Cluster({"bootstrap.servers": kafka.bootstrap_servers})
    cluster_id, logs = cluster.cluster_id(), cluster.logs(topics)
    names = [f"group_{number}" for number in range(groups)]
    with engine.begin() as conn:
        conn.execute(
            tables.consumer_groups.insert(),
            [{"group_id": name, "cluster_id": cluster_id, "generation": 0, "epoch": 0} for name in names],
        )
        conn.execute(
            tables.consumed_offsets.insert(),
            [
                {
                    "consumer_group": name,
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "offset_value": 0,
                    "topic_id": log.topic_id,
                    "batch_id": 1,
                    "updated_at": now,
                }
                for number, name in enumerate(names)
                for tp, log in logs.items()
                if tp.topic == topics[number % len(topics)]
            ],
        )


def measured(
    kafka: KafkaBroker,
    postgres: PostgresServer,
    metrics: Metrics,
    dags: Path,
    triggers: int,
    options: argparse.Namespace,
) -> tuple[int, int, float, list[float]]:
    """Run Airflow with a number of triggers.

    :return: the memory of the triggerer's process in bytes, the number of polls, the median seconds of a poll, and the
        seconds of each time that the event loop was blocked
    """
    code = DAGS.format(many=_MANY, interval=options.interval, triggers=triggers)
    (dags / "watching.py").write_text(code, encoding="utf-8")
    connections = {
        "kafka_default": json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers}}),
        "warehouse": postgres.airflow_uri("warehouse"),
    }
    config = {
        "triggerer.capacity": str(triggers + 10),
        # The watchdog runs every 0.1 s.
        "triggerer.blocked_main_thread_warning_threshold": "0.2",
        "metrics.statsd_on": "True",
        "metrics.statsd_host": "127.0.0.1",
        "metrics.statsd_port": str(metrics.port),
        "core.dags_are_paused_at_creation": "False",
    }
    with AirflowHome(dags=dags, connections=connections, config=config) as home:
        home.start()
        (triggerer,) = [one for one in home.components if one.name == "airflow triggerer"]

        def log() -> str:
            return (home.directory / "triggerer.log").read_text(encoding="utf-8", errors="replace")

        def running() -> bool:
            with closing(sqlite3.connect(f"file:{home.directory}/airflow.db?mode=ro", uri=True, timeout=30)) as conn:
                ((stored,),) = conn.execute("SELECT count(*) FROM trigger WHERE triggerer_id IS NOT NULL")
            return bool(stored >= triggers) and log().count("trigger ID") >= triggers

        wait_until(running, 600, "the triggers to run", interval=2)
        # Until here Airflow loads and starts every trigger.
        time.sleep(2 * options.interval)
        began = len(log())
        metrics.take()
        time.sleep(options.interval * options.polls)
        polls = metrics.take()
        found = log()[began:]
        process = psutil.Process(triggerer.pid)
        memory = [one.memory_full_info().uss for one in (process, *process.children(recursive=True))]
    blocked = [float(seconds) - 0.1 for seconds in re.findall(r"async thread was blocked for ([\d.]+) seconds", found)]
    return max(memory), len(polls), statistics.median(polls) if polls else 0.0, blocked


if __name__ == "__main__":
    sys.exit(main())
