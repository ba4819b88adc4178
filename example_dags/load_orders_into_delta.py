"""Load orders into a Delta table on S3: Spark's tasks write the files, and the commit has the number of the batch."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_kafka_offsets import DeadLetters, DeltaTable, Json, KafkaBatchOperator, KafkaVerifyOperator

with DAG(
    dag_id="load_orders_into_delta",
    schedule=timedelta(hours=1),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["kafka"],
):
    orders = DeltaTable("s3://lake/delta/orders", conn_id="warehouse", storage_conn_id="lake")
    load = KafkaBatchOperator(
        task_id="load_orders",
        group_id="orders_into_delta",
        topics=["orders"],
        value_format=Json("id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP"),
        sink=orders,
        on_bad_record=DeadLetters(limit=100),
    )
    verify = KafkaVerifyOperator(
        task_id="verify", group_id="orders_into_delta", sink=orders, kafka_conn_id="kafka_default"
    )
    load >> verify
