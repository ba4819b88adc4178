"""Load records as they are, in whatever format: here as base64 with their digests, which a SELECT over each batch
computes.

It needs the extra `sql` on the worker, and datafusion where Spark's executors run.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_kafka_offsets import KafkaBatchOperator, KafkaVerifyOperator, Raw, Sql, SqlTable

with DAG(
    dag_id="load_raw_orders",
    schedule=timedelta(hours=1),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["kafka"],
):
    digests = SqlTable("order_digests", conn_id="warehouse")
    load = KafkaBatchOperator(
        task_id="load_digests",
        group_id="order_digests_loader",
        topics=["orders"],
        value_format=Raw(),
        transform=Sql("SELECT key, encode(value, 'base64') AS body, sha256(value) AS digest FROM records"),
        sink=digests,
    )
    verify = KafkaVerifyOperator(task_id="verify", group_id="order_digests_loader", sink=digests)
    load >> verify
