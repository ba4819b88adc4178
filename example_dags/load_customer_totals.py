"""Keep totals of orders by customer: a function adds each order once, in the transaction that moves the positions."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_kafka_offsets import DeadLetters, FunctionSink, Json, KafkaBatchOperator, KafkaVerifyOperator

with DAG(
    dag_id="load_customer_totals",
    schedule=timedelta(hours=1),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["kafka"],
):
    totals = FunctionSink("order_sinks.add_to_totals", conn_id="warehouse")
    load = KafkaBatchOperator(
        task_id="load_totals",
        group_id="customer_totals_loader",
        topics=["orders"],
        value_format=Json(
            "id BIGINT NOT NULL, customer STRING NOT NULL, amount DECIMAL(10,2) NOT NULL, created TIMESTAMP"
        ),
        sink=totals,
        on_bad_record=DeadLetters(limit=100),
    )
    verify = KafkaVerifyOperator(task_id="verify", group_id="customer_totals_loader", sink=totals)
    load >> verify
