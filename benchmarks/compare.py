"""Compare loads into Postgres: this package, its alternatives, and the limits of the servers.

Broker, Postgres (fsync on) and Spark are on this machine. In every round, every contender loads every data set
once, in turn, so that a slow minute of the machine affects all of them. Medians are compared. Every load begins with an
empty database, and its rows are checked at the end. Every run begins with a small data set: the time of its loads
is each contender's start.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime

from benchmarks.bars import judge
from benchmarks.class_archives import class_archives
from benchmarks.datasets import Dataset
from benchmarks.limits import seconds_of_reading, seconds_of_writing
from benchmarks.load import Load
from benchmarks.machine import WRITTEN, describe
from benchmarks.measured import PACKAGE, READING, SMALL, START, WRITING, Measured
from benchmarks.plot import chart
from benchmarks.processor_time import ProcessorTime
from benchmarks.report import as_text, print_lines, table, verdict
from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer
from devstack.topics import delete_topic

FULL = ("orders:200000", "orders:5000000", "wide:1000000", "many-partitions:1000000", "skewed:1000000")
# Spark's log would bury the tables.
QUIET = {"logging.logging_level": "WARNING"}

Contenders = Mapping[str, Callable[[Load], None]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.compare", description=__doc__)
    parser.add_argument("--datasets", type=Dataset.parse, nargs="+", default=[Dataset.parse(text) for text in FULL])
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each; medians are compared")
    parser.add_argument("--write", action="store_true", help="write compare.json, .txt and .svg into docs/benchmarks")
    options = parser.parse_args()
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaBroker())
        postgres = stack.enter_context(PostgresServer(fsync=True))
        home = stack.enter_context(AirflowHome(config=QUIET))
        os.environ.update(home.env)
        os.environ.update(stack.enter_context(class_archives(home.env)))
        os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps({"conn_type": "spark", "host": "local[*]"})
        # Airflow reads AIRFLOW_HOME at its first import.
        from benchmarks.contenders import contenders_of

        machine = describe(postgres)
        print_lines(", ".join(f"{name} {value}" for name, value in machine.items()))
        results: list[Measured] = []
        for dataset in (Dataset("orders", SMALL), *options.datasets):
            dataset.produce(kafka.bootstrap_servers)
            measured = Measured(dataset, results[0] if results else None)
            measure(kafka, postgres, measured, contenders_of(dataset), options.rounds)
            delete_topic(kafka.bootstrap_servers, dataset.topic)
            results.append(measured)
            print_lines("", *report_of(measured))
            if options.write:  # after each data set: the whole run takes long
                write(results, machine, options.rounds)
    return 0


def measure(
    kafka: KafkaBroker, postgres: PostgresServer, measured: Measured, contenders: Contenders, rounds: int
) -> None:
    """Let every contender load a data set, in several rounds."""
    dataset = measured.dataset
    small = dataset.records <= SMALL
    for number in range(rounds):
        for name, contender in contenders.items():
            database = f"{dataset.topic}-{number}"
            postgres.create_database(database)
            load = Load(kafka, postgres, dataset, database)
            # Postgres must not flush an earlier contender's writes during this one's time.
            checkpoint(postgres)
            began = time.monotonic()
            with ProcessorTime() as processor:
                contender(load)
            measured.add(name, time.monotonic() - began, processor.seconds)
            if name != START:
                load.check()
            if name == PACKAGE and not small:
                measured.add(READING, seconds_of_reading(load))
                measured.add(WRITING, seconds_of_writing(load))
            postgres.drop_database(database)


def report_of(measured: Measured) -> Iterator[str]:
    yield from table(measured)
    yield from map(verdict, judge(measured))


def checkpoint(postgres: PostgresServer) -> None:
    with postgres.connect() as conn:
        conn.execute("CHECKPOINT")


def write(results: list[Measured], machine: dict[str, str], rounds: int) -> None:
    """Write the measurements as JSON, text and a chart."""
    WRITTEN.mkdir(parents=True, exist_ok=True)
    document = {
        "command": shlex.join(["python", "-m", "benchmarks.compare", *sys.argv[1:]]),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "rounds": rounds,
        "datasets": [as_plain(measured) for measured in results],
    }
    (WRITTEN / "compare.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    lines = [", ".join(f"{name} {value}" for name, value in machine.items())]
    for measured in results:
        lines += ["", *report_of(measured)]
    (WRITTEN / "compare.txt").write_text(as_text(lines), encoding="utf-8")
    where = f"{machine['processor']}, {machine['cores']} cores, {machine['memory']}; medians of {rounds} rounds"
    (WRITTEN / "compare.svg").write_text(chart(results, where), encoding="utf-8")


def as_plain(measured: Measured) -> dict[str, object]:
    return {
        "dataset": measured.dataset.name,
        "records": measured.dataset.records,
        "title": measured.dataset.title,
        "seconds": {name: [round(seconds, 3) for seconds in measured.seconds[name]] for name in measured.names},
        "processor": {name: [round(seconds, 3) for seconds in of_name] for name, of_name in measured.processor.items()},
        "bars": [bar._asdict() | {"met": bar.met} for bar in judge(measured)],
    }


if __name__ == "__main__":
    sys.exit(main())
