"""Run two loads with a real broker, Postgres, Airflow and Spark, and prove that every offset is in the table once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sqlalchemy as sa
from rich.console import Console
from rich.table import Table
from sqlalchemy.engine import Engine

from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from devstack.postgres import PostgresServer

ROOT = Path(__file__).resolve().parent.parent
FIRST, SECOND = 200_000, 50_000
# The part of Airflow's log line that names the logger.
ORIGIN = re.compile(r" \[airflow_kafka|  loc=")
# The log lines of a task that a newcomer wants to see. The log file has all of them.
PROGRESS = re.compile(r"(Planned batch|Batch \d+: read|Committed batch|Nothing to load).*")

# A pipe has no width. The tables need this one.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 130)


def main() -> int:
    console.rule("Starting Kafka, Postgres and Airflow on this machine")
    start = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="kafka-offsets-demo-") as directory,
        KafkaBroker() as kafka,
        PostgresServer() as postgres,
        AirflowHome(
            dags=ROOT / "example_dags",
            connections={
                "kafka_default": json.dumps(
                    {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers}}
                ),
                "spark_default": json.dumps({"conn_type": "spark", "host": "local[*]"}),
                "warehouse": postgres.airflow_uri(),
            },
        ) as airflow,
    ):
        console.print(f"Ready after {time.monotonic() - start:.0f} s")
        engine = sa.create_engine(postgres.url())
        log = Path(directory) / "airflow.log"

        console.rule(f"1. Produce {FIRST:,} order events and run the DAG load_orders")
        produce(kafka, FIRST, start_id=0)
        run_dag(airflow, log, "2026-01-01")
        show(
            engine,
            "SELECT id, customer, amount, created, _kafka_partition, _kafka_offset FROM orders ORDER BY id LIMIT 5",
            "The first rows of the table 'orders'",
        )
        show_state(engine)

        console.rule(f"2. Produce {SECOND:,} more and run the DAG again")
        produce(kafka, SECOND, start_id=FIRST)
        run_dag(airflow, log, "2026-01-02")
        show_state(engine)
        added = count(
            engine, "SELECT count(*) FROM orders WHERE _batch_id = (SELECT max(batch_id) FROM offset_batches)"
        )
        expect(added == SECOND, f"The second run added {added:,} rows, exactly the {SECOND:,} new events")

        console.rule("3. Run the DAG without new records")
        run_dag(airflow, log, "2026-01-03")
        rows = count(engine, "SELECT count(*) FROM orders")
        expect(rows == FIRST + SECOND, f"The table still has {rows:,} rows, and Spark was not started")

        console.rule("4. The proof: every offset once")
        prove(engine)
        engine.dispose()
    console.print(
        "\nAll servers are stopped and their data is removed. Next: [bold]make airflow[/] starts the web interface."
    )
    return 0


def produce(kafka: KafkaBroker, records: int, start_id: int) -> None:
    start = time.monotonic()
    produced = produce_orders(kafka.bootstrap_servers, "orders", records, start_id=start_id)
    console.print(f"Produced {produced:,} records to topic 'orders' in {time.monotonic() - start:.1f} s")


def run_dag(airflow: AirflowHome, log: Path, date: str) -> None:
    """Run the DAG from the command line, and print what its task logs about the batch."""
    command = ["dags", "test", "load_orders", date]
    console.print(f"$ airflow {' '.join(command)}")
    start = time.monotonic()
    process = airflow.popen(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    with log.open("a", encoding="utf-8") as file:
        for line in process.stdout:
            file.write(line)
            progress = PROGRESS.search(line)
            if progress:
                console.print(f"  {ORIGIN.split(progress.group(0))[0].rstrip()}", soft_wrap=True)
    status = process.wait()
    if status != 0:
        console.print(log.read_text(encoding="utf-8")[-20_000:], markup=False)
        raise SystemExit(f"airflow exited with status {status}. Its output is above")
    console.print(f"The run took {time.monotonic() - start:.1f} s, including the start of Airflow")


def show_state(engine: Engine) -> None:
    show(
        engine,
        "SELECT consumer_group, topic, partition, offset_value AS position, record_timestamp, batch_id"
        " FROM consumed_offsets ORDER BY topic, partition",
        "Positions (consumed_offsets): the next offset to read",
    )
    show(
        engine,
        "SELECT batch_id, kind, state, records, row_count, run_id, committed_at FROM offset_batches ORDER BY batch_id",
        "History (offset_batches)",
    )


def prove(engine: Engine) -> None:
    """Compare the rows with the positions: each offset before the position has exactly one row."""
    show(
        engine,
        "SELECT p.partition, p.offset_value AS position, count(o._kafka_offset) AS rows,"
        " count(DISTINCT o._kafka_offset) AS different_offsets, min(o._kafka_offset) AS first,"
        " max(o._kafka_offset) AS last"
        " FROM consumed_offsets p LEFT JOIN orders o ON o._kafka_topic = p.topic AND o._kafka_partition = p.partition"
        " GROUP BY p.partition, p.offset_value ORDER BY p.partition",
        "Rows for each partition",
    )
    violations = count(
        engine,
        "SELECT count(*) FROM (SELECT p.offset_value AS position, count(o._kafka_offset) AS n,"
        " count(DISTINCT o._kafka_offset) AS d, min(o._kafka_offset) AS first, max(o._kafka_offset) AS last"
        " FROM consumed_offsets p LEFT JOIN orders o ON o._kafka_topic = p.topic AND o._kafka_partition = p.partition"
        " GROUP BY p.partition, p.offset_value) c"
        " WHERE n <> position OR d <> position OR first <> 0 OR last <> position - 1",
    )
    expect(violations == 0, "Offsets 0 up to the position are in the table, each exactly once")


def show(engine: Engine, query: str, title: str) -> None:
    with engine.connect() as conn:
        result = conn.execute(sa.text(query))
        table = Table(*result.keys(), title=title, title_justify="left", title_style="bold")
        for row in result:
            table.add_row(*(format_value(value) for value in row))
    console.print(table)


def format_value(value: object) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S}" if hasattr(value, "strftime") else str(value)


def count(engine: Engine, query: str) -> int:
    with engine.connect() as conn:
        return int(conn.execute(sa.text(query)).scalar_one())


def expect(holds: bool, claim: str) -> None:
    console.print(f"{'[bold green]yes[/]' if holds else '[bold red]NO[/]'}  {claim}")
    if not holds:
        raise SystemExit("The demo failed: the statement above is false")


if __name__ == "__main__":
    sys.exit(main())
