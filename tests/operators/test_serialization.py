"""DAGs with groups of parameters, as Airflow stores them: each field is visible, and a mapped task keeps its groups."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_kafka_offsets import (
    DeadLetters,
    Json,
    KafkaBatchOperator,
    KafkaLagEventTrigger,
    KafkaLagSensor,
    KafkaReplayOperator,
    Limits,
    Spark,
    SqlTable,
    StateTables,
    TimeBounds,
)

GIVEN: dict[str, Any] = {
    "group_id": "group",
    "topics": ["orders"],
    "value_format": Json("id BIGINT"),
    "sink": SqlTable("target", conn_id="warehouse"),
}


def stored(dag: DAG) -> Any:
    """Return a DAG as the scheduler and the web interface read it."""
    return DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))


def test_each_field_of_a_group_is_stored_with_a_task() -> None:
    with DAG("groups", schedule=None, start_date=datetime(2026, 1, 1)) as dag:
        KafkaBatchOperator(
            task_id="load",
            **GIVEN,
            limits=Limits(max_records=5, time_budget=timedelta(minutes=3)),
            on_bad_record=DeadLetters(retention=timedelta(days=30)),
            spark=Spark("cluster", {"spark.cores.max": "{{ params.cores }}"}),
        )
        KafkaLagSensor(
            task_id="wait", group_id="group", conn_id="warehouse", min_lag=1, state_tables=StateTables(prefix="x_")
        )

    load, wait = stored(dag).get_task("load"), stored(dag).get_task("wait")

    caps = {"max_records": 5, "max_bytes": None, "time_budget": "0:03:00", "history_retention": None}
    assert load.limits == {"type": "Limits"} | caps
    assert load.on_bad_record == {"type": "DeadLetters", "limit": 1000, "topic": None, "retention": "30 days, 0:00:00"}
    conf = {"spark.cores.max": "{{ params.cores }}"}
    assert load.spark == {"type": "Spark", "conn_id": "cluster", "conf": conf, "options": None}
    assert wait.state_tables == {"type": "StateTables", "schema": None, "prefix": "x_"}


def test_a_mapped_task_is_stored_with_groups_that_it_shares_and_that_it_is_mapped_over() -> None:
    with DAG("mapped", schedule=None, start_date=datetime(2026, 1, 1)) as dag:
        KafkaReplayOperator.partial(task_id="replay", **GIVEN, limits=Limits(max_records=5)).expand(
            bounds=[TimeBounds("2026-01-01", "2026-01-02"), TimeBounds("2026-01-02", "2026-01-03")]
        )
        mapped: Any = KafkaBatchOperator.partial(task_id="load", **GIVEN).expand(
            limits=[Limits(max_records=1), Limits(max_records=2)]
        )

    assert {task.task_id for task in stored(dag).tasks} == {"load", "replay"}
    assert mapped.unmap({"limits": Limits(max_records=2)}).limits == Limits(max_records=2)


def test_a_trigger_is_stored_with_its_state_tables_as_plain_data() -> None:
    tables = StateTables(schema="team", prefix="x_")
    trigger = KafkaLagEventTrigger(group_id="group", conn_id="warehouse", min_lag=1, state_tables=tables)

    path, stored_as = trigger.serialize()

    assert path == "airflow_kafka_offsets.triggers.lag.KafkaLagEventTrigger"
    assert json.loads(json.dumps(stored_as["state_tables"])) == {"schema": "team", "prefix": "x_"}
    assert KafkaLagEventTrigger(**stored_as).state_tables == tables
