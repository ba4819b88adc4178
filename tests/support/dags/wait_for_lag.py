"""Sensors in every mode, on one topic; what they wait for is only that time passes."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_kafka_offsets import KafkaLagSensor

TOPIC = os.environ.get("LAG_UNDER_TEST", "topic")
MET: dict[str, Any] = {"max_delay": timedelta(seconds=4), "poke_interval": 1, "timeout": 120}
NEVER: dict[str, Any] = {"min_lag": 10**12, "poke_interval": 1, "timeout": 2}
# Airflow fails a task that goes on before the executor has noticed that it left.
LEAVING: dict[str, Any] = {"poke_interval": 10}
MET_AFTER_LEAVING: dict[str, Any] = MET | LEAVING | {"max_delay": timedelta(seconds=20)}
NEVER_AFTER_LEAVING: dict[str, Any] = NEVER | LEAVING | {"timeout": 15, "deferrable": True}

with DAG("wait_for_lag", schedule=None, start_date=datetime(2026, 1, 1)):
    shared: dict[str, Any] = {"group_id": "{{ 'load' }}er", "topics": [TOPIC], "conn_id": "warehouse"}
    poke = KafkaLagSensor(task_id="poke", mode="poke", deferrable=False, **shared, **MET)
    reschedule = KafkaLagSensor(
        task_id="reschedule", mode="reschedule", deferrable=False, **shared, **MET_AFTER_LEAVING
    )
    deferred = KafkaLagSensor(task_id="deferred", deferrable=True, **shared, **MET_AFTER_LEAVING)
    soft_poke = KafkaLagSensor(task_id="soft_poke", soft_fail=True, deferrable=False, **shared, **NEVER)
    soft_deferred = KafkaLagSensor(task_id="soft_deferred", soft_fail=True, **shared, **NEVER_AFTER_LEAVING)
    late_poke = KafkaLagSensor(task_id="late_poke", deferrable=False, **shared, **NEVER)
    late_deferred = KafkaLagSensor(task_id="late_deferred", **shared, **NEVER_AFTER_LEAVING)
    unknown = KafkaLagSensor(task_id="unknown", retries=3, **(shared | NEVER_AFTER_LEAVING | {"topics": ["nowhere"]}))
