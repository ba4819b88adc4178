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
    "CommittedBy": "airflow_kafka_offsets.bounds",
    "Json": "airflow_kafka_offsets.formats",
    "KafkaBatchOperator": "airflow_kafka_offsets.operators.batch",
    "KafkaOffsetsRetryPolicy": "airflow_kafka_offsets.retry_policy",
    "KafkaVerifyOperator": "airflow_kafka_offsets.operators.verify",
    "LoadResult": "airflow_kafka_offsets.batch",
    "Pipeline": "airflow_kafka_offsets.pipeline",
    "Raw": "airflow_kafka_offsets.formats",
    "SessionLauncher": "airflow_kafka_offsets.spark.session",
    "SqlTable": "airflow_kafka_offsets.sinks",
    "load": "airflow_kafka_offsets.batch",
    "verify": "airflow_kafka_offsets.verification",
}

__all__ = ["__version__", *_EXPORTS]

if TYPE_CHECKING:
    from airflow_kafka_offsets.batch import LoadResult as LoadResult
    from airflow_kafka_offsets.batch import load as load
    from airflow_kafka_offsets.bounds import CommittedBy as CommittedBy
    from airflow_kafka_offsets.formats import Json as Json
    from airflow_kafka_offsets.formats import Raw as Raw
    from airflow_kafka_offsets.operators.batch import KafkaBatchOperator as KafkaBatchOperator
    from airflow_kafka_offsets.operators.verify import KafkaVerifyOperator as KafkaVerifyOperator
    from airflow_kafka_offsets.pipeline import Pipeline as Pipeline
    from airflow_kafka_offsets.retry_policy import KafkaOffsetsRetryPolicy as KafkaOffsetsRetryPolicy
    from airflow_kafka_offsets.sinks import SqlTable as SqlTable
    from airflow_kafka_offsets.spark.session import SessionLauncher as SessionLauncher
    from airflow_kafka_offsets.verification import verify as verify


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
