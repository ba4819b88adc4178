"""Load JSON records, each with the id of its JSON Schema, into a table, exactly once.

The connection `registry` is of type `generic` or `http`, and its host is the URL of the registry. No columns are
declared: the table has one for each property of the latest schema of the subject `json_schema_orders-value`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_kafka_offsets import DeadLetters, JsonSchema, KafkaBatchOperator, SqlTable

with DAG(
    dag_id="load_json_schema_orders",
    schedule=timedelta(minutes=15),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    tags=["kafka"],
):
    KafkaBatchOperator(
        task_id="load_json_schema_orders",
        group_id="json_schema_orders_loader",
        topics=["json_schema_orders"],
        value_format=JsonSchema(registry_conn_id="registry"),
        on_bad_record=DeadLetters(),
        sink=SqlTable("json_schema_orders", conn_id="warehouse"),
    )
