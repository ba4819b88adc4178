"""Groups for pages: a few with a history of days, and hundreds of them, without hundreds of loads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.rewinding.execution import execute_rewind
from airflow_kafka_offsets.rewinding.previewing import preview_rewind
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.topics import create_topic, delete_records, end_offsets
from tests.support.clients import Kafka, produce, producer
from tests.support.inline import Fails
from tests.support.loads import Loader, names
from tests.support.verifying import LEFT_OUT

DAG, TASK = "shop", "load_orders"
BAD_ORDERS = (
    b'{"id": "A-17", "name": "not a number"}',
    b"\x00\x01\xfe\xff not JSON",
    '{"id": 12, "name": ["ein", "Vektor", "für", "die", "Tür"]}'.encode(),
)
_BATCHES = 24


def shop(loader: Loader) -> None:
    """Make three groups: `orders` with a history, a gap, a rewind and dead letters, `payments` with little headroom,
    `clicks` whose load failed.

    :param loader: of a Postgres and a broker
    """
    kafka = loader.kafka
    create_topic(kafka.bootstrap_servers, "orders", 6, {})
    at = 0
    for number in range(_BATCHES):
        run = TaskRun(f"scheduled__{number:02}", DAG, TASK, -1, 1)
        for partition in range(6):
            produce(kafka, "orders", names(at, 10 + 7 * (number % 5) + partition), partition)
            at += 50
        if number == _BATCHES - 1:
            _bad_orders(kafka)
        if number == _BATCHES // 4:
            # Retention was faster than the load.
            delete_records(kafka.bootstrap_servers, "orders", end_offsets(kafka.bootstrap_servers, "orders")[0] - 5)
        loader("orders", run=run, group_id="orders", sink=SqlTable("orders"), on_data_loss="skip", **LEFT_OUT)
        if number == _BATCHES // 2:
            rewind(loader, "orders", 40)
    for partition in range(6):
        produce(kafka, "orders", names(at, 30 * partition), partition)
    _in_the_past(loader.engine, "orders")
    yesterday = datetime.now(UTC) - timedelta(hours=22, minutes=40)
    create_topic(kafka.bootstrap_servers, "payments", 3, {"retention.ms": str(24 * 3_600_000)})
    produce(kafka, "payments", names(0, 5))
    payments = TaskRun("manual__1", "payments_hourly", "load_payments", -1, 1)
    loader("payments", run=payments, group_id="payments", sink=SqlTable("payments"))
    produce(kafka, "payments", names(5, 1_200), 1, timestamp=int(yesterday.timestamp() * 1000))
    create_topic(kafka.bootstrap_servers, "clicks", 2, {})
    produce(kafka, "clicks", names(0, 400))
    clicks = TaskRun("scheduled__7", "clicks", "load_clicks", -1, 2)
    with suppress(StagingError):
        Loader(kafka, loader.engine, Fails())("clicks", run=clicks, group_id="clicks", sink=SqlTable("clicks"))


def mapped(loader: Loader) -> None:
    """Make a group of a mapped task."""
    create_topic(loader.kafka.bootstrap_servers, "events_eu", 1, {})
    produce(loader.kafka, "events_eu", names(0, 3))
    run = TaskRun("scheduled__1", "mapped", "load", 0, 1)
    loader("events_eu", run=run, group_id="events_events_eu", sink=SqlTable("events_eu"))


def rewind(loader: Loader, group_id: str, offsets: int, table: str = "orders") -> None:
    """Move the positions of a group back, and remove rows."""
    preview = preview_rewind(
        group_id, Scenario.of("shift-by", -offsets), engine=loader.engine, kafka_config=loader.config
    )
    execute_rewind(preview, engine=loader.engine, who="Ann", reason="the prices were wrong", replace=SqlTable(table))


def _bad_orders(kafka: Kafka) -> None:
    writer = producer(kafka)
    for value in BAD_ORDERS:
        headers = [("trace-id", b"4bf92f3577b34da6"), ("shop", "Zürich".encode()), ("empty", None)]
        writer.produce("orders", value, key=b"customer-7", partition=2, headers=headers)
    assert writer.flush(30) == 0


def _in_the_past(engine: Engine, group_id: str) -> None:
    """Spread the batches of a group over days, as a schedule would have."""
    tables = Tables()
    batches, ranges = tables.offset_batches, tables.offset_ranges
    with engine.begin() as conn:
        ids = conn.scalars(sa.select(batches.c.batch_id).where(batches.c.consumer_group == group_id)).all()
        for place, batch_id in enumerate(sorted(ids, reverse=True)):
            planned = datetime.now(UTC) - timedelta(hours=2 * place, minutes=11)
            staged = planned + timedelta(seconds=31 + 7 * (place % 4))
            committed = staged + timedelta(seconds=3 + place % 3)
            of_batch = batches.update().where(batches.c.batch_id == batch_id)
            conn.execute(of_batch.values(planned_at=planned, staged_at=staged, committed_at=committed))
            newest = planned - timedelta(seconds=40 + 25 * (place % 6))
            conn.execute(ranges.update().where(ranges.c.batch_id == batch_id).values(last_timestamp=newest))


def many(engine: Engine, kafka: Kafka, topics: Sequence[str], groups: int) -> None:
    """Insert groups that have read half of each partition of a topic, and a batch each, with little dead letters.

    :param topics: each group has read one of them
    """
    tables = Tables()
    initialize(Ledger(engine, tables))
    cluster = Cluster({"bootstrap.servers": kafka.bootstrap_servers})
    cluster_id, now = cluster.cluster_id(), datetime.now(UTC)
    logs = cluster.logs(topics)
    states, batches, positions, dead_letters = [], [], [], []
    for number in range(groups):
        group_id, topic = f"team-{number % 17:02}.loader-{number:03}", topics[number % len(topics)]
        states.append({"group_id": group_id, "cluster_id": cluster_id, "generation": 0, "epoch": number})
        planned = now - timedelta(minutes=number, seconds=45)
        batches.append(
            {"batch_id": number + 1, "consumer_group": group_id, "generation": 0, "kind": "load", "attempt": 1}
            | {"state": "committed" if number % 50 else "staged", "planned_at": planned, "staged_at": planned}
            | {"committed_at": planned + timedelta(seconds=30) if number % 50 else None, "dag_id": f"dag_{number % 40}"}
            | {"task_id": "load", "run_id": "r", "map_index": -1, "try_number": 1, "records": 10, "row_count": 10}
            | {"dead_letters": 1 if number % 60 == 1 else 0}
        )
        of_group = {"consumer_group": group_id, "batch_id": number + 1, "updated_at": now}
        positions += [
            {**of_group, "topic": tp.topic, "partition": tp.partition, "topic_id": log.topic_id}
            | {
                "offset_value": log.end - (log.end * (number % 7)) // 8,
                "record_timestamp": now - timedelta(minutes=number),
            }
            for tp, log in logs.items()
            if tp.topic == topic
        ]
        if number % 60 == 1:
            dead_letters.append(
                {
                    "batch_id": number + 1,
                    "topic": topic,
                    "partition": 0,
                    "offset_value": number,
                    "consumer_group": group_id,
                }
                | {"error": "it does not decode", "error_class": "value", "value": b"x"}
            )
    with engine.begin() as conn:
        conn.execute(tables.consumer_groups.insert(), states)
        conn.execute(tables.offset_batches.insert(), batches)
        conn.execute(tables.consumed_offsets.insert(), positions)
        conn.execute(tables.dead_letters.insert(), dead_letters)
