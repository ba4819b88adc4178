"""KafkaReplayOperator and KafkaReplayPlanOperator, through the real `airflow` command and real Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Raw, SqlTable, TimeBounds
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.operators.replay import KafkaReplayOperator, KafkaReplayPlanOperator
from devstack.kafka import KafkaBroker
from tests.support.airflow_runs import airflow_runs, airflow_uri
from tests.support.clients import produce
from tests.support.command_line import kafka_connection
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, positions, rows

pytestmark = pytest.mark.server


@pytest.mark.long
def test_mapped_parts_are_together_exactly_the_range(
    kafka: KafkaBroker, topic: TopicFactory, postgres_engine: Engine
) -> None:
    name = topic(partitions=2)
    for partition in range(2):
        produce(kafka, name, names(1000 * partition, 300), partition)
    Loader(kafka, postgres_engine, InlineLauncher())(name)
    before = positions(postgres_engine)
    with airflow_runs(kafka, airflow_uri(postgres_engine)) as runs:
        runs.home.env["REPLAY_UNDER_TEST"] = json.dumps({"topic": name, "plan": {"batch_id": 1}, "replay": {}})
        run = runs.home.run("dags", "test", "replay_under_test", "2026-01-01", timeout=900)
        output = run.stdout + run.stderr
        assert run.returncode == 0, output[-8000:]

    assert "600 offsets in 2 parts" in output
    assert rows(
        postgres_engine,
        "SELECT _kafka_partition, count(*), count(DISTINCT _kafka_offset), min(_kafka_offset), max(_kafka_offset)"
        " FROM elsewhere GROUP BY 1 ORDER BY 1",
    ) == [(0, 300, 300, 0, 299), (1, 300, 300, 0, 299)]
    assert rows(
        postgres_engine,
        "SELECT dag_id, task_id, map_index, state, row_count FROM offset_batches WHERE kind = 'replay' ORDER BY "
        "map_index",
    ) == [("replay_under_test", "replay", part, "committed", 300) for part in range(2)]
    assert rows(postgres_engine, "SELECT count(*) FROM offset_batches WHERE reason LIKE 'manual__%'") == [(2,)]
    assert positions(postgres_engine) == before


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({}, "A replay has one of offsets, since"),
        ({"since": "2026-01-01", "batch_id": 3}, "A replay has one of offsets, since"),
        ({"until": "2026-01-01"}, "A replay has one of offsets, since"),
        ({"batch_id": "seven"}, "batch_id must be a number; got batch_id='seven'"),
        ({"batch_id": 3}, "batch_id needs conn_id"),
        (
            {"offsets": {"t": {0: [0, 1]}}, "parts": "two"},
            "parts must be a whole number of at least 1; got parts='two'",
        ),
        ({"offsets": {"t": {0: [0, 1]}}, "parts": "-1"}, "parts must be a whole number of at least 1; got parts='-1'"),
    ],
    ids=["none", "two", "until-alone", "no-number", "no-database", "parts-in-words", "negative-parts"],
)
def test_bounds_that_say_nothing_or_two_things_are_refused(bounds: dict[str, Any], message: str) -> None:
    plan = KafkaReplayPlanOperator(task_id="plan", group_id="g", topics=["t"], **({"parts": 2} | bounds))

    with pytest.raises(ConfigurationError, match=message):
        plan.execute({})


def test_all_records_are_those_of_a_span(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {
        "task_id": "replay",
        "group_id": "g",
        "topics": ["t"],
        "value_format": Raw(),
        "sink": SqlTable("t", conn_id="warehouse"),
    }
    asked: list[Any] = []
    monkeypatch.setattr(KafkaReplayOperator, "run_on_spark", lambda *args, **_: asked.append(args[3]))

    KafkaReplayOperator(**given, since="2026-01-01", all_records=True).execute({})
    KafkaReplayOperator(**given, since="2026-01-01").execute({})

    assert asked == [TimeBounds("2026-01-01", all_records=True), TimeBounds("2026-01-01")]
    with pytest.raises(ConfigurationError, match="all_records takes the records of a span of time: it needs since"):
        KafkaReplayOperator(**given, batch_id=3, all_records=True).execute({})
    with pytest.raises(ConfigurationError, match="all_records must be True or False; got all_records='yes'"):
        KafkaReplayOperator(**given, since="2026-01-01", all_records="yes")  # type: ignore[arg-type]


def test_offsets_of_a_partition_that_is_not_there_are_refused(
    kafka: KafkaBroker, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", kafka_connection(kafka))
    plan = KafkaReplayPlanOperator(task_id="plan", group_id="g", topics=[name], parts=1, offsets={name: {7: [0, 10]}})

    with pytest.raises(ConfigurationError, match=rf"the topic has no such partition: {name}\[7\] 0\.\.10"):
        plan.execute({})
