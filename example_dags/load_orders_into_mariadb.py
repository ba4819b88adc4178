"""Load orders into MariaDB or MySQL: rows and positions in one InnoDB transaction."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_kafka_offsets import DeadLetters, Json, KafkaBatchOperator, KafkaVerifyOperator, SqlTable

with DAG(
    dag_id="load_orders_into_mariadb",
    schedule=timedelta(hours=1),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["kafka"],
):
    orders = SqlTable("orders", conn_id="shop", upsert_key=("id",))
    load = KafkaBatchOperator(
        task_id="load_orders",
        group_id="orders_into_mariadb",
        topics=["orders"],
        value_format=Json("id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP"),
        sink=orders,
        on_bad_record=DeadLetters(limit=100),
    )
    # Without Kafka: later batches replace rows, so records cannot be looked up in the table.
    verify = KafkaVerifyOperator(task_id="verify", group_id="orders_into_mariadb", sink=orders)
    load >> verify
