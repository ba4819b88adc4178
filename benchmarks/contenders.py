"""The contenders, in the order of each round, and which data sets each loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks import airflow_operator, handwritten_spark, package, plain_script
from benchmarks.datasets import Dataset
from benchmarks.load import Load
from benchmarks.measured import (
    ARROW,
    AVAILABLE_NOW,
    OPERATOR,
    PACKAGE,
    SCRIPT,
    SMALL,
    SPARK,
    SPARK_TRANSFORM,
    SQL,
    START,
    TRANSFORM,
)

CONTENDERS: Mapping[str, Callable[[Load], None]] = {
    START: package.run_empty_application,
    PACKAGE: package.load_orders,
    SQL: package.load_with_sql,
    ARROW: package.load_with_arrow,
    TRANSFORM: package.load_with_transform,
    SPARK: handwritten_spark.load_orders,
    SPARK_TRANSFORM: handwritten_spark.load_with_transform,
    AVAILABLE_NOW: handwritten_spark.load_available_now,
    OPERATOR: airflow_operator.load_orders,
    SCRIPT: plain_script.load_orders,
}

# Other shapes of records would only make the run longer.
_ORDERS_ONLY = (SPARK_TRANSFORM, AVAILABLE_NOW)


def contenders_of(dataset: Dataset) -> Mapping[str, Callable[[Load], None]]:
    """Return the contenders that load a data set."""
    small = dataset.records <= SMALL
    return {
        name: contender
        for name, contender in CONTENDERS.items()
        if (name != START or small) and (name not in _ORDERS_ONLY or dataset.name == "orders")
    }
