"""A pipeline, its batch, and what Spark leaves of it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from airflow_kafka_offsets import Staging
from airflow_kafka_offsets.core.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.formats.columns import row_columns
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.ledger.batch_rows import Batch, Recipe
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.loading.context import LoadContext
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.loading.stage import StagedBatch, launch_application, make_job
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import MANIFEST, Manifest, SliceRead
from airflow_kafka_offsets.staging.rows import TargetColumns

ORDERS = TopicPartition("orders", 0)


RANGE = OffsetRange("orders", 0, 10, 30, 30)


PIPELINE = Pipeline(
    group_id="group",
    topics=("orders",),
    value_format=Json("id BIGINT"),
    sink=SqlTable("target"),
    staging=Staging(slice_offsets=10),
)


COLUMNS = row_columns(PIPELINE.value_format)


WANTED = PIPELINE.fingerprint(COLUMNS)


def batch(*ranges: OffsetRange, **fields: Any) -> Batch:
    return Batch(1, "group", "planned", ranges, **fields)


def read(start: int, end: int, records: int | None = 5, **fields: Any) -> SliceRead:
    return SliceRead(0, "orders", 0, start, end, records, **fields)


def job(planned: Batch, directory: StagingDirectory, pipeline: Pipeline = PIPELINE) -> StageJob:
    values: dict[str, Any] = dict.fromkeys(field.name for field in fields(LoadContext))
    values |= {"pipeline": pipeline, "kafka_config": {}, "columns": COLUMNS, "connections": {}}
    engine = sa.create_engine("sqlite://")
    values |= {"ledger": Ledger(engine), "table": pipeline.sink.connect(engine, {})}
    values |= {"target": TargetColumns("target", None), "recipe": Recipe("target", None, WANTED)}
    return make_job(LoadContext(**values), "load", planned, directory)


def launched(tmp_path: Path, planned: Batch, *reads: SliceRead) -> StagedBatch:
    """What a launcher left whose slices read this."""

    class Launcher:
        def check(self, staging_dir: str | None) -> None: ...

        def cancel(self) -> None: ...

        def close(self) -> None: ...

        def __call__(self, job: StageJob) -> None:
            directory.write_text(MANIFEST, Manifest(1, WANTED, (), reads).to_json())

    directory = StagingDirectory(str(tmp_path))
    return launch_application(Launcher(), job(planned, directory), planned, directory)
