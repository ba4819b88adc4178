"""Holding a group, on SQLite files."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Coordination
from airflow_kafka_offsets.exceptions import GroupBusyError
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.ledger import claims
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.loading.load import hold_group
from airflow_kafka_offsets.loading.pipeline import LoadOptions, Pipeline
from airflow_kafka_offsets.sinks.sql.table import SqlTable

RUN, OTHER_RUN = TaskRun("run-1", "dag", "load", -1, 1), TaskRun("run-2", "dag", "load", -1, 1)
LEASE = timedelta(minutes=5)
PIPELINE = Pipeline(
    group_id="loader",
    topics=("orders",),
    value_format=Json("id BIGINT"),
    sink=SqlTable("output"),
)
OPTIONS = LoadOptions(coordination=Coordination(lease=LEASE, on_busy="fail"))


@dataclass
class Database:
    engine: Engine

    def lease(self) -> tuple[str | None, str | None]:
        groups = Tables().consumer_groups.c
        with self.engine.connect() as conn:
            owner, ends = conn.execute(sa.select(groups.lease_owner, groups.lease_expires_at)).one()
        return owner, ends


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/warehouse.db")
    initialize(Ledger(engine))
    yield Database(engine)
    engine.dispose()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"


class Impatient(threading.Event):
    """An event for which nobody waits long."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(0.05)


def test_the_lease_is_renewed_whatever_the_attempt_does(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while it plans or commits, and not while Spark is running alone."""
    # A lease that is renewed so often is long enough for a machine that stops for a while.
    monkeypatch.setattr(claims, "threading", SimpleNamespace(Event=Impatient, Thread=threading.Thread))
    with hold_group(Ledger(db.engine), PIPELINE.group_id, OPTIONS, RUN, "cluster"):
        _, first = db.lease()
        assert first is not None
        until(lambda: (db.lease()[1] or "") > first)
        with (
            pytest.raises(GroupBusyError),
            hold_group(Ledger(db.engine), PIPELINE.group_id, OPTIONS, OTHER_RUN, "cluster"),
        ):
            pytest.fail("the group is held")


@pytest.mark.parametrize("error", [None, RuntimeError("no")], ids=["done", "failed"])
def test_claim_is_not_renewed_after_its_release(db: Database, error: Exception | None) -> None:
    def hold() -> None:
        with hold_group(Ledger(db.engine), PIPELINE.group_id, OPTIONS, RUN, "cluster"):
            assert "lease-loader" in names()
            if error is not None:
                raise error

    def names() -> set[str]:
        return {thread.name for thread in threading.enumerate()}

    if error is None:
        hold()
    else:
        with pytest.raises(RuntimeError):
            hold()

    assert "lease-loader" not in names()
    assert db.lease() == (None, None)
