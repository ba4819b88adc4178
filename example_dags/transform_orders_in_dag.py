"""Load orders with a DataFrame transform that is written in the DAG file itself: it travels to Spark as code."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow.sdk import DAG, task

from airflow_kafka_offsets import DeadLetters, Json, KafkaVerifyOperator, SqlTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RATE = 1.19

daily_orders = SqlTable("daily_orders", conn_id="warehouse")

with DAG(
    dag_id="transform_orders_in_dag",
    schedule=timedelta(hours=1),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["kafka"],
):

    @task.kafka_batch(
        group_id="daily_orders_loader",
        topics=["orders"],
        value_format=Json("id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP"),
        sink=daily_orders,
        on_bad_record=DeadLetters(limit=100),
        modules=["order_transforms"],
    )
    def load_daily_orders(orders: DataFrame, loaded_for: str) -> DataFrame:
        from order_transforms import large_orders
        from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

        gross = F.udf(lambda net: float(net) * RATE, "double")
        return large_orders(orders).withColumn("gross", gross("net_amount")).withColumn("loaded_for", F.lit(loaded_for))

    load = load_daily_orders(loaded_for="{{ ds }}")
    load >> KafkaVerifyOperator(task_id="verify", group_id="daily_orders_loader", sink=daily_orders)
