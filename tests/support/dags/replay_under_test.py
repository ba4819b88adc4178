"""The DAG of the test that replays in mapped parts with the real `airflow` command."""

from __future__ import annotations

import json
import os
from datetime import datetime
from typing import Any

from airflow.sdk import DAG

from airflow_kafka_offsets import BatchBounds, Json, KafkaReplayOperator, KafkaReplayPlanOperator, SqlTable

OPTIONS: dict[str, Any] = json.loads(os.environ.get("REPLAY_UNDER_TEST", '{"topic": "none", "batch_id": 1}'))
COMMON: dict[str, Any] = {"group_id": "loader", "topics": [OPTIONS["topic"]]}

with DAG(dag_id="replay_under_test", schedule=None, start_date=datetime(2026, 1, 1), catchup=False):
    plan = KafkaReplayPlanOperator(
        task_id="plan", parts="{{ 1 + 1 }}", bounds=BatchBounds(OPTIONS["batch_id"]), conn_id="warehouse", **COMMON
    )
    KafkaReplayOperator.partial(
        task_id="replay",
        value_format=Json("id BIGINT NOT NULL, name STRING"),
        sink=SqlTable("elsewhere", conn_id="warehouse"),
        reason="{{ dag_run.run_id }}",
        **COMMON,
    ).expand(bounds=plan.output)
