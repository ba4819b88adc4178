"""Rows per second of whole loads into Postgres, beside the time that Spark alone needs to start.

Everything is as a task does it: `load` with spark-submit on local[*], fsync on, broker and database on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import sqlalchemy as sa

from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from devstack.postgres import PostgresServer

COLUMNS = "id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP"


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.load", description=__doc__)
    parser.add_argument("--records", type=int, nargs="+", default=[200_000, 5_000_000], help="sizes of the loads")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each; medians are printed")
    options = parser.parse_args()
    with KafkaBroker() as kafka, PostgresServer(fsync=True) as postgres, AirflowHome() as home:
        os.environ.update(home.env)
        os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps({"conn_type": "spark", "host": "local[*]"})
        sys.stdout.write(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores\n")
        starts = [seconds_of_empty_application() for _ in range(options.rounds)]
        start = statistics.median(starts)
        report("Spark alone: start, a session, stop", 0, starts)
        for records in options.records:
            topic = f"orders-{records}"
            produce_orders(kafka.bootstrap_servers, topic, records)
            # In turn, so that a slow minute of the machine meets both.
            taken: dict[str | None, list[float]] = {None: [], "benchmarks.transforms.net": []}
            for number in range(options.rounds):
                for transform, seconds in taken.items():
                    url = postgres.create_database(f"load_{records}_{number}_{0 if transform is None else 1}")
                    seconds.append(seconds_of_load(kafka, url, topic, records, transform))
                    postgres.drop_database(url.rsplit("/", 1)[1])
            for transform, seconds in taken.items():
                name = "without a transform" if transform is None else "with a DataFrame transform"
                report(f"{records:,} records {name}", records, seconds, start)
    return 0


def seconds_of_load(kafka: KafkaBroker, url: str, topic: str, records: int, transform: str | None) -> float:
    from airflow_kafka_offsets import Json, Pipeline, SqlTable, load
    from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher

    engine = sa.create_engine(url)
    pipeline = Pipeline(
        group_id="benchmark",
        topics=(topic,),
        value_format=Json(COLUMNS),
        sink=SqlTable("orders"),
        transform=transform,
    )
    begun = time.monotonic()
    result = load(
        pipeline,
        kafka_config={"bootstrap.servers": kafka.bootstrap_servers},
        engine=engine,
        launcher=SparkSubmitLauncher("spark_default"),
    )
    seconds = time.monotonic() - begun
    assert result.rows == records
    engine.dispose()
    return seconds


def seconds_of_empty_application() -> float:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    with tempfile.TemporaryDirectory() as directory:
        application = Path(directory) / "empty.py"
        application.write_text(
            "from pyspark.sql import SparkSession\nSparkSession.builder.getOrCreate().stop()\n", encoding="utf-8"
        )
        conf = {"spark.ui.enabled": "false", "spark.log.level": "WARN", "spark.pyspark.driver.python": sys.executable}
        begun = time.monotonic()
        SparkSubmitHook(conn_id="spark_default", conf=conf).submit(str(application))
        return time.monotonic() - begun


def report(what: str, records: int, seconds: list[float], start: float = 0.0) -> None:
    median = statistics.median(seconds)
    spread = f"{min(seconds):.1f} to {max(seconds):.1f} s"
    line = f"{what:50} median {median:6.1f} s ({spread})"
    if records:
        line += f", {records / median:9,.0f} rows/s; without Spark's start {records / (median - start):9,.0f} rows/s"
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
