"""Loads without Spark, whose jobs go through their text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.spark.job import StageJob
from tests.support.clients import Kafka
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader
from tests.support.memory_log import MemoryLog


class ThroughText(InlineLauncher):
    """Runs what a submitted application would get."""

    def __call__(self, job: StageJob) -> None:
        super().__call__(StageJob.from_text(job.to_text()))


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    return MemoryLog().install(monkeypatch)


@pytest.fixture
def loader(kafka: Kafka, tmp_path: Path) -> Iterator[Loader]:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/warehouse.db")
    yield Loader(kafka, engine, ThroughText())
    engine.dispose()
