"""Load orders when their lag reaches a threshold: no schedule, no sensor, and no run while there is nothing to do.

A trigger watches the asset. It fires when a thousand orders are unread, when the oldest unread order is five minutes
old, or when retention deletes one within an hour. All triggers of a triggerer share one poll of the cluster.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_kafka_offsets import Json, KafkaBatchOperator, KafkaLagEventTrigger, SqlTable

orders = Asset(
    "orders_to_load",
    watchers=[
        AssetWatcher(
            name="orders_lag",
            trigger=KafkaLagEventTrigger(
                group_id="lag_orders_loader",
                topics=["orders"],
                conn_id="warehouse",
                min_lag=1_000,
                max_delay=timedelta(minutes=5),
                min_headroom=timedelta(hours=1),
                poll_interval=timedelta(seconds=10),
            ),
        )
    ],
)

with DAG(
    dag_id="load_orders_on_lag",
    schedule=[orders],
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    tags=["kafka"],
):
    KafkaBatchOperator(
        task_id="load",
        group_id="lag_orders_loader",
        topics=["orders"],
        value_format=Json("id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP"),
        sink=SqlTable("lag_orders", conn_id="warehouse"),
    )
