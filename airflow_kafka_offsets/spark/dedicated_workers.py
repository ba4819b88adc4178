"""Python workers in which nothing but this package runs: they do without pandas, whatever functions of the user
need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.spark.hidden_pandas import without_pandas

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# Spark has workers for each environment that functions have, and never mixes them. A function has that of its context
# at the time at which it is given to a DataFrame.
_NAME = "KAFKA_OFFSETS_WORKERS"

ArrowFunction = Callable[["Iterator[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]


def map_in_own_workers(spark: SparkSession, rows: DataFrame, function: ArrowFunction, ddl: str) -> DataFrame:
    """Do as `rows.mapInArrow` does, in workers of their own.

    :param spark: a session with a context in this process; no other thread gives functions to it meanwhile
    :param function: needs no pandas
    :param ddl: the columns of the result
    """

    def without(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        without_pandas()
        return function(batches)

    with _own_environment(spark), _unchecked_pandas():
        return rows.mapInArrow(without, ddl)


@contextmanager
def _own_environment(spark: SparkSession) -> Iterator[None]:
    environment = spark.sparkContext.environment
    environment[_NAME] = "1"
    try:
        yield
    finally:
        del environment[_NAME]


@contextmanager
def _unchecked_pandas() -> Iterator[None]:
    """Have PySpark take a function of Arrow without importing pandas, which it otherwise does to know its version."""
    functions: Any = import_module("pyspark.sql.pandas.functions")
    check = functions.require_minimum_pandas_version
    functions.require_minimum_pandas_version = lambda: None
    try:
        yield
    finally:
        functions.require_minimum_pandas_version = check
