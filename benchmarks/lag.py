"""Seconds of one look at the lag of a group of many partitions, with what Kafka and Postgres take of it, and without.

Broker and Postgres are on this machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import sqlalchemy as sa

from airflow_kafka_offsets.core.offsets import PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.lag.measure import measure_lag
from airflow_kafka_offsets.lag.report import Committed, LagQuestion, evaluate
from airflow_kafka_offsets.lag.thresholds import LagWatch
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.rewinding.execution import execute_rewind
from airflow_kafka_offsets.rewinding.previewing import preview_rewind
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from benchmarks import machine
from benchmarks.rewind import fill
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer
from devstack.topics import create_topic

_LARGEST_TOPIC = 2_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.lag", description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=[10, 1_000, 10_000], help="of each group")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each; medians are printed")
    options = parser.parse_args()
    with KafkaBroker(heap="1g") as kafka, PostgresServer() as postgres:
        engine = sa.create_engine(postgres.create_database("lag"))
        config = {"bootstrap.servers": kafka.bootstrap_servers}
        sys.stdout.write(f"{machine.in_short()}\n\n")
        sys.stdout.write(f"{'partitions':>10} {'lag':>8} {'lag, delay and headroom':>24} {'thresholds alone':>17}\n")
        for partitions in options.partitions:
            group, topics = f"group-{partitions}", create_topics(kafka, partitions)
            preview = preview_rewind(
                group,
                Scenario.of("to-latest"),
                engine=engine,
                kafka_config=config,
                scope=dict.fromkeys(topics),
                new_group=True,
            )
            execute_rewind(preview, engine=engine)
            for topic, size in topics.items():
                fill(kafka, topic, size)
            cluster = Cluster(config)

            def look(times: bool, group: str = group, cluster: Cluster = cluster, partitions: int = partitions) -> None:
                report = measure_lag(Ledger(engine), cluster, LagQuestion(group, times=times))
                assert (len(report.partitions), report.lag) == (partitions, 10 * partitions)

            seconds = [
                median(partial(look, False), options.rounds),
                median(partial(look, True), options.rounds),
                median(pure(partitions), options.rounds),
            ]
            sys.stdout.write(f"{partitions:10,} {seconds[0]:6.2f} s {seconds[1]:22.2f} s {seconds[2]:15.2f} s\n")
            sys.stdout.flush()
        engine.dispose()
    return 0


def create_topics(kafka: KafkaBroker, partitions: int) -> dict[str, int]:
    """Create topics with this number of partitions in total, none of them very large.

    :return: the number of partitions of each topic
    """
    starts = range(0, partitions, _LARGEST_TOPIC)
    topics = {f"topic-{partitions}-{first}": min(_LARGEST_TOPIC, partitions - first) for first in starts}
    for topic, size in topics.items():
        create_topic(kafka.bootstrap_servers, topic, size)
    return topics


def median(work: Callable[[], None], rounds: int) -> float:
    """Return the median of the seconds that a function takes."""
    taken = []
    for _ in range(rounds):
        start = time.monotonic()
        work()
        taken.append(time.monotonic() - start)
    return statistics.median(taken)


def pure(partitions: int) -> Callable[[], None]:
    """Return the evaluation alone, without Kafka and database."""
    now = datetime.now(UTC)
    places = [TopicPartition("topic", number) for number in range(partitions)]
    committed = {tp: Committed(Position(5), now - timedelta(hours=1), now) for tp in places}
    logs = {tp: PartitionLog(0, 10) for tp in places}
    thresholds = LagWatch(
        group_id="lag",
        conn_id="warehouse",
        min_lag=10**9,
        max_delay=timedelta(days=1),
        min_headroom=timedelta(seconds=1),
    )

    def work() -> None:
        report = evaluate(
            committed, logs, now=now, waiting=dict.fromkeys(places, now), retention={"topic": timedelta(7)}
        )
        assert thresholds.judge(report).met is False
        report.summary()

    return work


if __name__ == "__main__":
    sys.exit(main())
