"""What transforms cost that run where records are decoded, beside loads without one.

Two measurements, each in interleaved rounds: the wall time of whole loads with spark-submit, and the processor time of
reading, decoding, transforming and staging the same records in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.formats.columns import row_columns
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.tasks import stage_slices
from airflow_kafka_offsets.staging.rows import TargetColumns
from airflow_kafka_offsets.transforms.transform import Transform
from benchmarks.compare import checkpoint
from benchmarks.datasets import COLUMNS, Dataset
from benchmarks.load import Load
from benchmarks.measured import ARROW, PACKAGE, SQL
from benchmarks.transforms import ARROW_NET, SQL_NET
from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer
from devstack.topics import end_offsets

WAYS: Mapping[str, Transform | None] = {PACKAGE: None, SQL: SQL_NET, ARROW: ARROW_NET}
SLICE = 250_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.transform_costs", description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    dataset = Dataset("orders", options.records)
    with (
        KafkaBroker() as kafka,
        PostgresServer(fsync=True) as postgres,
        AirflowHome(config={"logging.logging_level": "WARNING"}) as home,
    ):
        os.environ.update(home.env)
        os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps({"conn_type": "spark", "host": "local[*]"})
        # Airflow reads AIRFLOW_HOME at its first import.
        from benchmarks.contenders import CONTENDERS

        dataset.produce(kafka.bootstrap_servers)

        def load(name: str) -> float:
            database = f"bench_{time.time_ns()}"
            postgres.create_database(database)
            task = Load(kafka, postgres, dataset, database)
            # Postgres must not flush an earlier load's writes during this one's time.
            checkpoint(postgres)
            began = time.perf_counter()
            CONTENDERS[name](task)
            seconds = time.perf_counter() - began
            task.check()
            postgres.drop_database(database)
            return seconds

        report(
            "processor time of staging, one process", rounds(options.rounds, lambda name: stage(kafka, dataset, name))
        )
        report("wall time of whole loads", rounds(options.rounds, load))


def stage(kafka: KafkaBroker, dataset: Dataset, name: str) -> float:
    """Return the processor time of staging all records in this process."""
    transform, columns = WAYS[name], row_columns(Json(COLUMNS))
    ends = end_offsets(kafka.bootstrap_servers, dataset.topic)
    slices = [
        (partition, start, min(start + SLICE, end)) for partition, end in ends.items() for start in range(0, end, SLICE)
    ]
    with tempfile.TemporaryDirectory() as directory:
        job = StageJob(
            batch_id=1,
            group_id="benchmark",
            tasks=tuple((Slice(index, dataset.topic, *slice_),) for index, slice_ in enumerate(slices)),
            kafka_config={"bootstrap.servers": kafka.bootstrap_servers},
            isolation_level="read_committed",
            record_format=Json(COLUMNS),
            columns=columns,
            transform=None if transform is None else transform.prepared(columns),
            target=TargetColumns("orders", None),
            fingerprint="",
            staging_uri=str(Path(directory)),
        )
        began = time.process_time()
        rows = sum(file.rows for number in range(len(job.tasks)) for file in stage_slices(job, [number]))
        seconds = time.process_time() - began
    assert rows == dataset.records, rows
    return seconds


def rounds(count: int, measure: Callable[[str], float]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for number in range(count):
        # The order turns, so that no way always follows the same other one.
        for name in [*WAYS][number % len(WAYS) :] + [*WAYS][: number % len(WAYS)]:
            seconds[name].append(measure(name))
            print(f"  {name}: {seconds[name][-1]:.1f} s", flush=True)
    return seconds


def report(title: str, seconds: Mapping[str, list[float]]) -> None:
    print(f"{title}, medians")
    for name, found in seconds.items():
        ratios = [own / without for own, without in zip(found, seconds[PACKAGE], strict=True)]
        print(f"  {name:32} {statistics.median(found):6.1f} s {statistics.median(ratios):6.2f} x", flush=True)


if __name__ == "__main__":
    main()
