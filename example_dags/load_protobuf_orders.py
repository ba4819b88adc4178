"""Load Protobuf messages with a schema registry into a table, exactly once.

The connection `registry` is of type `generic` or `http`, and its host is the URL of the registry. Keys are Protobuf,
too: the table has the column `customer_key`, and then one for each field of the declared value.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_kafka_offsets import DeadLetters, ExtraColumns, KafkaBatchOperator, Protobuf, SqlTable

with DAG(
    dag_id="load_protobuf_orders",
    schedule=timedelta(minutes=15),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    tags=["kafka"],
):
    KafkaBatchOperator(
        task_id="load_protobuf_orders",
        group_id="protobuf_orders_loader",
        topics=["protobuf_orders"],
        extra_columns=ExtraColumns(key_format=Protobuf("customer_key STRING", registry_conn_id="registry")),
        value_format=Protobuf(
            "id BIGINT, customer STRING, created TIMESTAMP, amount DOUBLE", registry_conn_id="registry"
        ),
        on_bad_record=DeadLetters(),
        sink=SqlTable("protobuf_orders", conn_id="warehouse"),
    )
