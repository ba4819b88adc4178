"""Load Kafka topics in batches with Airflow and Spark: output and offsets move in one database transaction.

The names of the public surface are imported on first use. Airflow loads this package while its own configuration is
half initialised, DAG files are parsed every few seconds, and the Spark part travels to executors that have neither
Airflow nor SQLAlchemy: importing the package must cost nothing and need nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_EXPORTS = {
    "BatchBounds": "airflow_kafka_offsets.replaying.bounds",
    "CommittedBy": "airflow_kafka_offsets.core.instants",
    "Json": "airflow_kafka_offsets.formats.json_format",
    "KafkaBatchOperator": "airflow_kafka_offsets.operators.batch",
    "KafkaLagEventTrigger": "airflow_kafka_offsets.triggers.lag",
    "KafkaLagSensor": "airflow_kafka_offsets.sensors.lag",
    "KafkaLagTrigger": "airflow_kafka_offsets.triggers.lag",
    "KafkaOffsetsRetryPolicy": "airflow_kafka_offsets.operators.retry_policy",
    "KafkaReplayOperator": "airflow_kafka_offsets.operators.replay",
    "KafkaReplayPlanOperator": "airflow_kafka_offsets.operators.replay",
    "KafkaRewindOperator": "airflow_kafka_offsets.operators.rewind",
    "KafkaVerifyOperator": "airflow_kafka_offsets.operators.verify",
    "LoadOptions": "airflow_kafka_offsets.loading.pipeline",
    "LoadResult": "airflow_kafka_offsets.loading.context",
    "OffsetBounds": "airflow_kafka_offsets.replaying.bounds",
    "Pipeline": "airflow_kafka_offsets.loading.pipeline",
    "Raw": "airflow_kafka_offsets.formats.raw",
    "RewindPreview": "airflow_kafka_offsets.rewinding.preview",
    "RewindResult": "airflow_kafka_offsets.rewinding.execution",
    "Scenario": "airflow_kafka_offsets.rewinding.scenarios",
    "SessionLauncher": "airflow_kafka_offsets.spark.session_launcher",
    "SqlTable": "airflow_kafka_offsets.sinks.sql.table",
    "TimeBounds": "airflow_kafka_offsets.replaying.bounds",
    "abandon_batch": "airflow_kafka_offsets.rewinding.execution",
    "execute_rewind": "airflow_kafka_offsets.rewinding.execution",
    "load": "airflow_kafka_offsets.loading.load",
    "parse_scope": "airflow_kafka_offsets.core.scope",
    "preview_rewind": "airflow_kafka_offsets.rewinding.previewing",
    "replay": "airflow_kafka_offsets.replaying.replay",
    "verify": "airflow_kafka_offsets.verification.verify",
}

__all__ = ["__version__", *_EXPORTS]

if TYPE_CHECKING:
    from airflow_kafka_offsets.core.instants import CommittedBy as CommittedBy
    from airflow_kafka_offsets.core.scope import parse_scope as parse_scope
    from airflow_kafka_offsets.formats.json_format import Json as Json
    from airflow_kafka_offsets.formats.raw import Raw as Raw
    from airflow_kafka_offsets.loading.context import LoadResult as LoadResult
    from airflow_kafka_offsets.loading.load import load as load
    from airflow_kafka_offsets.loading.pipeline import LoadOptions as LoadOptions
    from airflow_kafka_offsets.loading.pipeline import Pipeline as Pipeline
    from airflow_kafka_offsets.operators.batch import KafkaBatchOperator as KafkaBatchOperator
    from airflow_kafka_offsets.operators.replay import KafkaReplayOperator as KafkaReplayOperator
    from airflow_kafka_offsets.operators.replay import KafkaReplayPlanOperator as KafkaReplayPlanOperator
    from airflow_kafka_offsets.operators.retry_policy import KafkaOffsetsRetryPolicy as KafkaOffsetsRetryPolicy
    from airflow_kafka_offsets.operators.rewind import KafkaRewindOperator as KafkaRewindOperator
    from airflow_kafka_offsets.operators.verify import KafkaVerifyOperator as KafkaVerifyOperator
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
    from airflow_kafka_offsets.sinks.sql.table import SqlTable as SqlTable
    from airflow_kafka_offsets.spark.session_launcher import SessionLauncher as SessionLauncher
    from airflow_kafka_offsets.triggers.lag import KafkaLagEventTrigger as KafkaLagEventTrigger
    from airflow_kafka_offsets.triggers.lag import KafkaLagTrigger as KafkaLagTrigger
    from airflow_kafka_offsets.verification.verify import verify as verify


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
