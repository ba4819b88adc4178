"""Fixtures for loads: a Spark session, databases, a log in memory, and loaders that use them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.ledger.tables import Tables
from devstack.java import QUICK_START
from tests.support.clients import Kafka
from tests.support.inline import InlineLauncher
from tests.support.loads import CountingLauncher, Loader
from tests.support.memory_log import MemoryLog

# Every day these prove on Postgres what `make soak` proves on SQLite as well.
_SQLITE_IN_SOAK = (
    "cli/",
    "loading/test_crash_sweep",
    "loading/test_races",
    "replaying/",
    "rewinding/test_rewind_races",
)
# Of these, SQLite keeps the cases with the real broker; the tests of the ledger, of rewinds and of planning that need no server
# run on it every day.
_SQLITE_WITH_THE_BROKER = (
    "cli/test_import",
    "cli/test_rewind",
    "loading/test_bounds_of_loads",
    "loading/test_changed_logs",
    "loading/test_clean_up",
    "loading/test_dead_letters",
    "loading/test_older_ledger",
    "loading/test_starts",
    "rewinding/",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        module = f"{item.path.parent.name}/{item.path.stem}"
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("engine") != "sqlite" or not module.startswith(_SQLITE_IN_SOAK + _SQLITE_WITH_THE_BROKER):
            continue
        races = module.startswith("rewinding/test_rewind_races")
        kept = item.get_closest_marker("broker") and module.startswith(_SQLITE_WITH_THE_BROKER) and not races
        if not kept:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session", autouse=True)
def _described_once() -> Iterator[None]:
    """Have all `Tables` of one schema and prefix share what SQLAlchemy knows of them.

    A process has them once or twice; the tests would describe them, and compile their statements, thousands of times.
    """
    described: dict[tuple[str | None, str], dict[str, Any]] = {}
    describe = Tables.__init__

    def init(self: Tables, schema: str | None = None, prefix: str = "") -> None:
        if (schema, prefix) not in described:
            describe(self, schema, prefix)
            described[schema, prefix] = dict(vars(self))
        vars(self).update(described[schema, prefix])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tables, "__init__", init)
        yield


@pytest.fixture
def log(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """A log in memory; the session's broker for a test that is marked `broker`, and for loads with Spark, which reads in processes
    of its own.

    A module whose matrix is not about the broker has it for its `kafka`.
    """
    if request.node.get_closest_marker("broker") or "spark" in request.fixturenames:
        kafka: Kafka = request.getfixturevalue("broker")
        return kafka
    return MemoryLog().install(monkeypatch)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local session for all tests that do not test how Spark is launched."""
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "WARN")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", " ".join(QUICK_START))
        .getOrCreate()
    )
    # Its farewell would be logged after the log is closed.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    yield session
    session.stop()


@pytest.fixture
def launcher(spark: SparkSession) -> CountingLauncher:
    return CountingLauncher(spark)


@pytest.fixture(params=["postgresql", "sqlite"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An empty database of each kind."""
    if request.param == "postgresql":
        url = request.getfixturevalue("database")
    else:
        url = f"sqlite:///{request.getfixturevalue('tmp_path')}/warehouse.db"
    made = sa.create_engine(url, hide_parameters=True)
    yield made
    made.dispose()


@pytest.fixture
def postgres_engine(database: str) -> Iterator[Engine]:
    made = sa.create_engine(database, hide_parameters=True)
    yield made
    made.dispose()


@pytest.fixture
def loader(kafka: Kafka, engine: Engine, launcher: CountingLauncher) -> Loader:
    return Loader(kafka, engine, launcher)


@pytest.fixture
def postgres_loader(kafka: Kafka, postgres_engine: Engine, launcher: CountingLauncher) -> Loader:
    return Loader(kafka, postgres_engine, launcher)


@pytest.fixture
def inline_loader(kafka: Kafka, engine: Engine) -> Loader:
    """For what Spark has no part in: its work is done in this process."""
    return Loader(kafka, engine, InlineLauncher())
