"""What a load or a replay works with, and what it has done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.kafka import Cluster
from airflow_kafka_offsets.ledger import Claim, Recipe, ReplayClaim
from airflow_kafka_offsets.metrics import Commit
from airflow_kafka_offsets.pipeline import Pipeline
from airflow_kafka_offsets.spark.job import TargetColumns
from airflow_kafka_offsets.staged import Launcher

OnCommit = Callable[[Commit], None]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load did.

    :param batches: the ids of the batches that it committed, in order; another run's open batch may be the first
    :param records: how many records were read, dead letters among them
    :param rows: how many rows were written
    :param dead_letters: how many records were set aside
    :param complete: False where the time budget ended before everything was loaded
    """

    batches: tuple[int, ...] = ()
    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    complete: bool = True

    def __add__(self, other: LoadResult) -> LoadResult:
        """Both, one after the other."""
        return LoadResult(
            (*self.batches, *other.batches),
            self.records + other.records,
            self.rows + other.rows,
            self.dead_letters + other.dead_letters,
            self.complete and other.complete,
        )


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A load, or a batch of a replay, under way: what the three steps share.

    :param columns: those of a decoded row
    :param target: those of the target
    :param fingerprint: of everything that decides what the rows of a range are
    :param on_commit: is told of every batch that is committed
    """

    pipeline: Pipeline
    kafka_config: Mapping[str, Any] = field(repr=False)  # holds secrets
    cluster: Cluster
    engine: Engine
    launcher: Launcher
    claim: Claim | ReplayClaim
    columns: pa.Schema
    target: TargetColumns
    fingerprint: str
    on_commit: OnCommit | None = None

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.pipeline.sink.name, self.pipeline.transform, self.fingerprint)
