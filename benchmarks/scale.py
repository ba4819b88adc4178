"""The parts of a very large load that one machine can show: a manifest of many slices, and a commit of many files.

No Spark is started: the driver's part of the work is measured where it grows with slices and files, not with records.
Broker and Postgres with fsync are on this machine. docs/speed.md says what follows for a large cluster.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import sqlalchemy as sa

from airflow_kafka_offsets import IcebergTable, Json, Pipeline, SqlTable, Staging, load
from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.ledger.install import create_missing
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.loading.pipeline import LoadOptions
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.spark.driver import stage_here, write_manifest
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.progress import write_slice
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import MANIFEST, Manifest, SliceRead, StagedFile
from airflow_kafka_offsets.staging.rows import TargetColumns
from benchmarks import machine
from benchmarks.datasets import COLUMNS, Dataset
from benchmarks.machine import WRITTEN
from benchmarks.report import as_text, print_lines
from benchmarks.rewind import make_history
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer

_COMMIT = "SELECT sum(extract(epoch FROM committed_at - staged_at)) FROM offset_batches"

_PARTITIONS, _SLICE_OFFSETS = 1_000, 250_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.scale", description=__doc__)
    parser.add_argument("--slices", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--files", type=int, nargs="+", default=[32, 256, 2_048])
    parser.add_argument("--records", type=int, default=2_000_000, help="in all files together")
    parser.add_argument("--batches", type=int, default=100, help="in the history, of 1,000 partitions each")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each; medians are printed")
    parser.add_argument("--write", action="store_true", help="write what is printed into docs/benchmarks/scale.txt too")
    options = parser.parse_args()
    lines = [machine.in_short(), *manifests(options.slices, options.rounds)]
    print_lines(*lines)
    more = list(commits(options.files, options.records, options.rounds))
    print_lines(*more)
    stored = list(history(options.batches))
    print_lines(*stored)
    if options.write:
        (WRITTEN / "scale.txt").write_text(as_text([*lines, *more, *stored]), encoding="utf-8")
    return 0


def manifests(numbers: list[int], rounds: int) -> Iterator[str]:
    """Measure what the driver and the commit do for each slice, apart from reading it."""
    yield ""
    yield f"{'slices':>8} {'the job':>10} {'collected and written':>22} {'manifest':>10} {'read and checked':>18}"
    for number in numbers:
        measured = [_manifest(number) for _ in range(rounds)]
        job, size = measured[0].job_bytes, measured[0].manifest_bytes
        write, read = (
            statistics.median(seconds) for seconds in zip(*((m.write, m.read) for m in measured), strict=True)
        )
        yield f"{number:8,} {job / 2**20:7.1f} MB {write:20.2f} s {size / 2**20:7.1f} MB {read:16.2f} s"


@dataclass(frozen=True)
class _Measured:
    """Bytes of the job and the manifest as JSON, and seconds to write the manifest from the notes of slices, and to
    read it.
    """

    job_bytes: int
    manifest_bytes: int
    write: float
    read: float


def _manifest(number: int) -> _Measured:
    with _directory() as directory:
        staging = StagingDirectory(str(directory))
        slices = tuple(
            Slice(index, "orders", index % _PARTITIONS, index * _SLICE_OFFSETS, (index + 1) * _SLICE_OFFSETS)
            for index in range(number)
        )
        for slice_ in slices:
            read = SliceRead(
                slice_.index, slice_.topic, slice_.partition, slice_.start, slice_.end, _SLICE_OFFSETS, 0, 1
            )
            write_slice(staging, read)
        job = StageJob(
            batch_id=1,
            group_id="orders",
            tasks=tuple((slice_,) for slice_ in slices),
            kafka_config={},
            isolation_level="read_committed",
            record_format=Json(COLUMNS),
            columns=pa.schema([("id", pa.int64())]),
            transform=None,
            target=TargetColumns("orders", None),
            fingerprint="",
            staging_uri=str(directory),
        )
        files = tuple(
            StagedFile(f"part-{index:05d}.arrow", _SLICE_OFFSETS, 1 << 24, "0" * 64) for index in range(number)
        )
        job_bytes = len(job.to_text())
        began = time.monotonic()
        write_manifest(job, staging, files)
        written = time.monotonic()
        text = staging.read_text(MANIFEST)
        assert len(Manifest.from_json(text).reads) == number
        return _Measured(job_bytes, len(text), written - began, time.monotonic() - written)


def commits(numbers: list[int], records: int, rounds: int) -> Iterator[str]:
    """Measure commits of the same records in different numbers of files."""
    # A task of a large batch writes up to eight slices into one final file.
    sinks = {"rows into Postgres": (_sql, 1), "files into Iceberg": (_iceberg, 8)}
    yield ""
    yield f"{'files':>8} " + " ".join(f"{name:>20}" for name in sinks)
    with KafkaBroker() as kafka, PostgresServer(fsync=True) as postgres:
        dataset = Dataset("orders", records)
        dataset.produce(kafka.bootstrap_servers)
        for number in numbers:
            seconds: dict[str, list[float]] = {name: [] for name in sinks}
            for round_ in range(rounds):
                for name, (sink, slices) in sinks.items():
                    database = f"scale-{number}-{round_}-{len(name)}"
                    engine = sa.create_engine(postgres.create_database(database))
                    with _directory() as directory:
                        seconds[name].append(
                            _committed_in(
                                kafka, engine, dataset, sink(directory), directory, records // number // slices
                            )
                        )
                    engine.dispose()
                    postgres.drop_database(database)
            yield f"{number:8,} " + " ".join(f"{statistics.median(found):18.2f} s" for found in seconds.values())


def _sql(directory: Path) -> Sink:
    return SqlTable("orders")


def _iceberg(directory: Path) -> Sink:
    return IcebergTable("shop.orders", warehouse=f"file://{directory}/lake")


class _Here:
    """Stages in this process, with a file for each slice."""

    def check(self, staging_dir: str | None) -> None:
        """Check nothing."""

    def __call__(self, job: StageJob) -> None:
        stage_here(job)

    def cancel(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _committed_in(
    kafka: KafkaBroker, engine: sa.Engine, dataset: Dataset, sink: Sink, directory: Path, slice_offsets: int
) -> float:
    """Return the seconds from the moment that all files are staged to the commit."""
    pipeline = Pipeline(
        group_id="scale",
        topics=(dataset.topic,),
        value_format=Json(COLUMNS),
        sink=sink,
        staging=Staging(dir=str(directory / "staging"), slice_offsets=slice_offsets),
    )
    load(
        pipeline,
        LoadOptions(),
        kafka_config={"bootstrap.servers": kafka.bootstrap_servers},
        engine=engine,
        launcher=_Here(),
    )
    with engine.connect() as conn:
        return float(conn.scalar(sa.text(_COMMIT)))


def history(batches: int) -> Iterator[str]:
    """Measure how much of the database the history of a group with many partitions takes, indexes included."""
    ledger_tables = Tables()
    names = [table.name for table in (ledger_tables.offset_batches, ledger_tables.offset_ranges)]
    sizes = sa.text("SELECT sum(pg_total_relation_size(name::regclass)) FROM unnest(cast(:names AS text[])) AS name")
    with PostgresServer(fsync=True) as postgres:
        engine = sa.create_engine(postgres.create_database("history"))
        create_missing(Ledger(engine, ledger_tables))
        position = {"consumer_group": "scale", "topic": "orders", "offset_value": 1, "batch_id": 0}
        position |= {"topic_id": "x" * 22, "updated_at": datetime.now(UTC)}
        with engine.begin() as conn:
            conn.execute(
                ledger_tables.consumed_offsets.insert(),
                [{**position, "partition": partition} for partition in range(_PARTITIONS)],
            )
            before = conn.scalar(sizes, {"names": names})
        make_history(engine, "scale", batches)
        with engine.connect() as conn:
            after = conn.scalar(sizes, {"names": names})
        engine.dispose()
    yield ""
    yield (
        f"the history of a batch of {_PARTITIONS:,} partitions takes {float(after - before) / batches / 2**10:,.0f} KB"
    )


@contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="benchmark-scale-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
