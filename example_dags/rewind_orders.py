"""Move the positions of the DAG `load_orders`: a preview by default, the rewind when `preview_only` is unchecked.

Trigger it manually, with the scenario as parameters. The task's log shows the move of each partition, and its XCom has
the whole preview. The rewind deletes the rows of the offsets that will be read again in the same transaction. The next
run of `load_orders` loads them again. `docs/runbook.md` describes the situations.
"""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG, Param

from airflow_kafka_offsets import KafkaRewindOperator, SqlTable

with DAG(
    dag_id="rewind_orders",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    max_active_runs=1,
    params={
        "scenario": Param(
            "to-datetime",
            enum=[
                "to-datetime",
                "by-duration",
                "to-offset",
                "shift-by",
                "to-earliest",
                "to-latest",
                "to-batch",
                "undo",
            ],
        ),
        "value": Param(
            "2026-01-01T00:00:00Z",
            type=["string", "null"],
            description="instant, duration, offset, number of offsets, or batch; empty for the other scenarios",
        ),
        "preview_only": Param(True, type="boolean"),
        "reason": Param("", type="string", description="stored in the history"),
    },
    tags=["kafka"],
):
    KafkaRewindOperator(
        task_id="rewind",
        group_id="orders_loader",
        scenario="{{ params.scenario }}",
        value="{{ params.value or '' }}",
        conn_id="warehouse",
        preview_only="{{ params.preview_only }}",
        reason="{{ params.reason }}",
        replace=SqlTable("orders", conn_id="warehouse"),
    )
