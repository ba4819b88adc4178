"""Load orders with a SELECT over each batch, in the pass that decodes the records: the quick way to filter and compute.

It needs the extra `sql` on the worker, and datafusion where Spark's executors run.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_kafka_offsets import DeadLetters, Json, KafkaBatchOperator, KafkaVerifyOperator, Sql, SqlTable

with DAG(
    dag_id="transform_orders_with_sql",
    schedule=timedelta(hours=1),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    params={"most": 500},
    tags=["kafka"],
):
    small_orders = SqlTable("small_orders", conn_id="warehouse")
    load = KafkaBatchOperator(
        task_id="load_small_orders",
        group_id="small_orders_loader",
        topics=["orders"],
        value_format=Json("id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP"),
        transform=Sql(
            "SELECT id, customer, amount * 2 AS double, CAST(created AS DATE) AS day FROM records WHERE amount <= {{ "
            "params.most }}"
        ),
        sink=small_orders,
        on_bad_record=DeadLetters(limit=100),
    )
    verify = KafkaVerifyOperator(task_id="verify", group_id="small_orders_loader", sink=small_orders)
    load >> verify
