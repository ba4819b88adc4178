"""Load orders with a function from Arrow record batch to Arrow record batch, in the pass that decodes the records."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_kafka_offsets import ArrowTransform, DeadLetters, Json, KafkaBatchOperator, KafkaVerifyOperator, SqlTable

with DAG(
    dag_id="transform_orders_with_arrow",
    schedule=timedelta(hours=1),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["kafka"],
):
    taxed_orders = SqlTable("taxed_orders", conn_id="warehouse")
    load = KafkaBatchOperator(
        task_id="load_taxed_orders",
        group_id="taxed_orders_loader",
        topics=["orders"],
        value_format=Json("id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP"),
        transform=ArrowTransform("order_transforms.with_tax"),
        sink=taxed_orders,
        on_bad_record=DeadLetters(limit=100),
    )
    verify = KafkaVerifyOperator(task_id="verify", group_id="taxed_orders_loader", sink=taxed_orders)
    load >> verify
