"""A small DataFrame transform: a filter that keeps all rows, and a computed column. Its module brings only PySpark into
a Spark application.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention


def net(orders: DataFrame) -> DataFrame:
    return orders.where(F.col("amount") >= 0).withColumn("amount", (F.col("amount") / 2).cast("DECIMAL(10,2)"))
