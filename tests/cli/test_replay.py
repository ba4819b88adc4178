"""`kafka-offsets replay`, in a process of its own with Spark."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import TimeBounds
from airflow_kafka_offsets.cli import target
from airflow_kafka_offsets.cli.command import _UsageError
from devstack.kafka import KafkaBroker
from tests.support.airflow_runs import airflow_uri
from tests.support.clients import produce
from tests.support.command_line import kafka_connection
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.rewind_commands import assert_rows_once
from tests.support.warm_airflow import WarmAirflowHome

pytestmark = pytest.mark.server


@pytest.mark.broker
def test_a_replay_of_a_batch_replaces_its_rows_and_moves_nothing(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic()
    produce(kafka, name, names(0, 50))
    postgres_loader(name)
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text("UPDATE target SET name = 'wrong'"))
    connections = {
        "kafka_default": kafka_connection(kafka),
        "spark_default": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "warehouse": airflow_uri(postgres_loader.engine),
    }
    command = ("kafka-offsets", "replay", "loader", "--conn-id", "warehouse", "--topic", name, "--table", "target")
    columns = ("--columns", "id BIGINT NOT NULL, name STRING")
    with WarmAirflowHome(dags=tmp_path, connections=connections) as home:
        refused = home.run(*command, *columns, "--batch", "1", "--yes")
        done = home.run(*command, *columns, "--batch", "1", "--replace", "--reason", "a wrong transform", "--yes")

    assert refused.returncode == 1
    assert "kafka-offsets replay: " in refused.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows(postgres_loader.engine, "SELECT count(*) FROM target WHERE name = 'wrong'") == [(0,)]
    assert_rows_once(postgres_loader, 50)
    assert positions(postgres_loader.engine) == {(name, 0): 50}


def test_all_records_are_those_of_a_span() -> None:
    given = {"offsets": None, "since": "2026-01-01", "until": "2026-01-02", "batch": None, "all_records": True}

    assert target._bounds(Namespace(**given)) == TimeBounds("2026-01-01", "2026-01-02", all_records=True)
    with pytest.raises(_UsageError, match="--all-records needs --since"):
        target._bounds(Namespace(**given | {"since": None, "until": None, "batch": 3}))
    with pytest.raises(_UsageError, match="until must be after since"):
        target._bounds(Namespace(**given | {"until": "2025-12-31"}))
