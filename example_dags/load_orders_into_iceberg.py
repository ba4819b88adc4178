"""Load orders into an Iceberg table on S3, whose catalog is in the database of the positions: both move in one
transaction.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_kafka_offsets import DeadLetters, IcebergTable, Json, KafkaBatchOperator, KafkaVerifyOperator, Staging

with DAG(
    dag_id="load_orders_into_iceberg",
    schedule=timedelta(hours=1),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["kafka"],
):
    orders = IcebergTable(
        "shop.orders",
        conn_id="warehouse",
        warehouse="s3://lake/warehouse",
        storage_conn_id="lake",
        partition_by=("day(created)",),
    )
    load = KafkaBatchOperator(
        task_id="load_orders",
        group_id="orders_into_iceberg",
        topics=["orders"],
        value_format=Json("id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP"),
        sink=orders,
        on_bad_record=DeadLetters(limit=100),
        # on a cluster: a location that all machines reach, with what their environment says
        staging=Staging(dir="s3://lake/staging"),
    )
    verify = KafkaVerifyOperator(
        task_id="verify", group_id="orders_into_iceberg", sink=orders, kafka_conn_id="kafka_default"
    )
    load >> verify
