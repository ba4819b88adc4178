"""The DAG of the test that verifies a group with the real `airflow` command."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG

from airflow_kafka_offsets import SqlTable
from airflow_kafka_offsets.operators.positions import KafkaVerifyOperator

with DAG(dag_id="verify_under_test", schedule=None, start_date=datetime(2026, 1, 1), catchup=False):
    KafkaVerifyOperator(
        task_id="verify",
        group_id="{{ 'loader' }}",
        sink=SqlTable("target", conn_id="warehouse"),
        kafka_conn_id="kafka_default",
    )
