"""Load a span of orders again, in parts, beside the DAG that loads them: after a bug, or for a column that was added.

Triggered by hand, with the span as parameters. One task turns the instants into offsets and cuts them; each part is a mapped
task, whose rows take the place of the old ones in one transaction. The positions of `orders_loader` do not move, and its
loads go on. The span has to end before what is not loaded yet.
"""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG, Param

from airflow_kafka_offsets import Json, KafkaReplayOperator, KafkaReplayPlanOperator, SqlTable

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
        since="{{ params.since }}",
        until="{{ params.until }}",
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
    ).expand(offsets=plan.output)
