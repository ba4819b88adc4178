"""KafkaReplayOperator and KafkaReplayPlanOperator, through the real `airflow` command and real Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import DAG
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import BatchBounds, OffsetBounds, Raw, SqlTable, TimeBounds
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.operators.batch import KafkaReplayOperator, KafkaReplayPlanOperator
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
        runs.home.env["REPLAY_UNDER_TEST"] = json.dumps({"topic": name, "batch_id": 1})
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


BOUNDS: dict[str, Any] = {"parts": 2, "bounds": {"t": {0: [0, 1]}}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bounds": None}, "bounds must be TimeBounds"),
        ({"bounds": 7}, "bounds must be TimeBounds"),
        ({"parts": "two"}, "parts must be an int from 1 to 10,000; got parts='two'"),
        ({"parts": -1}, "parts must be an int from 1 to 10,000; got parts=-1"),
        ({"parts": 10_001}, "parts must be an int from 1 to 10,000; got parts=10001"),
    ],
    ids=["none", "number", "parts-in-words", "negative-parts", "too-many-parts"],
)
def test_a_plan_without_bounds_or_parts_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        KafkaReplayPlanOperator(**{"task_id": "plan", "group_id": "g", "topics": ["t"]} | BOUNDS | given)


def test_bounds_of_a_batch_need_the_database_of_its_history() -> None:
    plan = KafkaReplayPlanOperator(task_id="plan", group_id="g", topics=["t"], parts=2, bounds=BatchBounds(3))

    with pytest.raises(ConfigurationError, match="BatchBounds need conn_id"):
        plan.execute({})


@pytest.mark.parametrize(
    ("bounds", "rendered"),
    [
        (
            TimeBounds("{{ params.since }}", "{{ params.none }}", all_records=True),
            TimeBounds("2026-01-01", all_records=True),
        ),
        (BatchBounds("{{ params.batch }}"), BatchBounds(3)),  # type: ignore[arg-type]
        (OffsetBounds("{{ params.offsets }}"), OffsetBounds('{"t": {"0": [0, 1]}}')),
        ({"t": {"0": [0, "{{ params.batch }}"]}}, {"t": {"0": [0, "3"]}}),
        ("{{ params.offsets }}", '{"t": {"0": [0, 1]}}'),
    ],
    ids=["time", "batch", "offsets", "mapping", "text"],
)
def test_bounds_are_templated(monkeypatch: pytest.MonkeyPatch, bounds: Any, rendered: Any) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(KafkaReplayOperator, "run_on_spark", lambda *args, **_: asked.append(args[3]))
    with DAG("templates"):
        replay = KafkaReplayOperator(
            task_id="replay",
            group_id="g",
            topics=["t"],
            value_format=Raw(),
            sink=SqlTable("t", conn_id="warehouse"),
            bounds=bounds,
        )
    params = {"since": "2026-01-01", "none": "", "batch": 3, "offsets": '{"t": {"0": [0, 1]}}'}
    replay.render_template_fields({"params": params, "task": replay})
    replay.execute({})

    assert asked == [rendered]


def test_offsets_of_a_partition_that_is_not_there_are_refused(
    kafka: KafkaBroker, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", kafka_connection(kafka))
    plan = KafkaReplayPlanOperator(task_id="plan", group_id="g", topics=[name], parts=1, bounds={name: {7: [0, 10]}})

    with pytest.raises(ConfigurationError, match=rf"the topic has no such partition: {name}\[7\] 0\.\.10"):
        plan.execute({})
