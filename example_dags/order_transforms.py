"""Transforms of the example DAGs: functions from DataFrame to DataFrame that run on Spark.

They have a module of their own, so that Spark's driver imports them without importing a DAG.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def large_orders(orders: DataFrame) -> DataFrame:
    """Return orders above 500, with the amount before tax. The columns that start with _kafka_ are kept."""
    from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

    large = orders.where(F.col("amount") > 500)
    return large.withColumn("net_amount", (F.col("amount") / F.lit(1.19)).cast("DECIMAL(10,2)")).drop("amount")
