"""A transform that does a little of what transforms do: filter nothing away, compute a column, rename one."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention


def net(orders: DataFrame) -> DataFrame:
    return orders.where(F.col("amount") >= 0).withColumn("amount", (F.col("amount") / 2).cast("DECIMAL(10,2)"))
