"""`dead-letters replay --dag-id --task-id`, of tasks with a transform."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_kafka_offsets.formats.simple_formats import Json
from tests.support.clients import Kafka, produce
from tests.support.command_line import DB, CommandLine, failed
from tests.support.loads import Loader, TopicFactory, rows
from tests.support.verifying import LEFT_OUT

pytestmark = pytest.mark.server

REPLAY = ("dead-letters", "replay", "loader", *DB, "--dag-id", "shop")

DAG = """
from airflow.sdk import DAG, task
from airflow_kafka_offsets import Json, KafkaBatchOperator, Spark, Sql, SqlTable

COMMON = {
    "group_id": "loader",
    "topics": ["orders"],
    "value_format": Json("id BIGINT"),
    "sink": SqlTable("target", conn_id="warehouse"),
    "spark": Spark("nowhere"),
}

with DAG("shop", params={"factor": 3}):
    sql = Sql("SELECT id * {{ params.factor }} AS x FROM records")
    KafkaBatchOperator(task_id="sql", transform=sql, **COMMON)

    @task.kafka_batch(**COMMON)
    def body(orders, day):
        return orders

    body(day="{{ ds }}")

    @task
    def yesterday():
        return "2026-01-01"

    body.override(task_id="after")(day=yesterday())
"""


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


@pytest.fixture(autouse=True)
def _dead_letter(inline_loader: Loader, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = topic()
    produce(inline_loader.kafka, name, [b'{"id": 7}'])
    inline_loader(name, value_format=Json("id BOOLEAN"), **LEFT_OUT)
    with inline_loader.engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE target")
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "shop.py").write_text(DAG)
    bundle = {
        "name": "shop",
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(tmp_path / "dags")},
    }
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps([bundle]))


def test_sql_needs_no_connection_of_spark(cli: CommandLine, inline_loader: Loader) -> None:
    done = cli(*REPLAY, "--task-id", "sql", "--output", "json")
    assert done.json == [{"batch": 1, "records": 1, "rows": 1, "still_bad": 0, "replayed_by": 2}], done.stderr
    assert rows(inline_loader.engine, "SELECT x, _kafka_offset FROM target") == [(21, 0)]


def test_an_argument_of_a_function_that_needs_a_run_is_named(cli: CommandLine) -> None:
    line = failed(cli(*REPLAY, "--task-id", "body"), "dead-letters replay")
    assert (
        "op_kwargs of task 'body' of DAG 'shop' has a template that only a run can render ('ds' is undefined)" in line
    )


def test_an_argument_that_another_task_returns_is_named(cli: CommandLine) -> None:
    line = failed(cli(*REPLAY, "--task-id", "after"), "dead-letters replay")
    assert "op_kwargs of task 'after' of DAG 'shop' has what another task returns in a run: give the options" in line
