"""The same load with a DataFrame transform between Kafka and the table."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_kafka_offsets import Json, KafkaBatchOperator, SqlTable

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
        transform="order_transforms.large_orders",
        sink=SqlTable("large_orders", conn_id="warehouse"),
    )
