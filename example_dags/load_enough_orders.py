"""Load orders when enough are unread, or when the oldest unread order is old enough: a sensor in front of a load.

The sensor waits in the triggerer and occupies no worker. Its result is a hint: the load reads the positions again.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_kafka_offsets import Json, KafkaBatchOperator, KafkaLagSensor, SqlTable

with DAG(
    dag_id="load_enough_orders",
    schedule="@continuous",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    tags=["kafka"],
):
    enough = KafkaLagSensor(
        task_id="enough",
        group_id="enough_orders_loader",
        topics=["orders"],
        conn_id="warehouse",
        min_lag=100_000,
        max_delay=timedelta(minutes=15),
        poke_interval=timedelta(seconds=30),
        timeout=timedelta(hours=24),
        deferrable=True,
    )
    load = KafkaBatchOperator(
        task_id="load",
        group_id="enough_orders_loader",
        topics=["orders"],
        value_format=Json("id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP"),
        sink=SqlTable("enough_orders", conn_id="warehouse"),
    )
    enough >> load
