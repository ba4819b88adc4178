"""Who a running task is, for the state tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_offsets.ledger import TaskRun


def task_run(context: Context) -> TaskRun:
    """The task instance of a context, with its try."""
    # Here and not above: DAG files are parsed every few seconds.
    from airflow_kafka_offsets.ledger import TaskRun

    instance = context["ti"]
    return TaskRun(
        dag_id=instance.dag_id,
        task_id=instance.task_id,
        run_id=instance.run_id,
        map_index=instance.map_index,
        try_number=instance.try_number,
    )
