"""Load orders from Kafka into a table, exactly once.

Each run loads the records that arrived since the last run. One transaction in the database of the connection
`warehouse` writes the rows and moves the positions. A retry or a clear never loads a record twice.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_kafka_offsets import Json, KafkaBatchOperator, SqlTable

with DAG(
    dag_id="load_orders",
    schedule=timedelta(minutes=15),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    tags=["kafka"],
):
    KafkaBatchOperator(
        task_id="load_orders",
        group_id="orders_loader",
        topics=["orders"],
        value_format=Json("id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP"),
        sink=SqlTable("orders", conn_id="warehouse"),
    )
