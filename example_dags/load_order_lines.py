"""Load records whose keys and values are plain text, one line each, with the time at which they were written."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_kafka_offsets import DeadLetters, ExtraColumns, KafkaBatchOperator, KafkaVerifyOperator, SqlTable, Text

with DAG(
    dag_id="load_order_lines",
    schedule=timedelta(hours=1),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["kafka"],
):
    lines = SqlTable("order_lines", conn_id="warehouse")
    load = KafkaBatchOperator(
        task_id="load_lines",
        group_id="order_lines_loader",
        topics=["orders"],
        extra_columns=ExtraColumns(key_format=Text("order_key"), metadata={"written_at": "timestamp"}),
        value_format=Text("line"),
        sink=lines,
        on_bad_record=DeadLetters(limit=0.01),
    )
    verify = KafkaVerifyOperator(task_id="verify", group_id="order_lines_loader", sink=lines)
    load >> verify
