"""Compare loads into lake tables: this package, and Spark's own connectors with the trigger `availableNow`.

Every contender loads the same topic once in every round, in turn, on local[*] and on a standalone cluster of two
executors. Medians are compared; the rows of every table are counted by another reader. A load of 1,000 records is each
contender's start.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from benchmarks.class_archives import class_archives
from benchmarks.compare import checkpoint
from benchmarks.datasets import Dataset
from benchmarks.lake_contenders import CONTENDERS, Contender, Figures, Task, package
from benchmarks.limits import seconds_of_reading
from benchmarks.load import Load
from benchmarks.machine import WRITTEN, describe
from benchmarks.measured import SMALL
from benchmarks.processor_time import ProcessorTime
from benchmarks.report import as_text, print_lines
from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer
from devstack.spark import SparkStandalone
from devstack.spark_jars import spark_with_delta, spark_with_iceberg

_TABLE = "this package, SqlTable (COPY)"
_AVAILABLE_NOW = "availableNow, "
_OF_COPY = 0.1
_FASTER, _FASTER_WITHOUT_START = 2.5, 3.0
_MEMORY = 500 * 2**20
_CLUSTER_CONF = {"spark.executor.cores": "1", "spark.executor.memory": "1g"}
# The same rows in few files and in many.
_SLICES = (2_500_000, 250_000, 50_000)


class Cell(NamedTuple):
    """Where a contender loads how much."""

    master: str
    records: int
    contender: str


Results = dict[Cell, list[Figures]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.lake", description=__doc__)
    parser.add_argument("--records", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--masters", nargs="+", choices=("local", "cluster"), default=["local", "cluster"])
    parser.add_argument("--write", action="store_true", help="write lake.json and lake.txt into docs/benchmarks")
    options = parser.parse_args()
    homes = (spark_with_delta().home, spark_with_iceberg().home)
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaBroker())
        postgres = stack.enter_context(PostgresServer(fsync=True))
        home = stack.enter_context(AirflowHome(config={"logging.logging_level": "WARNING"}))
        masters: dict[str, Mapping[Path, str]] = {"local": dict.fromkeys(homes, "local[*]")}
        if "cluster" in options.masters:
            clusters = {home: stack.enter_context(SparkStandalone(memory="4g", home=home)) for home in homes}
            masters["cluster"] = {home: cluster.master_url for home, cluster in clusters.items()}
        machine = describe(postgres)
        print_lines(", ".join(f"{name} {value}" for name, value in machine.items()))
        datasets = [Dataset("orders", SMALL), Dataset("orders", options.records)]
        for dataset in datasets:
            dataset.produce(kafka.bootstrap_servers)
            # The first to read a topic would pay for a broker that has yet to compile what it does.
            seconds_of_reading(Load(kafka, postgres, dataset, "postgres"))
        env = home.env | stack.enter_context(class_archives(spark_with_delta().env | home.env))
        bench = Bench(kafka, postgres, env, masters)
        for number in range(options.rounds):
            for master in options.masters:
                for dataset in datasets:
                    for name, contender in CONTENDERS.items():
                        bench.measure(master, dataset, name, contender)
            for slice_offsets in _SLICES:
                name = f"this package, IcebergTable, slices of {slice_offsets:,}"
                bench.measure(options.masters[0], datasets[1], name, package("iceberg", slice_offsets))
            print_lines(f"round {number + 1} of {options.rounds} is done")
        lines = list(report(bench.results))
        print_lines("", *lines)
        if options.write:
            write(bench.results, machine, options.rounds, lines)
    return 0


class Bench:
    """The servers, and what was measured."""

    def __init__(
        self,
        kafka: KafkaBroker,
        postgres: PostgresServer,
        env: Mapping[str, str],
        masters: Mapping[str, Mapping[Path, str]],
    ) -> None:
        self.kafka, self.postgres, self.env, self.masters = kafka, postgres, env, masters
        self.results: Results = {}
        self._loads = 0

    def measure(self, master: str, dataset: Dataset, name: str, contender: Contender) -> None:
        """Let a contender load a data set into an empty table."""
        self._loads += 1
        database = f"lake-{self._loads}"
        self.postgres.create_database(database)
        # What an earlier contender, or the producer, wrote is not flushed during this one's time.
        checkpoint(self.postgres)
        os.sync()
        self._keep_in_memory(dataset)
        directory = Path(tempfile.mkdtemp(prefix="benchmark-lake-"))
        conf = _CLUSTER_CONF if master == "cluster" else {}
        task = Task(self.kafka, self.postgres, dataset, self.masters[master], conf, directory, database, self.env)
        with ProcessorTime() as processor:
            figures = contender(task)
        figures = figures._replace(processor=processor.seconds)
        self.results.setdefault(Cell(master, dataset.records, name), []).append(figures)
        print_lines(f"  {master}, {dataset.records:,}: {name}: {figures.seconds:.1f} s")
        shutil.rmtree(directory)
        self.postgres.drop_database(database)

    def _keep_in_memory(self, dataset: Dataset) -> None:
        """Have the kernel read a topic's log. What was not read for minutes may be on the disk alone, and the next
        contender would wait for it.
        """
        for segment in self.kafka.directory.glob(f"log/{dataset.topic}-*/*.log"):
            with segment.open("rb", buffering=0) as file:
                while file.read(1 << 22):
                    pass


def report(results: Results) -> Iterator[str]:
    """Return a table for each master, and which bars are met."""
    for master, records in dict.fromkeys((cell.master, cell.records) for cell in results if cell.records > SMALL):
        yield f"{records:,} records of 150 bytes, 4 partitions, {master}"
        yield f"  {'':50} {'median':>8} {'no start':>9} {'processor':>11} {'commit':>8} {'files':>6} {'worker':>8}"
        found = {cell: results[cell] for cell in results if (cell.master, cell.records) == (master, records)}
        for cell, figures in found.items():
            line = f"  {cell.contender:50} {_seconds(figures):6.1f} s {_without_start(results, cell):7.1f} s"
            line += f" {statistics.median(each.processor for each in figures):9.1f} s"
            if figures[0].commit is not None:
                memory = max(each.memory or 0 for each in figures) / 2**20
                line += f" {_commit(figures):6.2f} s {figures[0].files:6} {memory:5.0f} MB"
            else:
                line += f" {'':8} {figures[0].files:6}"
            yield line
        yield from map("  {}".format, _bars(results, master, records))
        yield ""


def _bars(results: Results, master: str, records: int) -> Iterator[str]:
    for name in ("Iceberg", "Delta"):
        own = Cell(master, records, f"this package, {name}Table")
        copy = Cell(master, records, _TABLE)
        if own in results and copy in results:
            of_copy = _commit(results[own]) / _commit(results[copy])
            yield _verdict(of_copy <= _OF_COPY, f"{name}: commit is {of_copy:.3f} of that of COPY (at most {_OF_COPY})")
            memory = max(figures.memory or 0 for figures in results[own])
            yield _verdict(memory < _MEMORY, f"{name}: the worker has {memory / 2**20:.0f} MB (under 500)")
        for other in (f"{name}'s connector", "Parquet"):
            against = Cell(master, records, _AVAILABLE_NOW + other)
            if own not in results or against not in results:
                continue
            whole = _seconds(results[against]) / _seconds(results[own])
            without = _without_start(results, against) / _without_start(results, own)
            met = whole >= _FASTER and without >= _FASTER_WITHOUT_START
            yield _verdict(
                met,
                f"{name}: {whole:.2f} times as fast as {against.contender} (at least {_FASTER}), {without:.2f} without "
                f"the start (at least {_FASTER_WITHOUT_START:g})",
            )


def _verdict(met: bool, what: str) -> str:
    return f"{'met' if met else 'missed':8}{what}"


def _seconds(figures: list[Figures]) -> float:
    return statistics.median(each.seconds for each in figures)


def _commit(figures: list[Figures]) -> float:
    return statistics.median(each.commit or 0.0 for each in figures)


def _without_start(results: Results, cell: Cell) -> float:
    small = cell._replace(records=SMALL)
    start = _seconds(results[small]) if small in results else 0.0
    return _seconds(results[cell]) - start


def write(results: Results, machine: dict[str, str], rounds: int, lines: list[str]) -> None:
    """Write the measurements as JSON and text."""
    WRITTEN.mkdir(parents=True, exist_ok=True)
    document = {
        "command": shlex.join(["python", "-m", "benchmarks.lake", *sys.argv[1:]]),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "rounds": rounds,
        "loads": [cell._asdict() | {"figures": [each._asdict() for each in results[cell]]} for cell in results],
    }
    (WRITTEN / "lake.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    head = ", ".join(f"{name} {value}" for name, value in machine.items())
    (WRITTEN / "lake.txt").write_text(as_text([head, "", *lines]), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
