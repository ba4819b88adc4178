"""What looks at the lag of many groups cost: processor time, requests to Kafka and statements in the database of each
look, for the modes of `KafkaLagSensor`.

* reschedule: each look is in a process of its own, with clients of its own; Airflow's start of a task comes on top
* poke: a process for each sensor, which keeps its Kafka client; the first look is as with reschedule
* deferrable: the triggerer's one poll for all sensors

Broker and Postgres are on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import sqlalchemy as sa

from airflow_kafka_offsets.hooks import connections
from airflow_kafka_offsets.kafka.config import client_log
from airflow_kafka_offsets.lag.shared_poll import SharedPoll
from airflow_kafka_offsets.lag.thresholds import LagWatch
from airflow_kafka_offsets.sensors.lag import KafkaLagSensor
from benchmarks import machine
from benchmarks.triggers import PARTITIONS, TOPICS, store_positions
from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from devstack.postgres import PostgresServer

_MANY = 10**12

_SENT = re.compile(r"Sent (\w+)Request")


class Cost(NamedTuple):
    """What one look costs.

    :param seconds: of the processor
    """

    seconds: float
    requests: float
    statements: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.sensors", description=__doc__)
    parser.add_argument("--groups", type=int, default=500, help="on one cluster and one database")
    parser.add_argument("--looks", type=int, default=20, help="of each kind; the costs are divided by them")
    options = parser.parse_args()
    with KafkaBroker() as kafka, PostgresServer() as postgres:
        engine = sa.create_engine(postgres.create_database("warehouse"))
        topics = [f"orders-{number}" for number in range(TOPICS)]
        for topic in topics:
            produce_orders(kafka.bootstrap_servers, topic, 1000, partitions=PARTITIONS)
        store_positions(engine, kafka, topics, options.groups)
        engine.dispose()
        with AirflowHome(connections={"warehouse": postgres.airflow_uri("warehouse")}) as home:
            os.environ.update(home.env)
            connect(kafka)
            found = measured(options.groups, options.looks)
            # Each request that librdkafka sends is a line of its log, which takes time.
            connect(kafka, debug="protocol")
            counted = measured(options.groups, options.looks)
    sys.stdout.write(f"{machine.in_short()}; {options.groups} groups, {TOPICS} topics of {PARTITIONS} partitions\n\n")
    sys.stdout.write(f"{'one look of one sensor':30} {'processor':>10} {'requests':>9} {'statements':>11}\n")
    for name, cost in found.items():
        requests = counted[name].requests
        sys.stdout.write(f"{name:30} {1000 * cost.seconds:7.1f} ms {requests:9.2f} {cost.statements:11.2f}\n")
    return 0


def connect(kafka: KafkaBroker, **others: str) -> None:
    extra = {"bootstrap.servers": kafka.bootstrap_servers, **others}
    os.environ["AIRFLOW_CONN_KAFKA_DEFAULT"] = json.dumps({"conn_type": "kafka", "extra": extra})


def measured(groups: int, looks: int) -> dict[str, Cost]:
    """Return what a look costs, by the mode."""
    client_log.setLevel(logging.DEBUG)
    client_log.propagate = False
    kept = sensor(0)
    kept.poke({})  # what is imported, and the client
    return {
        "reschedule, or first poke": cost(lambda: [sensor(number).poke({}) for number in range(looks)], looks),
        "poke": cost(lambda: [kept.poke({}) for _ in range(looks)], looks),
        "deferrable, of all": cost(lambda: asyncio.run(polls(groups, looks)), groups * looks),
    }


def sensor(number: int) -> KafkaLagSensor:
    return KafkaLagSensor(task_id="wait", group_id=f"group_{number}", conn_id="warehouse", min_lag=_MANY)


async def polls(groups: int, looks: int) -> None:
    """Have one poll answer all groups, a number of times."""
    poll = SharedPoll(
        open_cluster=partial(connections.kafka_cluster, "kafka_default"),
        open_engine=connections.database_engine,
        ended=lambda: None,
        polled=lambda *_: None,
        measured=lambda *_: None,
    )
    interval = timedelta(seconds=2)

    async def watch(number: int) -> None:
        watched = LagWatch(group_id=f"group_{number}", conn_id="warehouse", min_lag=_MANY, poll_interval=interval)
        results = poll.results(watched)
        for _ in range(looks):
            result = await anext(results)
            assert not isinstance(result, Exception), result
        await results.aclose()

    await asyncio.gather(*map(watch, range(groups)))
    await asyncio.sleep(1)


def cost(work: Callable[[], object], looks: int) -> Cost:
    """Return what a look of some work costs."""
    statements = 0

    def count(*_: object) -> None:
        nonlocal statements
        statements += 1

    sa.event.listen(sa.Engine, "before_cursor_execute", count)
    requests = Requests()
    client_log.addHandler(requests)
    began = time.process_time()
    work()
    seconds = time.process_time() - began
    client_log.removeHandler(requests)
    sa.event.remove(sa.Engine, "before_cursor_execute", count)
    return Cost(seconds / looks, requests.number / looks, statements / looks)


class Requests(logging.Handler):
    """Counts the requests that librdkafka logs."""

    number = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.number += bool(_SENT.search(record.getMessage()))


if __name__ == "__main__":
    sys.exit(main())
