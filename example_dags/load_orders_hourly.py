"""Load the orders of each hour by their timestamps, also for past hours. Exactly one run loads each order.

A run stops at the first order of the next hour. The next run loads orders that arrive later.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, CronDataIntervalTimetable

from airflow_kafka_offsets import Json, KafkaBatchOperator, SqlTable

with DAG(
    dag_id="load_orders_hourly",
    # Not "@hourly": with Airflow's own timetable for it, a run has no data interval.
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    tags=["kafka"],
):
    KafkaBatchOperator(
        task_id="load",
        group_id="hourly_orders_loader",
        topics=["orders"],
        value_format=Json("id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP"),
        sink=SqlTable("hourly_orders", conn_id="warehouse"),
        until="{{ data_interval_end }}",
    )
