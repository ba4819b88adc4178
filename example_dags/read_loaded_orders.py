"""Run after each load of orders, and read which offsets were loaded: a DAG that is scheduled on what the group
`orders_loader` loads.

The alias of a group gets an event of the table's asset whenever a run has loaded something. The extra of the event has
the ranges.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from airflow.sdk import DAG, AssetAlias, task

log = logging.getLogger(__name__)

LOADED = AssetAlias("kafka_offsets:orders_loader")

with DAG(
    dag_id="read_loaded_orders",
    schedule=[LOADED],
    start_date=datetime(2026, 1, 1),
    catchup=False,
    tags=["kafka"],
):

    @task(inlets=[LOADED])
    def read(*, inlet_events: Any) -> None:
        loaded = inlet_events[LOADED][-1].extra
        log.info("%s rows in %s, of %s", loaded["rows"], loaded["target"], loaded["ranges"])

    read()  # type: ignore[call-arg] # Airflow gives the argument
