"""A DAG that reads the positions in a template."""

from __future__ import annotations

from datetime import datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(dag_id="positions_macro", schedule=None, start_date=datetime(2026, 1, 1), catchup=False):
    BashOperator(
        task_id="show",
        bash_command="echo 'known: {{ macros.kafka_offsets.positions('warehouse', 'loader') }}'",
    )
