"""What tests of targets with an upsert key share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from tests.support.clients import Kafka, producer
from tests.support.inline import InlineLauncher
from tests.support.loads import rows

KEYED: dict[str, Any] = {"sink": SqlTable("target", upsert_key=("id",))}
# What a table needs apart from the declared columns and its key.
ORIGIN = "_kafka_topic TEXT, _kafka_partition INT, _kafka_offset BIGINT, _batch_id BIGINT"
SQLITE = pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
POSTGRES = pytest.mark.parametrize("engine", ["postgresql"], indirect=True)


def record(key: object, name: str) -> bytes:
    return json.dumps({"id": key, "name": name}).encode()


def do(engine: Engine, *statements: str) -> None:
    with engine.begin() as conn:
        for statement in statements:
            conn.exec_driver_sql(statement)


def held(engine: Engine) -> list[tuple[Any, ...]]:
    return rows(engine, "SELECT id, name, _kafka_offset FROM target ORDER BY id")


def produce_at(kafka: Kafka, topic: str, partition: int, values: Sequence[tuple[bytes, int]]) -> None:
    """Records with timestamps of their own, in milliseconds."""
    writer = producer(kafka)
    for value, timestamp in values:
        writer.produce(topic, value, partition=partition, timestamp=timestamp)
    assert writer.flush(30) == 0


class Interrupted(InlineLauncher):
    """Stages for real, then fails, as a worker that dies between staging and commit; some batches go well before."""

    def __init__(self, after: int = 0) -> None:
        super().__init__()
        self._after = after

    def __call__(self, job: StageJob) -> None:
        super().__call__(job)
        if len(self.jobs) > self._after:
            raise StagingError("the worker dies")
