"""Transforms of the example DAGs: functions from DataFrame to DataFrame, and from Arrow record batch to record batch.

They have a module of their own, so that Spark's driver imports them without importing a DAG.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def large_orders(orders: DataFrame) -> DataFrame:
    """Return orders above 500, with the amount before tax. The columns that start with _kafka_ are kept."""
    from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

    large = orders.where(F.col("amount") > 500)
    return large.withColumn("net_amount", (F.col("amount") / F.lit(1.19)).cast("DECIMAL(10,2)")).drop("amount")


def with_tax(orders: pa.RecordBatch) -> pa.RecordBatch:
    """Return orders with the tax that their amounts contain. The columns that start with _kafka_ are kept."""
    import pyarrow as pa
    import pyarrow.compute as pc

    amount = orders["amount"]
    tax = pc.subtract(amount, pc.cast(pc.divide(amount, pa.scalar(1.19)), amount.type, safe=False))
    return orders.append_column("tax", pc.cast(tax, pa.decimal128(10, 2), safe=False))
