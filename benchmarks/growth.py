"""What grows, and how much: planning with partitions, loads with the ledger, memory with records.

Broker, Postgres with fsync, and Spark are on this machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from itertools import pairwise
from multiprocessing.process import BaseProcess
from typing import Any

import psutil
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Json, Limits, Pipeline, SessionLauncher, SqlTable, load
from airflow_kafka_offsets.loading.context import OnCommit
from airflow_kafka_offsets.loading.pipeline import LoadOptions
from airflow_kafka_offsets.spark import daemon
from airflow_kafka_offsets.spark.job import Launcher
from benchmarks import machine
from benchmarks.datasets import COLUMNS, Dataset
from benchmarks.lag import create_topics
from benchmarks.launch_time import seconds_until_launch
from benchmarks.machine import WRITTEN
from benchmarks.measured import SMALL
from benchmarks.report import as_text, print_lines
from benchmarks.rewind import fill, make_history
from benchmarks.state_size import Size, Work
from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer
from devstack.topics import delete_topic

_GROUP = "loader"
_lines: list[str] = []
_KINDS = ("worker", "JVM", "driver", "Python worker")


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.growth", description=__doc__)
    parser.add_argument("--what", nargs="+", choices=_ALL, default=list(_ALL))
    parser.add_argument("--partitions", type=int, nargs="+", default=[10, 100, 1_000, 2_000, 10_000])
    parser.add_argument("--history", type=int, nargs="+", default=[10, 1_000_000], help="batches in the ledger")
    parser.add_argument("--batches", type=int, default=1_000, help="small batches one after another")
    parser.add_argument("--records", type=int, nargs="+", default=[1_000_000, 20_000_000])
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each; medians are printed")
    parser.add_argument(
        "--write", action="store_true", help="write what is printed into docs/benchmarks/growth.txt too"
    )
    options = parser.parse_args()
    record_lines(machine.in_short())
    for name in options.what:
        with KafkaBroker(heap="1g") as kafka, PostgresServer(fsync=True) as postgres:
            _ALL[name](kafka, postgres, options)
    if options.write:
        WRITTEN.mkdir(parents=True, exist_ok=True)
        (WRITTEN / "growth.txt").write_text(as_text(_lines), encoding="utf-8")
    return 0


def planning(kafka: KafkaBroker, postgres: PostgresServer, options: argparse.Namespace) -> None:
    """Measure from the call of `load` until Spark would start: read state and log ends, plan, store the plan."""
    engine = sa.create_engine(postgres.create_database("planning"))
    record_lines("", f"{'partitions':>10} {'planned in':>12}")
    for partitions in options.partitions:
        topics = create_topics(kafka, partitions)
        for topic, size in topics.items():
            fill(kafka, topic, size)
        seconds = [_planned_in(kafka, engine, f"{partitions}-{number}", topics) for number in range(options.rounds)]
        record_lines(f"{partitions:10,} {statistics.median(seconds):10.2f} s")
    engine.dispose()


def _planned_in(kafka: KafkaBroker, engine: Engine, group_id: str, topics: Iterable[str]) -> float:
    return seconds_until_launch(
        lambda launcher: _load(kafka.bootstrap_servers, engine, launcher, *topics, group_id=group_id)
    )


def history(kafka: KafkaBroker, postgres: PostgresServer, options: argparse.Namespace) -> None:
    """Measure loads of 1,000 records in a running session, after different numbers of batches of the group, in turn."""
    dataset = Dataset("orders", SMALL)
    dataset.produce(kafka.bootstrap_servers)
    taken: dict[int, list[float]] = {batches: [] for batches in options.history}
    with _session() as launcher:
        engines = {}
        for batches in options.history:
            engines[batches] = sa.create_engine(postgres.create_database(f"history-{batches}"))
            _load(kafka.bootstrap_servers, engines[batches], launcher, dataset.topic)
            make_history(engines[batches], _GROUP, batches)
        for _ in range(options.rounds):
            dataset.append(kafka.bootstrap_servers)
            for batches, engine in engines.items():
                began = time.monotonic()
                _load(kafka.bootstrap_servers, engine, launcher, dataset.topic)
                taken[batches].append(time.monotonic() - began)
    record_lines("", f"{'batches before':>14} {'load of 1,000 records':>22}")
    for batches, seconds in taken.items():
        engines[batches].dispose()
        record_lines(f"{batches:14,} {statistics.median(seconds):20.2f} s")


def batches(kafka: KafkaBroker, postgres: PostgresServer, options: argparse.Namespace) -> None:
    """Measure batches of 100 records in a running session, one after the other."""
    dataset = Dataset("orders", 100 * options.batches)
    dataset.produce(kafka.bootstrap_servers)
    engine = sa.create_engine(postgres.create_database("batches"))
    ends = []
    with _session() as launcher:
        _load(
            kafka.bootstrap_servers,
            engine,
            launcher,
            dataset.topic,
            limits=Limits(max_records=100),
            on_commit=lambda _: ends.append(time.monotonic()),
        )
    engine.dispose()
    seconds = [after - before for before, after in pairwise(ends)]
    tenth = max(len(seconds) // 10, 1)
    record_lines("", f"{'batches':>10} {'all':>10} {'of the first tenth':>20} {'of the last':>12}")
    record_lines(
        f"{len(ends):10,} {ends[-1] - ends[0]:8.1f} s {statistics.median(seconds[:tenth]):18.3f} s "
        f"{statistics.median(seconds[-tenth:]):10.3f} s"
    )


_GROWN = {"nothing": 0, "partitions": 100, "groups": 500, "batches": 200_000, "dead_letters": 1_000_000}


def state(kafka: KafkaBroker, postgres: PostgresServer, options: argparse.Namespace) -> None:
    """Measure what works with the state tables where all is small, and where one thing has grown."""
    # The first time imports and compiles what all use.
    for name, count in (("warm-up", 0), *_GROWN.items()):
        size = Size(**{name: count}) if count else Size()
        engine = sa.create_engine(postgres.create_database(f"state-{name}"))
        taken = Work(size, engine, kafka.bootstrap_servers, name).seconds()
        engine.dispose()
        postgres.drop_database(f"state-{name}")
        if name == "warm-up":
            record_lines("", f"{'what has grown':>22} {' '.join(f'{work:>9}' for work in taken)}")
            continue
        grown = f"{count:,} {name.replace('_', ' ')}" if count else name
        record_lines(f"{grown:>22} {' '.join(f'{seconds:7.3f} s' for seconds in taken.values())}")


def memory(kafka: KafkaBroker, postgres: PostgresServer, options: argparse.Namespace) -> None:
    """Measure the largest resident sizes of the processes of a load with spark-submit."""
    record_lines("", f"{'records':>12} {'worker':>10} {'driver, JVM':>12} {'Python':>10} {'each Python worker':>20}")
    for records in options.records:
        dataset = Dataset("orders", records)
        dataset.produce(kafka.bootstrap_servers)
        url = postgres.create_database(f"memory-{records}")
        process = multiprocessing.get_context("spawn").Process(
            target=load_in_a_process, args=(kafka.bootstrap_servers, url, dataset.topic)
        )
        process.start()
        peaks = _peaks(process)
        assert process.exitcode == 0
        delete_topic(kafka.bootstrap_servers, dataset.topic)
        postgres.drop_database(f"memory-{records}")
        columns = zip(_KINDS, (10, 12, 10, 20), strict=True)
        sizes = " ".join(f"{peaks[kind] / 2**20:{width - 3},.0f} MB" for kind, width in columns)
        record_lines(f"{records:12,} {sizes}")


def load_in_a_process(bootstrap_servers: str, url: str, topic: str) -> None:
    """Load as a worker of Airflow does, which runs every task in its own process."""
    with AirflowHome(config={"logging.logging_level": "WARNING"}) as home:
        os.environ.update(home.env)
        os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps({"conn_type": "spark", "host": "local[*]"})
        # Airflow reads AIRFLOW_HOME at its first import.
        from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher

        engine = sa.create_engine(url)
        _load(bootstrap_servers, engine, SparkSubmitLauncher("spark_default"), topic)
        engine.dispose()


def _peaks(process: BaseProcess) -> Counter[str]:
    """Return the largest resident size of each kind of process, sampled 20 times a second until the process ends."""
    peaks: Counter[str] = Counter()
    while process.is_alive():
        worker = psutil.Process(process.pid)
        for child in [worker, *worker.children(recursive=True)]:
            with suppress(psutil.Error):
                kind = "worker" if child == worker else _kind(child.cmdline())
                peaks[kind] = max(peaks[kind], child.memory_info().rss)
        process.join(0.05)
    return peaks


def _kind(command: list[str]) -> str:
    words = " ".join(command)
    if "org.apache.spark.deploy.SparkSubmit" in words:
        return "JVM"
    return "driver" if "application.py" in words else "Python worker" if daemon.MODULE in words else "other"


@contextmanager
def _session() -> Iterator[SessionLauncher]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        # A thousand batches print their progress.
        with redirect_stdout(StringIO()):
            yield SessionLauncher(spark)
    finally:
        spark.stop()


def _load(
    bootstrap_servers: str,
    engine: Engine,
    launcher: Launcher,
    *topics: str,
    on_commit: OnCommit | None = None,
    group_id: str = _GROUP,
    **options: Any,
) -> None:
    load(
        Pipeline(group_id=group_id, topics=topics, value_format=Json(COLUMNS), sink=SqlTable("orders")),
        LoadOptions(**options),
        kafka_config={"bootstrap.servers": bootstrap_servers},
        engine=engine,
        launcher=launcher,
        on_commit=on_commit,
    )


def record_lines(*lines: str) -> None:
    """Print lines, and keep them for `--write`."""
    _lines.extend(lines)
    print_lines(*lines)


_ALL = {"planning": planning, "history": history, "batches": batches, "state": state, "memory": memory}

if __name__ == "__main__":
    sys.exit(main())
