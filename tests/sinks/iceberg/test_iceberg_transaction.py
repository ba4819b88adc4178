"""The catalog in the database of the positions, on Postgres: rows and positions are one transaction, whoever dies or
interferes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyiceberg.exceptions import CommitFailedException
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets import DeadLetters, Limits, Staging
from airflow_kafka_offsets.exceptions import DatabaseUnavailableError
from airflow_kafka_offsets.ledger import commit_transaction
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable
from airflow_kafka_offsets.sinks.table import Output
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.dying_load import DyingLoad, Load
from tests.support.iceberg import IcebergGroup
from tests.support.loads import TopicFactory, names, positions

pytestmark = pytest.mark.server

OFFSETS = [0, 1, 2, 4, 5, 6, 7, 8, 9]
RUN = TaskRun("run")


engine = fixtures.postgres_engine


@pytest.fixture
def where() -> str:
    return "positions"


class ProcessDiedError(BaseException):
    """The process is gone: nothing catches it."""


@pytest.fixture
def before_commit(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[Connection], None]]:
    """What is done once, in the transaction, after the rows were committed to the table and before COMMIT."""
    pending: list[Callable[[Connection], None]] = []
    close = commit_transaction._close

    def act(conn: Connection, *args: Any) -> None:
        close(conn, *args)
        if pending:
            pending.pop()(conn)

    monkeypatch.setattr(commit_transaction, "_close", act)
    return pending


def test_an_error_before_commit_leaves_neither_rows_nor_positions(
    group: IcebergGroup, before_commit: list[Callable[[Connection], None]]
) -> None:
    def die(conn: Connection) -> None:
        raise ProcessDiedError

    before_commit.append(die)
    with pytest.raises(ProcessDiedError):
        group.load(run=RUN)
    assert (group.rows(), positions(group.loader.engine)) == ([], {})

    assert group.load(run=RUN).rows == 9

    assert len(group.loader.launcher.jobs) == 1
    assert group.offsets() == OFFSETS
    assert group.proved() == (9, 1, 10)


def test_a_backend_that_is_killed_before_commit_leaves_neither(
    group: IcebergGroup, before_commit: list[Callable[[Connection], None]], engine: Engine
) -> None:
    def kill(conn: Connection) -> None:
        pid = conn.scalar(sa.text("SELECT pg_backend_pid()"))
        with engine.connect() as other:
            other.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})

    before_commit.append(kill)
    with pytest.raises(DatabaseUnavailableError, match="was not committed"):
        group.load(run=RUN)
    assert (group.rows(), positions(group.loader.engine)) == ([], {})

    assert group.load(run=RUN).rows == 9
    assert group.proved() == (9, 1, 10)


@pytest.mark.broker
def test_kill_9_before_commit_leaves_neither_and_after_it_both(
    kafka: Kafka, topic: TopicFactory, group: IcebergGroup, tmp_path: Path, engine: Engine
) -> None:
    options = {"sink": group.sink, "staging": Staging(dir=str(tmp_path / "staging")), "on_bad_record": DeadLetters()}
    url = engine.url.render_as_string(hide_password=False)
    load = Load(url, kafka.bootstrap_servers, (group.orders,), RUN, options)

    with DyingLoad(load, "inside the transaction") as dying:
        dying.reach("inside the transaction")
        dying.kill()
    assert (group.rows(), positions(engine)) == ([], {})

    with DyingLoad(load, "after COMMIT") as dying:
        dying.reach("after COMMIT")
        dying.kill()
    assert (group.offsets(), positions(engine)) == (OFFSETS, {(group.orders, 0): 10})

    assert group.load(run=RUN).rows == 0
    assert group.proved() == (9, 1, 10)


def test_another_writer_waits_for_the_transaction_and_goes_on_from_it(
    group: IcebergGroup, before_commit: list[Callable[[Connection], None]], kafka: Kafka
) -> None:
    group.load(limits=Limits(max_records=4))
    produce(kafka, group.orders, names(10, 1))
    table = group.table
    foreign = table.scan(limit=1).to_arrow()
    foreign = foreign.set_column(foreign.schema.get_field_index("_batch_id"), "_batch_id", [[None]])
    writer = threading.Thread(target=lambda: table.append(foreign.cast(table.scan().to_arrow().schema)))

    def append_meanwhile(conn: Connection) -> None:
        writer.start()
        waiting = sa.text(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE iceberg%'"
        )
        for _ in range(1000):
            with group.loader.engine.connect() as other:
                if other.scalar(waiting):
                    return
            writer.join(0.01)
        pytest.fail("the other writer does not wait")

    before_commit.append(append_meanwhile)
    assert group.load().rows == 1
    writer.join(30)

    table.refresh()
    assert table.scan("_batch_id is null").count() == 1
    ours = table.scan("_batch_id is not null").to_arrow()["_kafka_offset"].to_pylist()
    assert sorted(ours) == [*OFFSETS, 10]
    assert group.proved()[:2] == (10, 1)


def test_a_writer_that_was_first_is_waited_for(group: IcebergGroup, sink: IcebergTable, kafka: Kafka) -> None:
    group.load()
    stale = group.table
    stale.metadata.properties["commit.retry.num-retries"] = "0"
    produce(kafka, group.orders, names(10, 1))
    group.load()

    with pytest.raises(CommitFailedException):
        stale.append(pa.Table.from_pylist([], schema=stale.scan().to_arrow().schema))

    assert group.proved()[:2] == (10, 1)


def test_the_row_of_the_table_is_locked_from_the_beginning(group: IcebergGroup, engine: Engine) -> None:
    group.load()
    row = sa.text("SELECT 1 FROM iceberg_tables FOR UPDATE NOWAIT")

    with (
        engine.begin() as conn,
        group.sink.connect(engine).publish(conn, Output(7, "loader", (), "")),
        engine.connect() as other,
        pytest.raises(sa.exc.OperationalError, match="could not obtain lock"),
    ):
        other.execute(row)
