"""What the tests against the real stack share: a Spark session, a broker to write to, and the invariant."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.formats.json_format import Json
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.ledger.task_run import TaskRun
from airflow_kafka_offsets.loading.load import load
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.loading.result import LoadResult
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.session_launcher import SessionLauncher
from tests.integration.inline import InlineLauncher
from tests.integration.pipelines import pipeline_and_options
from tests.support.clients import Kafka
from tests.support.memory_log import MemoryLog

COLUMNS = Json("id BIGINT NOT NULL, name STRING")


# Every day these prove on Postgres what `make soak` proves on SQLite as well.
_SQLITE_BY_SOAK = (
    "test_cli_doctor",
    "test_cli_show",
    "test_crash_sweep",
    "test_races",
    "test_replay",
    "test_rewind_races",
)
# Here SQLite is left to the scenarios that keep the real broker, and to the tests of the ledger, of rewinds and of planning
# that need no server; the others of them run on it in `make soak`.
_SQLITE_WITH_THE_BROKER = (
    "test_cli_rewind",
    "test_planning_cases",
    "test_rewind",
    "test_rewind_replace",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("engine") == "sqlite" and (
            item.path.stem in _SQLITE_BY_SOAK
            or (item.path.stem in _SQLITE_WITH_THE_BROKER and not item.get_closest_marker("broker"))
        ):
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
        .getOrCreate()
    )
    # Its farewell would be logged after the log is closed.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    yield session
    session.stop()


class CountingLauncher(SessionLauncher):
    """The real launcher, which remembers what it was asked to run."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        self.jobs: list[StageJob] = []

    def __call__(self, job: StageJob) -> None:
        self.jobs.append(job)
        super().__call__(job)


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


@dataclass
class Loader:
    """Loads topics into the table `target` of an engine, as a script would."""

    kafka: Kafka
    engine: Engine
    launcher: Any  # a CountingLauncher, or one that needs no Spark

    @property
    def config(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.kafka.bootstrap_servers}

    def pipeline(self, topics: Sequence[str], **options: Any) -> Pipeline:
        return Pipeline(**self.parameters(topics, options))

    def parameters(self, topics: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
        defaults = {"group_id": "loader", "value_format": COLUMNS, "sink": SqlTable("target")}
        return {"topics": tuple(topics)} | defaults | dict(options)

    def __call__(self, *topics: str, run: TaskRun | None = None, **options: Any) -> LoadResult:
        return load(
            *pipeline_and_options(self.parameters(topics, options)),
            kafka_config=self.config,
            engine=self.engine,
            launcher=self.launcher,
            run=run,
        )


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


def names(first: int, count: int) -> list[bytes]:
    """JSON records with the ids from `first` on."""
    return [json.dumps({"id": i, "name": f"name-{i}"}).encode() for i in range(first, first + count)]


def rows(engine: Engine, query: str, **values: Any) -> list[tuple[Any, ...]]:
    with engine.connect() as conn:
        return [tuple(row) for row in conn.execute(sa.text(query), values)]


def positions(engine: Engine, tables: Tables | None = None) -> dict[tuple[str, int], int]:
    offsets = (tables or Tables()).consumed_offsets.c
    with engine.connect() as conn:
        stored = conn.execute(sa.select(offsets.topic, offsets.partition, offsets.offset_value))
        return {(row.topic, row.partition): row.offset_value for row in stored}


def assert_exactly_once(engine: Engine, table: str = "target") -> None:
    """The invariant, from outside: below each position every offset is in the table once, and nothing above it.

    For topics whose every offset holds a record.
    """
    loaded = rows(engine, f'SELECT _kafka_topic, _kafka_partition, _kafka_offset FROM "{table}"')
    expected = [(*tp, offset) for tp, end in positions(engine).items() for offset in range(end)]
    assert sorted(loaded) == sorted(expected)
    committed = "SELECT batch_id FROM offset_batches WHERE state = 'committed'"
    invisible = rows(engine, f'SELECT count(*) FROM "{table}" WHERE _batch_id NOT IN ({committed})')
    assert invisible == [(0,)]
    history: dict[tuple[str, int], int] = {}
    for topic, partition, start, end in rows(
        engine,
        "SELECT r.topic, r.partition, r.start_offset, r.end_offset FROM offset_ranges r"
        " JOIN offset_batches b ON b.batch_id = r.batch_id WHERE b.state = 'committed' ORDER BY b.batch_id",
    ):
        assert history.get((topic, partition), start) == start, "the history has a hole or an overlap"
        history[topic, partition] = end
    assert history == positions(engine)


TopicFactory = Callable[..., str]
