"""Load Avro records with a schema registry into a table, exactly once.

The connection `registry` is of type `generic` or `http`, and its host is the URL of the registry. Keys are Avro, too:
the table has the column `customer_key`, and then one for each field of the declared value.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_kafka_offsets import Avro, DeadLetters, ExtraColumns, KafkaBatchOperator, SqlTable

with DAG(
    dag_id="load_avro_orders",
    schedule=timedelta(minutes=15),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    tags=["kafka"],
):
    KafkaBatchOperator(
        task_id="load_avro_orders",
        group_id="avro_orders_loader",
        topics=["avro_orders"],
        extra_columns=ExtraColumns(key_format=Avro("customer_key STRING", registry_conn_id="registry")),
        value_format=Avro("id BIGINT, customer STRING, amount DECIMAL(10,2)", registry_conn_id="registry"),
        on_bad_record=DeadLetters(),
        sink=SqlTable("avro_orders", conn_id="warehouse"),
    )
