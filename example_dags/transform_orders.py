"""The same load with a DataFrame transform between Kafka and the table."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow.sdk import DAG

from airflow_kafka_offsets import Json, KafkaBatchOperator, SqlTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def large_orders(orders: DataFrame) -> DataFrame:
    """Orders above 500, with the amount after tax. Runs on Spark; the columns that start with _kafka_ go along."""
    from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

    large = orders.where(F.col("amount") > 500)
    return large.withColumn("net_amount", (F.col("amount") / F.lit(1.19)).cast("DECIMAL(10,2)")).drop("amount")


with DAG(
    dag_id="transform_orders",
    schedule=timedelta(hours=1),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["kafka"],
):
    KafkaBatchOperator(
        task_id="load_large_orders",
        group_id="large_orders_loader",
        topics=["orders"],
        value_format=Json("id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP"),
        transform="transform_orders.large_orders",
        sink=SqlTable("large_orders", conn_id="warehouse"),
    )
