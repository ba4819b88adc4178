"""Seconds of a rewind's preview and execution: for many partitions, and for a group with a long history.

Broker and databases are on this machine, Postgres with fsync.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from confluent_kafka import Producer
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.rewinding.execution import RewindResult, execute_rewind
from airflow_kafka_offsets.rewinding.preview import RewindPreview
from airflow_kafka_offsets.rewinding.previewing import preview_rewind
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from benchmarks import machine
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer
from devstack.topics import create_topic

RECORDS = 10  # of each partition
_ROWS_AT_ONCE = 5_000
_LATEST = Scenario.of("to-latest")


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.rewind", description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=[10, 100, 2_000], help="sizes of the topics")
    parser.add_argument("--batches", type=int, default=100_000, help="batches in the long history")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each; medians are printed")
    options = parser.parse_args()
    with (
        KafkaBroker() as kafka,
        PostgresServer(fsync=True) as postgres,
        tempfile.TemporaryDirectory() as directory,
    ):
        engines = {
            "Postgres": sa.create_engine(postgres.create_database("rewind")),
            "SQLite": sa.create_engine(f"sqlite:///{directory}/rewind.db"),
        }
        sys.stdout.write(f"{machine.in_short()}\n\n")
        sys.stdout.write(f"{'':64}  preview   execution\n")
        since = datetime.now(UTC) - timedelta(days=1)
        for partitions in options.partitions:
            topic = f"topic-{partitions}"
            create_topic(kafka.bootstrap_servers, topic, partitions)
            fill(kafka, topic, partitions)
            for database, engine in engines.items():
                rewinds = Rewinds(kafka, engine, f"group-{partitions}", f"{database}, {partitions:,} partitions")
                rewinds.begin(topic)
                rewinds.measure(Scenario.of("to-earliest"), options.rounds)
                rewinds.measure(Scenario.of("to-datetime", since), options.rounds)
        for database, engine in engines.items():
            topic = f"topic-{options.partitions[0]}"
            title = f"{database}, {options.batches:,} batches of {options.partitions[0]} partitions"
            rewinds = Rewinds(kafka, engine, "long-history", title)
            rewinds.begin(topic)
            batches = make_history(engine, rewinds.group, options.batches)
            rewinds.measure(Scenario.of("to-batch", batches[len(batches) // 2]), options.rounds)
            rewinds.measure(Scenario.of("undo"), options.rounds)
    return 0


def fill(kafka: KafkaBroker, topic: str, partitions: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 50})
    for partition in range(partitions):
        for _ in range(RECORDS):
            producer.produce(topic, b"{}", partition=partition)
        producer.poll(0)
    assert producer.flush(120) == 0


@dataclass(frozen=True, slots=True)
class Rewinds:
    """Rewinds of one group."""

    kafka: KafkaBroker
    engine: Engine
    group: str
    title: str

    def begin(self, topic: str) -> None:
        self._execute(self._preview(_LATEST, scope={topic: None}, new_group=True))

    def measure(self, scenario: Scenario, rounds: int) -> None:
        """Print the medians of both steps. Each round begins at the latest offsets."""
        previews, executions = [], []
        for _ in range(rounds):
            self._execute(self._preview(_LATEST))
            start = time.monotonic()
            preview = self._preview(scenario)
            previewed = time.monotonic()
            done = self._execute(preview)
            previews.append(previewed - start)
            executions.append(time.monotonic() - previewed)
            assert done.moved == len(preview.partitions), f"{self.title}, {scenario.name}: {done}"
        title = f"{self.title}, {scenario.name}"
        sys.stdout.write(f"{title:64} {statistics.median(previews):6.2f} s    {statistics.median(executions):6.2f} s\n")
        sys.stdout.flush()

    def _preview(self, scenario: Scenario, **options: Any) -> RewindPreview:
        config = {"bootstrap.servers": self.kafka.bootstrap_servers}
        return preview_rewind(self.group, scenario, engine=self.engine, kafka_config=config, **options)

    def _execute(self, preview: RewindPreview) -> RewindResult:
        return execute_rewind(preview, engine=self.engine)


def make_history(engine: Engine, group: str, count: int) -> list[int]:
    """Insert batches that load the same partitions repeatedly, as if the group was rewound before each.

    :return: the batch ids
    """
    tables, now = Tables(), datetime.now(UTC)
    with engine.begin() as conn:
        stored = conn.execute(
            sa.select(tables.consumed_offsets).where(tables.consumed_offsets.c.consumer_group == group)
        ).all()
        first = (conn.scalar(sa.select(sa.func.max(tables.offset_batches.c.batch_id))) or 0) + 1
        numbers = list(range(first, first + count))
        for at in range(0, count, _ROWS_AT_ONCE // len(stored)):
            some = numbers[at : at + _ROWS_AT_ONCE // len(stored)]
            conn.execute(tables.offset_batches.insert(), [_batch(number, group, now) for number in some])
            conn.execute(
                tables.offset_ranges.insert(),
                [_range(number, number - first, row, count) for number in some for row in stored],
            )
        if engine.dialect.name == "postgresql":
            conn.execute(sa.text(f"SELECT setval('offset_batches_batch_id_seq', {numbers[-1]})"))
        conn.execute(
            tables.consumed_offsets.update()
            .where(tables.consumed_offsets.c.consumer_group == group)
            .values(batch_id=numbers[-1])
        )
    with engine.connect() as conn:
        conn.exec_driver_sql("ANALYZE")
        conn.commit()
    return numbers


def _batch(number: int, group: str, now: datetime) -> dict[str, Any]:
    return {
        "batch_id": number,
        "consumer_group": group,
        "generation": 1,
        "kind": "load",
        "state": "committed",
        "attempt": 1,
        "run_id": f"run-{number}",
        "dag_id": "dag",
        "task_id": "task",
        "map_index": -1,
        "target_table": "target",
        "row_count": 1,
        "planned_at": now,
        "committed_at": now,
    }


def _range(number: int, index: int, row: Any, count: int) -> dict[str, Any]:
    end = RECORDS * (index + 1) // count
    return {
        "batch_id": number,
        "topic": row.topic,
        "partition": row.partition,
        "topic_id": row.topic_id,
        "start_offset": RECORDS * index // count,
        "end_offset": end,
        "target_offset": end,
        "how": "stored",
    }


if __name__ == "__main__":
    sys.exit(main())
