"""Load orders with a DataFrame transform between Kafka and the table, then prove that no record is missing.

Records that do not decode are written to the table `dead_letters`, up to a limit.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_kafka_offsets import DeadLetters, Json, KafkaBatchOperator, KafkaVerifyOperator, SqlTable

with DAG(
    dag_id="transform_orders",
    schedule=timedelta(hours=1),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["kafka"],
):
    large_orders = SqlTable("large_orders", conn_id="warehouse")
    load = KafkaBatchOperator(
        task_id="load_large_orders",
        group_id="large_orders_loader",
        topics=["orders"],
        value_format=Json("id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP"),
        transform="order_transforms.large_orders",
        sink=large_orders,
        on_bad_record=DeadLetters(limit=100),
    )
    verify = KafkaVerifyOperator(task_id="verify", group_id="large_orders_loader", sink=large_orders)
    load >> verify
