"""The guides: their Python runs, their commands are commands, and their promises hold."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.cli.program import parser
from airflow_kafka_offsets.exceptions import KafkaOffsetsError
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.loading.load import load
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from tests.docs.test_docs import DOCUMENTS, ROOT, SCRIPT, snippets
from tests.support.clients import Kafka, produce
from tests.support.inline import InlineLauncher
from tests.support.loads import TopicFactory, rows

GUIDES = ("backfill.md", "clusters.md", "formats.md", "loads.md", "operate.md", "tutorial.md")
NEW = '"customer": "a", "amount": 12.5, "created": "2026-01-01T00:00:00Z", "discount": 1.25'


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


@pytest.mark.parametrize("guide", GUIDES)
def test_the_python_of_the_guide_runs(guide: str) -> None:
    for code in snippets(f"docs/{guide}", "python"):
        # test_docs.py runs the script, with a broker and Spark.
        if not code.startswith(SCRIPT):
            exec(code, {"__name__": guide})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_have_the_options_that_they_are_given(document: Path) -> None:
    from airflow.cli.cli_parser import get_parser

    text = "\n".join(snippets(str(document.relative_to(ROOT)), "sh")).replace("\\\n", " ")
    for line in text.splitlines():
        words = shlex.split(line.partition(" > ")[0])
        if words[:1] == ["airflow"]:
            get_parser().parse_args(words[1:])
        elif words[:1] == ["kafka-offsets"]:
            parser(with_airflow="--conn-id" in words or words[1] == "archive-classes").parse_args(words[1:])


@pytest.mark.server
def test_a_new_column_is_added_first_and_declared_then(kafka: Kafka, engine: Engine, topic: TopicFactory) -> None:
    name = topic()
    (declaration,) = (code for code in snippets("docs/formats.md", "python") if "discount" in code)
    declared: Mapping[str, Any] = {}
    exec(declaration, declared)  # type: ignore[arg-type]
    new = declared["value_format"]
    old = Json(re.sub(r", discount .*", "", new.ddl))

    def run(value_format: Json) -> None:
        pipeline = Pipeline(group_id="g", topics=(name,), value_format=value_format, sink=SqlTable("orders"))
        config = {"bootstrap.servers": kafka.bootstrap_servers}
        load(pipeline, kafka_config=config, engine=engine, launcher=InlineLauncher())

    produce(kafka, name, [f'{{"id": 1, {NEW}}}'.encode()])
    run(old)
    produce(kafka, name, [f'{{"id": 2, {NEW}}}'.encode()])
    with pytest.raises(KafkaOffsetsError, match="discount"):
        run(new)
    assert rows(engine, "SELECT offset_value FROM consumed_offsets") == [(1,)]

    with engine.begin() as conn:
        conn.execute(sa.text(snippets("docs/formats.md", "sql")[0]))
    run(new)

    assert rows(engine, "SELECT id, discount IS NULL FROM orders ORDER BY id") == [(1, True), (2, False)]
