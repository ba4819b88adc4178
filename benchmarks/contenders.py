"""The contenders, in the order of each round."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks import airflow_operator, handwritten_spark, package, plain_script
from benchmarks.load import Load
from benchmarks.measured import ARROW, OPERATOR, PACKAGE, SCRIPT, SPARK, SQL, START, TRANSFORM

CONTENDERS: Mapping[str, Callable[[Load], None]] = {
    START: package.run_empty_application,
    PACKAGE: package.load_orders,
    SQL: package.load_with_sql,
    ARROW: package.load_with_arrow,
    TRANSFORM: package.load_with_transform,
    SPARK: handwritten_spark.load_orders,
    OPERATOR: airflow_operator.load_orders,
    SCRIPT: plain_script.load_orders,
}
