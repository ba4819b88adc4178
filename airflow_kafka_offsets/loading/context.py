"""What the steps of a load or a replay share: the pipeline, the connections, the claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core import planning
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.batch_rows import Batch, Recipe
from airflow_kafka_offsets.ledger.claims import Claim
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.loading.result import OnCommit
from airflow_kafka_offsets.spark.launcher import Launcher
from airflow_kafka_offsets.staging.target_columns import TargetColumns


@dataclass(frozen=True, kw_only=True)
class LoadContext:
    """A running load, or a running replay of one batch.

    :param columns: of a decoded record
    :param target: the columns of the target
    :param fingerprint: a hash of everything that decides which rows a range becomes
    :param on_commit: called after each commit
    :param replace: whether a commit first removes what earlier batches wrote of the same offsets
    """

    pipeline: Pipeline
    kafka_config: Mapping[str, Any] = field(repr=False)  # holds secrets
    cluster: Cluster
    engine: Engine
    launcher: Launcher
    claim: Claim
    columns: pa.Schema
    target: TargetColumns
    fingerprint: str
    on_commit: OnCommit | None = None
    replace: bool = False

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.pipeline.sink.name, self.pipeline.transform, self.fingerprint)


def format_ranges(batch: Batch) -> str:
    """Return the ranges of a batch as text for the log."""
    return first_few(batch.ranges)


def format_first_positions(decided: planning.Plan) -> str:
    """Return the positions that a plan stores without loading a record, as text for the log."""
    return first_few(f"{range_.topic_partition} {range_.end}" for range_ in decided.initial)
