"""A DAG that reads the events of an asset: what another DAG loaded into a table."""

from __future__ import annotations

import json
import logging
import os
from datetime import datetime
from typing import Any

from airflow.sdk import DAG, Asset, AssetAlias, task

log = logging.getLogger(__name__)

TABLE = Asset(uri=os.environ.get("ASSET_UNDER_TEST", "postgres://localhost/shop/public/orders"))

GROUP = AssetAlias("kafka_offsets:loader")

with DAG(dag_id="read_asset_events", schedule=[TABLE], start_date=datetime(2026, 1, 1), catchup=False):

    @task(inlets=[TABLE, GROUP])
    def read(*, inlet_events: Any) -> None:
        events = inlet_events[TABLE]
        assert [event.extra for event in inlet_events[GROUP]] == [event.extra for event in events]
        log.info("events: %d extra: %s", len(events), json.dumps(events[-1].extra))

    read()  # type: ignore[call-arg] # Airflow gives the argument
