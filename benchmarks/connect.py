"""Compare loads through `spark-submit` with loads through a server of Spark Connect, and with sessions that are kept,
as a notebook keeps them.

Broker, Postgres (fsync on), the server and Spark are on this machine. In every round every contender loads every data
set once, in turn, into an empty database, and medians are compared. The first two load in a process of their own each
time, as tasks of Airflow do: the import of PySpark's client is part of their time. A session has had a small load
before the first round.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from multiprocessing.connection import Connection
from typing import NamedTuple

import sqlalchemy as sa

from airflow_kafka_offsets import Json, Pipeline, SessionLauncher, SqlTable
from airflow_kafka_offsets import load as load_batches
from airflow_kafka_offsets.spark.job import Launcher
from benchmarks.bars import Bar
from benchmarks.compare import QUIET, checkpoint
from benchmarks.datasets import COLUMNS, Dataset
from benchmarks.load import Load
from benchmarks.machine import WRITTEN, describe
from benchmarks.measured import SMALL, Measured
from benchmarks.report import as_text, print_lines, verdict
from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer
from devstack.spark_connect import SparkConnectServer
from devstack.topics import delete_topic

SUBMIT, CONNECT, MAILBOX = "spark-submit", "Spark Connect", "spark-submit, mailbox"
CLASSIC_SESSION, CONNECT_SESSION = "classic session, kept", "Spark Connect session, kept"

_LARGE = 200_000
_AT_MOST = {SMALL: 0.25, _LARGE: 0.5}

_MOST_SECONDS = 2.0

_PROCESSES = multiprocessing.get_context("forkserver")


class _Order(NamedTuple):
    """A load in a process of its own."""

    url: str
    bootstrap_servers: str
    topic: str
    conn_id: str
    environment: Mapping[str, str]


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.connect", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each; medians are compared")
    parser.add_argument(
        "--write", action="store_true", help="write what is printed into docs/benchmarks/connect.txt too"
    )
    options = parser.parse_args()
    # What a load imports in any case; PySpark is not among it.
    _PROCESSES.set_forkserver_preload(
        ["airflow_kafka_offsets.loading.load", "airflow_kafka_offsets.hooks.connections", "benchmarks.compare"]
    )
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaBroker())
        postgres = stack.enter_context(PostgresServer(fsync=True))
        os.environ.update(stack.enter_context(AirflowHome(config=QUIET)).env)
        server = stack.enter_context(SparkConnectServer())
        os.environ["AIRFLOW_CONN_SPARK_SUBMIT"] = json.dumps({"conn_type": "spark", "host": "local[*]"})
        os.environ["AIRFLOW_CONN_SPARK_CONNECT"] = json.dumps(server.connection)
        contenders = {
            SUBMIT: lambda load: _in_process(load, "spark_submit"),
            CONNECT: lambda load: _in_process(load, "spark_connect"),
            MAILBOX: lambda load: _in_process(load, MAILBOX),
            **_sessions(stack, server),
        }
        lines = [", ".join(f"{name} {value}" for name, value in describe(postgres).items())]
        print_lines(*lines)
        for dataset in (Dataset("orders", SMALL), Dataset("orders", _LARGE)):
            dataset.produce(kafka.bootstrap_servers)
            measured = _measure(kafka, postgres, Measured(dataset), contenders, options.rounds)
            delete_topic(kafka.bootstrap_servers, dataset.topic)
            found = ["", *_report(measured)]
            print_lines(*found)
            lines += found
    if options.write:
        (WRITTEN / "connect.txt").write_text(as_text(lines), encoding="utf-8")
    return 0


def _sessions(stack: ExitStack, server: SparkConnectServer) -> dict[str, Callable[[Load], float]]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    classic = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate()
    stack.callback(classic.stop)
    classic.sparkContext.setLogLevel("ERROR")
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    remote = ConnectSession.builder.remote(f"sc://{server.connection['host']}:{server.port}").create()
    stack.callback(remote.stop)
    launchers: dict[str, Launcher] = {
        CLASSIC_SESSION: SessionLauncher(classic),
        CONNECT_SESSION: SessionLauncher(remote),  # type: ignore[arg-type]  # PySpark does not declare it as a session
    }
    return {name: lambda load, launcher=launcher: _here(load, launcher) for name, launcher in launchers.items()}  # type: ignore[misc]


def _measure(
    kafka: KafkaBroker,
    postgres: PostgresServer,
    measured: Measured,
    contenders: Mapping[str, Callable[[Load], float]],
    rounds: int,
) -> Measured:
    """Let every contender load a data set, in several rounds; the first warms the sessions and the server up, and is
    not counted.
    """
    dataset = measured.dataset
    for number in range(rounds + 1):
        for name, contender in contenders.items():
            database = f"{dataset.topic}-{number}"
            postgres.create_database(database)
            load = Load(kafka, postgres, dataset, database)
            checkpoint(postgres)
            seconds = contender(load)
            load.check()
            if number:
                measured.add(name, seconds)
            postgres.drop_database(database)
    return measured


def _here(load: Load, launcher: Launcher) -> float:
    # A notebook would show it.
    with redirect_stdout(StringIO()):
        return _seconds(
            load.postgres.url(load.database), load.kafka.bootstrap_servers, load.dataset.topic, lambda: launcher
        )


def _in_process(load: Load, conn_id: str) -> float:
    order = _Order(
        load.postgres.url(load.database),
        load.kafka.bootstrap_servers,
        load.dataset.topic,
        conn_id,
        dict(os.environ),
    )
    ours, theirs = _PROCESSES.Pipe()
    process = _PROCESSES.Process(target=_obey, args=(order, theirs))
    process.start()
    theirs.close()
    seconds: float = ours.recv()
    process.join()
    return seconds


def _obey(order: _Order, pipe: Connection) -> None:
    os.environ.update(order.environment)
    with redirect_stdout(StringIO()):
        seconds = _seconds(order.url, order.bootstrap_servers, order.topic, lambda: _launcher(order.conn_id))
    pipe.send(seconds)


def _launcher(name: str) -> Launcher:
    from airflow_kafka_offsets.hooks.connections import make_launcher

    if name != MAILBOX:
        return make_launcher(name, name="benchmark")
    from benchmarks.mailbox import MailboxLauncher

    return MailboxLauncher("spark_submit")


def _seconds(url: str, bootstrap_servers: str, topic: str, launcher: Callable[[], Launcher]) -> float:
    """Return how long a load takes, from the making of the launcher to the end of the session."""
    engine = sa.create_engine(url)
    pipeline = Pipeline(group_id="benchmark", topics=(topic,), value_format=Json(COLUMNS), sink=SqlTable("orders"))
    began = time.monotonic()
    load_batches(pipeline, kafka_config={"bootstrap.servers": bootstrap_servers}, engine=engine, launcher=launcher())
    seconds = time.monotonic() - began
    engine.dispose()
    return seconds


def _report(measured: Measured) -> Iterator[str]:
    yield measured.dataset.title
    yield f"  {'':34} {'median':>8}  {'of rounds':>14}"
    for name, seconds in measured.seconds.items():
        yield f"  {name:34} {measured.median(name):6.2f} s  {min(seconds):6.2f} to {max(seconds):5.2f}"
    asked = _AT_MOST[measured.dataset.records]
    more = measured.median(MAILBOX) - measured.median(SUBMIT)
    yield verdict(Bar(f"{MAILBOX}, seconds more than {SUBMIT}", _MOST_SECONDS, more, None, at_most=True))
    for name in (CONNECT, CLASSIC_SESSION, CONNECT_SESSION):
        ratio = measured.median(name) / measured.median(SUBMIT)
        yield verdict(Bar(f"{name} : {SUBMIT}", asked, ratio, None, at_most=True))


if __name__ == "__main__":
    sys.exit(main())
