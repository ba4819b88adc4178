"""The DAG of the tests that run the real `airflow` command; what differs between tests comes from the environment."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_kafka_offsets import (
    Coordination,
    DeadLetters,
    Json,
    KafkaBatchOperator,
    Limits,
    Reading,
    Spark,
    SqlTable,
    Staging,
)

OPTIONS = json.loads(os.environ.get("LOAD_UNDER_TEST", "{}"))
DEAD_LETTERS = OPTIONS.pop("dead_letters", None)

with DAG(dag_id="load_under_test", schedule=None, start_date=datetime(2026, 1, 1), catchup=False):
    KafkaBatchOperator(
        task_id="load",
        group_id=OPTIONS.pop("group_id", "loader"),
        value_format=Json(OPTIONS.pop("columns", "id BIGINT NOT NULL, name STRING")),
        sink=SqlTable(OPTIONS.pop("table", "target"), conn_id="warehouse"),
        limits=Limits(**OPTIONS.pop("limits", {})),
        coordination=Coordination(
            lease=timedelta(seconds=OPTIONS.pop("lease_seconds", 3)), **OPTIONS.pop("coordination", {})
        ),
        staging=Staging(**OPTIONS.pop("staging", {})),
        spark=Spark(**OPTIONS.pop("spark", {})),
        retry_delay=timedelta(seconds=OPTIONS.pop("retry_delay_seconds", 300)),
        reading=Reading(idle_timeout=timedelta(seconds=OPTIONS.pop("idle_timeout_seconds", 120))),
        on_bad_record="fail" if DEAD_LETTERS is None else DeadLetters(**DEAD_LETTERS),
        **OPTIONS,
    )


def keep_all(records):  # type: ignore[no-untyped-def]
    return records
