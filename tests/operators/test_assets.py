"""The assets of loads, through the real `airflow` command: a DAG that is scheduled on the table reads which offsets
were loaded.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from devstack.kafka import KafkaBroker
from tests.support.airflow_runs import Runs, airflow_runs, airflow_uri
from tests.support.clients import produce
from tests.support.loads import TopicFactory, names

# Two runs of `airflow dags test`; what an event holds is also tested in tests/operators/test_asset_uris.py.
pytestmark = [pytest.mark.server, pytest.mark.long]


def read_events(runs: Runs) -> tuple[int, dict[str, object] | None]:
    """Run the DAG that reads the events of the table, and return how many there are, and the extra of the last one."""
    run = runs.home.run("dags", "test", "read_asset_events")
    found = re.search(r"events: (\d+) extra: (.*)", run.stdout + run.stderr)
    assert found is not None, run.stdout[-5000:] + run.stderr[-5000:]
    extra, _ = json.JSONDecoder().raw_decode(found[2])  # what follows is of the log
    return int(found[1]), extra


def test_a_dag_that_is_scheduled_on_the_table_reads_the_ranges(
    kafka: KafkaBroker, topic: TopicFactory, postgres_engine: Engine
) -> None:
    name = topic(partitions=2)
    for partition in range(2):
        produce(kafka, name, names(partition * 500, 5 + partition), partition)
    url = postgres_engine.url
    with airflow_runs(kafka, airflow_uri(postgres_engine)) as runs:
        runs.home.env["ASSET_UNDER_TEST"] = f"postgres://{url.host}:{url.port}/{url.database}/public/orders"
        options: dict[str, Any] = {
            "topics": [name],
            "table": "{{ 'ord' ~ 'ers' }}",
            "limits": {"max_records": "{{ 4 + 2 }}"},
        }
        status, output = runs.begin(**options).end()
        assert status == 0, output[-8000:]

        count, extra = read_events(runs)
        assert (count, extra) == (
            1,
            {
                "group_id": "loader",
                "target": "orders",
                "ranges": {name: {"0": [0, 5], "1": [0, 6]}},
                "batches": [1, 2],
                "records": 11,
                "rows": 11,
                "dead_letters": 0,
                "complete": True,
            },
        )

        # A run that finds nothing to load changes no table.
        status, output = runs.begin("2026-01-02", **options).end()
        assert status == 0, output[-8000:]
        assert read_events(runs) == (count, extra)
