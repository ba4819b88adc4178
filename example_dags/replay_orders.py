"""Load a span of orders again, in parts, while the DAG `load_orders` goes on: after a bug, or for a new column.

Trigger it manually, with the span as parameters. One task turns the instants into offsets and splits the ranges. Each
part is a mapped task, which replaces the old rows in one transaction. The positions of `orders_loader` do not move. The
span must be loaded already.
"""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG, Param

from airflow_kafka_offsets import Json, KafkaReplayOperator, KafkaReplayPlanOperator, SqlTable, TimeBounds

with DAG(
    dag_id="replay_orders",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    params={
        "since": Param("2026-01-01T00:00:00Z", type="string", format="date-time"),
        "until": Param("2026-01-02T00:00:00Z", type="string", format="date-time"),
        "reason": Param("", type="string"),
    },
    tags=["kafka"],
):
    plan = KafkaReplayPlanOperator(
        task_id="plan",
        group_id="orders_loader",
        topics=["orders"],
        bounds=TimeBounds("{{ params.since }}", "{{ params.until }}"),
        parts=2,
    )
    KafkaReplayOperator.partial(
        task_id="replay",
        group_id="orders_loader",
        topics=["orders"],
        value_format=Json("id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP"),
        sink=SqlTable("orders", conn_id="warehouse"),
        replace=True,
        reason="{{ params.reason }}",
        max_active_tis_per_dag=2,
    ).expand(bounds=plan.output)
