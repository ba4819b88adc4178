"""The commands of docs/backfill.md for dead letters, one after another, as they stand there."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.support.clients import Kafka, produce
from tests.support.command_line import CommandLine
from tests.support.loads import Loader, TopicFactory, rows
from tests.support.runbook import snippets
from tests.support.verifying import LEFT_OUT

pytestmark = pytest.mark.server

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "backfill.md"

DAG = """
from airflow.sdk import DAG
from airflow_kafka_offsets import Json, KafkaBatchOperator, SqlTable

with DAG("load_orders"):
    KafkaBatchOperator(
        task_id="load_orders",
        group_id="orders_loader",
        topics=["{topic}"],
        value_format=Json("id BIGINT NOT NULL, name STRING"),
        sink=SqlTable("target", conn_id="warehouse"),
    )
"""


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


def test_documented_dead_letter_commands_work_in_their_order(
    cli: CommandLine, inline_loader: Loader, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    produce(inline_loader.kafka, name, [b'{"id": 1, "name": 5}', b'{"id": 2, "name": "b"}', b"nothing"])
    inline_loader(name, group_id="orders_loader", **LEFT_OUT)
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "orders.py").write_text(DAG.format(topic=name))
    bundle = {
        "name": "orders",
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(tmp_path / "dags")},
    }
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps([bundle]))
    monkeypatch.chdir(tmp_path)
    (text,) = (code for code in snippets(DOCUMENT.read_text(encoding="utf-8"), "sh") if "dead-letters" in code)

    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        assert words[0] == "kafka-offsets"
        command, _, file = " ".join(map(shlex.quote, words[1:])).partition(" '>' ")
        done = cli(*shlex.split(command))
        assert done.status == 0, done.stderr
        if file:
            shown = json.loads(done.stdout)
            shown[0]["value"] = '{"id": 1, "name": "5"}'
            Path(file).write_text(json.dumps(shown))

    assert rows(inline_loader.engine, "SELECT id, name FROM target ORDER BY id") == [(1, "5"), (2, "b")]
    assert rows(inline_loader.engine, "SELECT offset_value, value FROM dead_letters") == [(2, b"nothing")]
