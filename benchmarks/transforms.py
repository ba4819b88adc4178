"""A small transform, in the ways to write one: a filter that keeps all rows, and a computed column."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from airflow_kafka_offsets import ArrowTransform, Sql

ARROW_NET = ArrowTransform("benchmarks.transforms.arrow_net")

SQL_NET = Sql(
    "SELECT id, customer, CAST(amount / 2 AS DECIMAL(10,2)) AS amount, created FROM records WHERE amount >= 0"
)


def net(orders: DataFrame) -> DataFrame:
    return orders.where(F.col("amount") >= 0).withColumn("amount", (F.col("amount") / 2).cast("DECIMAL(10,2)"))


def arrow_net(orders: pa.RecordBatch) -> pa.RecordBatch:
    kept = orders.filter(pc.greater_equal(orders["amount"], pa.scalar(0, pa.decimal128(10, 2))))
    amount = pc.cast(pc.divide(kept["amount"], pa.scalar(2, pa.decimal128(1, 0))), pa.decimal128(10, 2), safe=False)
    return kept.set_column(kept.schema.get_field_index("amount"), "amount", amount)
