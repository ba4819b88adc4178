"""Load Kafka topics in batches with Airflow and Spark: output and offsets move in one database transaction.

The names of the public surface are imported on first use. Airflow loads this package while its own configuration is
half initialised, DAG files are parsed every few seconds, and the Spark part travels to executors that have neither
Airflow nor SQLAlchemy: importing the package must cost nothing and need nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_MODULES = {
    "core.instants": ("CommittedBy",),
    "core.offsets": ("parse_scope",),
    "core.options": ("Coordination", "DeadLetters", "Limits", "Reading", "Staging", "StateTables"),
    "formats.avro_format": ("Avro",),
    "formats.extra_columns": ("ExtraColumns", "Header"),
    "formats.json_schema_format": ("JsonSchema",),
    "formats.protobuf_format": ("Protobuf",),
    "formats.simple_formats": ("Json", "Raw", "Text"),
    "dead_letters.replay": ("replay_dead_letters",),
    "dead_letters.selection": ("DeadLetterFilter", "drop_dead_letters"),
    "loading.context": ("LoadResult",),
    "loading.load": ("load",),
    "loading.pipeline": ("LoadOptions", "Pipeline"),
    "operators.batch": ("KafkaBatchOperator", "KafkaReplayOperator", "KafkaReplayPlanOperator"),
    "operators.positions": ("KafkaRewindOperator", "KafkaVerifyOperator"),
    "operators.retry_policy": ("KafkaOffsetsRetryPolicy",),
    "operators.task_decorator": ("kafka_batch_task",),
    "replaying.bounds": ("BatchBounds", "OffsetBounds", "TimeBounds"),
    "replaying.replay": ("replay",),
    "rewinding.execution": ("RewindResult", "abandon_batch", "execute_rewind"),
    "rewinding.preview": ("RewindPreview",),
    "rewinding.previewing": ("preview_rewind",),
    "rewinding.scenarios": ("Scenario",),
    "sensors.lag": ("KafkaLagSensor",),
    "sinks.iceberg.table": ("IcebergTable",),
    "sinks.delta.table": ("DeltaTable",),
    "sinks.function": ("FunctionSink",),
    "sinks.fan_out": ("Branch",),
    "sinks.parquet.files": ("ParquetFiles",),
    "sinks.sql.table": ("SqlTable",),
    "spark.properties": ("Spark",),
    "spark.launchers": ("SessionLauncher",),
    "transforms.arrow": ("ArrowTransform",),
    "transforms.sql": ("Sql",),
    "triggers.lag": ("KafkaLagEventTrigger", "KafkaLagTrigger"),
    "verification.verify": ("verify",),
}

_EXPORTS = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["__version__", *_EXPORTS]

if TYPE_CHECKING:
    from airflow_kafka_offsets.core.instants import CommittedBy as CommittedBy
    from airflow_kafka_offsets.core.offsets import parse_scope as parse_scope
    from airflow_kafka_offsets.core.options import Coordination as Coordination
    from airflow_kafka_offsets.core.options import DeadLetters as DeadLetters
    from airflow_kafka_offsets.core.options import Limits as Limits
    from airflow_kafka_offsets.core.options import Reading as Reading
    from airflow_kafka_offsets.core.options import Staging as Staging
    from airflow_kafka_offsets.core.options import StateTables as StateTables
    from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters as replay_dead_letters
    from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter as DeadLetterFilter
    from airflow_kafka_offsets.dead_letters.selection import drop_dead_letters as drop_dead_letters
    from airflow_kafka_offsets.formats.avro_format import Avro as Avro
    from airflow_kafka_offsets.formats.extra_columns import ExtraColumns as ExtraColumns
    from airflow_kafka_offsets.formats.extra_columns import Header as Header
    from airflow_kafka_offsets.formats.json_schema_format import JsonSchema as JsonSchema
    from airflow_kafka_offsets.formats.protobuf_format import Protobuf as Protobuf
    from airflow_kafka_offsets.formats.simple_formats import Json as Json
    from airflow_kafka_offsets.formats.simple_formats import Raw as Raw
    from airflow_kafka_offsets.formats.simple_formats import Text as Text
    from airflow_kafka_offsets.loading.context import LoadResult as LoadResult
    from airflow_kafka_offsets.loading.load import load as load
    from airflow_kafka_offsets.loading.pipeline import LoadOptions as LoadOptions
    from airflow_kafka_offsets.loading.pipeline import Pipeline as Pipeline
    from airflow_kafka_offsets.operators.batch import KafkaBatchOperator as KafkaBatchOperator
    from airflow_kafka_offsets.operators.batch import KafkaReplayOperator as KafkaReplayOperator
    from airflow_kafka_offsets.operators.batch import KafkaReplayPlanOperator as KafkaReplayPlanOperator
    from airflow_kafka_offsets.operators.positions import KafkaRewindOperator as KafkaRewindOperator
    from airflow_kafka_offsets.operators.positions import KafkaVerifyOperator as KafkaVerifyOperator
    from airflow_kafka_offsets.operators.retry_policy import KafkaOffsetsRetryPolicy as KafkaOffsetsRetryPolicy
    from airflow_kafka_offsets.operators.task_decorator import kafka_batch_task as kafka_batch_task
    from airflow_kafka_offsets.replaying.bounds import BatchBounds as BatchBounds
    from airflow_kafka_offsets.replaying.bounds import OffsetBounds as OffsetBounds
    from airflow_kafka_offsets.replaying.bounds import TimeBounds as TimeBounds
    from airflow_kafka_offsets.replaying.replay import replay as replay
    from airflow_kafka_offsets.rewinding.execution import RewindResult as RewindResult
    from airflow_kafka_offsets.rewinding.execution import abandon_batch as abandon_batch
    from airflow_kafka_offsets.rewinding.execution import execute_rewind as execute_rewind
    from airflow_kafka_offsets.rewinding.preview import RewindPreview as RewindPreview
    from airflow_kafka_offsets.rewinding.previewing import preview_rewind as preview_rewind
    from airflow_kafka_offsets.rewinding.scenarios import Scenario as Scenario
    from airflow_kafka_offsets.sensors.lag import KafkaLagSensor as KafkaLagSensor
    from airflow_kafka_offsets.sinks.delta.table import DeltaTable as DeltaTable
    from airflow_kafka_offsets.sinks.fan_out import Branch as Branch
    from airflow_kafka_offsets.sinks.function import FunctionSink as FunctionSink
    from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable as IcebergTable
    from airflow_kafka_offsets.sinks.parquet.files import ParquetFiles as ParquetFiles
    from airflow_kafka_offsets.sinks.sql.table import SqlTable as SqlTable
    from airflow_kafka_offsets.spark.launchers import SessionLauncher as SessionLauncher
    from airflow_kafka_offsets.spark.properties import Spark as Spark
    from airflow_kafka_offsets.transforms.arrow import ArrowTransform as ArrowTransform
    from airflow_kafka_offsets.transforms.sql import Sql as Sql
    from airflow_kafka_offsets.triggers.lag import KafkaLagEventTrigger as KafkaLagEventTrigger
    from airflow_kafka_offsets.triggers.lag import KafkaLagTrigger as KafkaLagTrigger
    from airflow_kafka_offsets.verification.verify import verify as verify


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
