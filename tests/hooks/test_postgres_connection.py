"""The engine of a Postgres connection."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets.hooks.connections import database_engine
from airflow_kafka_offsets.sinks.sql.connected_table import why_no_copy


def test_its_hook_has_the_driver_of_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which driver it is depends on the version of Airflow's provider."""
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", "postgres://loader:secret@127.0.0.1:1/shop")

    assert why_no_copy(database_engine("warehouse").dialect) is None
