"""Loads as a script would run them, and the invariant that every load keeps, checked from outside."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import sqlalchemy as sa
from pyspark.sql import SparkSession
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.options import Coordination
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.loading.context import LoadResult
from airflow_kafka_offsets.loading.load import load
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.launchers import SessionLauncher
from tests.support.clients import Kafka, produce
from tests.support.pipelines import pipeline_and_options


class TopicFactory(Protocol):
    """Creates a topic, and returns its name; see the fixture `topic`."""

    def __call__(self, partitions: int = 1, **config: Any) -> str: ...


# Each record is in the table once for each group.
BESIDE_OTHERS: dict[str, Any] = {"coordination": Coordination(other_groups="allow")}

COLUMNS = Json("id BIGINT NOT NULL, name STRING")


class CountingLauncher(SessionLauncher):
    """The real launcher, which remembers what it was asked to run."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        self.jobs: list[StageJob] = []

    def __call__(self, job: StageJob) -> None:
        self.jobs.append(job)
        super().__call__(job)


@dataclass
class Loader:
    """Loads topics into the table `target` of an engine, as a script would."""

    kafka: Kafka
    engine: Engine
    launcher: Any  # a CountingLauncher, or one that needs no Spark
    connections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, kw_only=True)

    @property
    def config(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.kafka.bootstrap_servers}

    def pipeline(self, topics: Sequence[str], **options: Any) -> Pipeline:
        return Pipeline(**self.parameters(topics, options))

    def parameters(self, topics: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
        defaults = {"group_id": "loader", "value_format": COLUMNS, "sink": SqlTable("target")}
        return {"topics": tuple(topics)} | defaults | dict(options)

    def __call__(self, *topics: str, run: TaskRun | None = None, **options: Any) -> LoadResult:
        on_commit = options.pop("on_commit", None)
        return load(
            *pipeline_and_options(self.parameters(topics, options)),
            kafka_config=self.config,
            engine=self.engine,
            launcher=self.launcher,
            run=run,
            on_commit=on_commit,
            connections=self.connections,
        )


def names(first: int, count: int) -> list[bytes]:
    """JSON records with the ids from `first` on."""
    return [json.dumps({"id": i, "name": f"name-{i}"}).encode() for i in range(first, first + count)]


def rows(engine: Engine, query: str, **values: Any) -> list[tuple[Any, ...]]:
    with engine.connect() as conn:
        return [tuple(row) for row in conn.execute(sa.text(in_dialect(engine, query)), values)]


def reflected(engine: Engine, name: str) -> sa.Table:
    """Return a table whose numbers are read as they are: SQLAlchemy would round those of MySQL to ten digits."""
    table = sa.Table(name, sa.MetaData(), autoload_with=engine)
    for column in table.columns:
        if isinstance(column.type, sa.Double):
            column.type.asdecimal = False
    return table


def in_dialect(engine: Engine, query: str) -> str:
    """Return a query with names as MySQL quotes them, if it is to run there: "partition" is one of its keywords."""
    if engine.dialect.name != "mysql":
        return query

    def quoted(name: re.Match[str]) -> str:
        plain = name[1].replace('""', '"').replace("`", "``")
        return f"`{plain}`"

    return re.sub(r"(?<![\w`:])partition\b", "`partition`", re.sub(r'"((?:[^"]|"")*)"', quoted, query))


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


def half_loaded_topic(loader: Loader, topic: TopicFactory) -> str:
    """Create a topic of 200 records, of which the loader has loaded 100."""
    name = topic()
    produce(loader.kafka, name, names(0, 100))
    loader(name)
    produce(loader.kafka, name, names(100, 100))
    return name
