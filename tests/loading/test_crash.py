"""kill -9 of a task's process group at each step, on Postgres; then the task runs again. Every offset exactly once.

The kills that `test_crash_sweep.py` makes without Airflow and Spark, on both databases, are long tests here.

A process is stopped at its step by what it really waits for there: a lock that the test holds in the database, or a
broker that is frozen. Nothing in the product knows of these tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.exc import ProgrammingError

from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger
from devstack.kafka import KafkaBroker
from tests.support.airflow_runs import Runs, airflow_runs, airflow_uri, locked, waits_for_a_lock
from tests.support.clients import produce
from tests.support.loads import TopicFactory, assert_exactly_once, names, positions, rows

pytestmark = pytest.mark.server

RECORDS = 3000


@pytest.fixture
def runs(kafka: KafkaBroker, postgres_engine: Engine) -> Iterator[Runs]:
    with airflow_runs(kafka, airflow_uri(postgres_engine)) as made:
        yield made


@pytest.fixture
def orders(kafka: KafkaBroker, topic: TopicFactory) -> str:
    name = topic(partitions=2)
    for partition in range(2):
        produce(kafka, name, names(partition * RECORDS, RECORDS), partition)
    return name


def state(engine: Engine) -> list[str]:
    try:
        return [found for (found,) in rows(engine, "SELECT state FROM offset_batches ORDER BY batch_id")]
    except ProgrammingError:
        return []  # before the first run has made the tables


def finish(runs: Runs, engine: Engine, topic: str, date: str = "2026-01-01") -> str:
    status, output = runs.begin(date, topics=[topic]).end()
    assert status == 0, output[-8000:]
    assert positions(engine) == {(topic, 0): RECORDS, (topic, 1): RECORDS}
    assert_exactly_once(engine)
    return output


@pytest.mark.long
def test_killed_before_the_plan(runs: Runs, postgres_engine: Engine, orders: str) -> None:
    initialize(Ledger(postgres_engine))
    with locked(postgres_engine, "offset_batches", "ACCESS EXCLUSIVE"):
        run = runs.begin(topics=[orders])
        run.until(lambda: waits_for_a_lock(postgres_engine, "SELECT offset_batches"), "looking for an open batch")
        run.kill()
    assert state(postgres_engine) == []

    finish(runs, postgres_engine, orders)


@pytest.mark.long
def test_killed_while_spark_reads(postgres_engine: Engine, tmp_path: Path) -> None:
    with KafkaBroker() as broker, airflow_runs(broker, airflow_uri(postgres_engine)) as runs:
        from devstack.topics import create_topic

        create_topic(broker.bootstrap_servers, "orders", 2, {})
        for partition in range(2):
            produce(broker, "orders", names(partition * RECORDS, RECORDS), partition)
        run = runs.begin(topics=["orders"], staging={"dir": str(tmp_path)})
        run.until(lambda: state(postgres_engine) == ["planned"], "the plan")
        # From here on every read waits: Spark starts, and its tasks hang in the middle of their slices.
        broker.pause()
        run.until(lambda: any(tmp_path.glob("*/progress-*.json")), "a slice to be begun")
        run.kill()
        broker.resume()
        assert rows(postgres_engine, "SELECT count(*) FROM target") == [(0,)]
        assert len(list(tmp_path.iterdir())) == 1

        status, output = runs.begin(topics=["orders"], staging={"dir": str(tmp_path)}).end()

        assert status == 0, output[-8000:]
        assert positions(postgres_engine) == {("orders", 0): RECORDS, ("orders", 1): RECORDS}
        assert_exactly_once(postgres_engine)
        assert rows(postgres_engine, "SELECT state, attempt FROM offset_batches") == [("committed", 2)]
        assert list(tmp_path.iterdir()) == [], "the files of the killed attempt are still there"


@pytest.mark.long
def test_killed_between_staging_and_commit(runs: Runs, postgres_engine: Engine, orders: str) -> None:
    run = runs.begin(topics=[orders])
    run.until(lambda: state(postgres_engine) == ["planned"], "the plan")
    with locked(postgres_engine, "consumed_offsets", "ACCESS EXCLUSIVE"):
        run.until(lambda: state(postgres_engine) == ["staged"], "the batch to be staged")
        run.until(lambda: waits_for_a_lock(postgres_engine, "SELECT consumed_offsets"), "comparing the positions")
        run.kill()
    assert rows(postgres_engine, "SELECT count(*) FROM target") == [(0,)]

    output = finish(runs, postgres_engine, orders)

    # What the killed try staged is committed, without reading Kafka or starting Spark again.
    assert rows(postgres_engine, "SELECT state, attempt FROM offset_batches") == [("committed", 1)]
    assert "was staged by an earlier attempt: committing its files" in output
    assert "Spark-Submit cmd" not in output


@pytest.mark.parametrize(
    "date",
    [
        pytest.param("2026-01-01", id="same-task-instance", marks=pytest.mark.long),
        pytest.param("2026-01-02", id="next-run"),
    ],
)
def test_killed_inside_the_transaction(runs: Runs, postgres_engine: Engine, orders: str, date: str) -> None:
    run = runs.begin(topics=[orders])
    run.until(lambda: state(postgres_engine) == ["planned"], "the plan")
    # SHARE lets the positions be read, and compared, but not be written: by then the rows are in.
    with locked(postgres_engine, "consumed_offsets", "SHARE"):
        run.until(lambda: waits_for_a_lock(postgres_engine, "INSERT INTO consumed_offsets"), "moving the positions")
        run.kill()
        assert rows(postgres_engine, "SELECT count(*) FROM target") == [(0,)]

    finish(runs, postgres_engine, orders, date)

    assert rows(postgres_engine, "SELECT state FROM offset_batches") == [("committed",)]
