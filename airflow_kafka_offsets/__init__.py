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
    "Between": "airflow_kafka_offsets.replay_bounds",
    "CommittedBy": "airflow_kafka_offsets.bounds",
    "Json": "airflow_kafka_offsets.formats",
    "KafkaBatchOperator": "airflow_kafka_offsets.operators.batch",
    "KafkaLagEventTrigger": "airflow_kafka_offsets.triggers.lag",
    "KafkaLagSensor": "airflow_kafka_offsets.sensors.lag",
    "KafkaLagTrigger": "airflow_kafka_offsets.triggers.lag",
    "KafkaOffsetsRetryPolicy": "airflow_kafka_offsets.retry_policy",
    "KafkaReplayOperator": "airflow_kafka_offsets.operators.replay",
    "KafkaReplayPlanOperator": "airflow_kafka_offsets.operators.replay",
    "KafkaRewindOperator": "airflow_kafka_offsets.operators.rewind",
    "KafkaVerifyOperator": "airflow_kafka_offsets.operators.verify",
    "LoadOptions": "airflow_kafka_offsets.pipeline",
    "LoadResult": "airflow_kafka_offsets.attempt",
    "OfBatch": "airflow_kafka_offsets.replay_bounds",
    "Offsets": "airflow_kafka_offsets.replay_bounds",
    "Pipeline": "airflow_kafka_offsets.pipeline",
    "Preview": "airflow_kafka_offsets.preview",
    "Raw": "airflow_kafka_offsets.formats",
    "Rewound": "airflow_kafka_offsets.rewind",
    "Scenario": "airflow_kafka_offsets.scenarios",
    "SessionLauncher": "airflow_kafka_offsets.spark.session",
    "SqlTable": "airflow_kafka_offsets.sinks",
    "abandon_batch": "airflow_kafka_offsets.rewind",
    "execute_rewind": "airflow_kafka_offsets.rewind",
    "load": "airflow_kafka_offsets.batch",
    "parse_scope": "airflow_kafka_offsets.scenarios",
    "preview_rewind": "airflow_kafka_offsets.rewind",
    "replay": "airflow_kafka_offsets.replaying",
    "verify": "airflow_kafka_offsets.verification",
}

__all__ = ["__version__", *_EXPORTS]

if TYPE_CHECKING:
    from airflow_kafka_offsets.attempt import LoadResult as LoadResult
    from airflow_kafka_offsets.batch import load as load
    from airflow_kafka_offsets.bounds import CommittedBy as CommittedBy
    from airflow_kafka_offsets.formats import Json as Json
    from airflow_kafka_offsets.formats import Raw as Raw
    from airflow_kafka_offsets.operators.batch import KafkaBatchOperator as KafkaBatchOperator
    from airflow_kafka_offsets.operators.replay import KafkaReplayOperator as KafkaReplayOperator
    from airflow_kafka_offsets.operators.replay import KafkaReplayPlanOperator as KafkaReplayPlanOperator
    from airflow_kafka_offsets.operators.rewind import KafkaRewindOperator as KafkaRewindOperator
    from airflow_kafka_offsets.operators.verify import KafkaVerifyOperator as KafkaVerifyOperator
    from airflow_kafka_offsets.pipeline import LoadOptions as LoadOptions
    from airflow_kafka_offsets.pipeline import Pipeline as Pipeline
    from airflow_kafka_offsets.preview import Preview as Preview
    from airflow_kafka_offsets.replay_bounds import Between as Between
    from airflow_kafka_offsets.replay_bounds import OfBatch as OfBatch
    from airflow_kafka_offsets.replay_bounds import Offsets as Offsets
    from airflow_kafka_offsets.replaying import replay as replay
    from airflow_kafka_offsets.retry_policy import KafkaOffsetsRetryPolicy as KafkaOffsetsRetryPolicy
    from airflow_kafka_offsets.rewind import Rewound as Rewound
    from airflow_kafka_offsets.rewind import abandon_batch as abandon_batch
    from airflow_kafka_offsets.rewind import execute_rewind as execute_rewind
    from airflow_kafka_offsets.rewind import preview_rewind as preview_rewind
    from airflow_kafka_offsets.scenarios import Scenario as Scenario
    from airflow_kafka_offsets.scenarios import parse_scope as parse_scope
    from airflow_kafka_offsets.sensors.lag import KafkaLagSensor as KafkaLagSensor
    from airflow_kafka_offsets.sinks import SqlTable as SqlTable
    from airflow_kafka_offsets.spark.session import SessionLauncher as SessionLauncher
    from airflow_kafka_offsets.triggers.lag import KafkaLagEventTrigger as KafkaLagEventTrigger
    from airflow_kafka_offsets.triggers.lag import KafkaLagTrigger as KafkaLagTrigger
    from airflow_kafka_offsets.verification import verify as verify


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
