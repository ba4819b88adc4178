"""Airflow stops a task: its operator stops Spark."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from airflow_kafka_offsets import Json, KafkaBatchOperator, KafkaReplayOperator, SqlTable
from airflow_kafka_offsets.hooks import connections
from airflow_kafka_offsets.loading.context import LoadResult
from airflow_kafka_offsets.operators.base import PipelineOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


@pytest.mark.parametrize("kind", [KafkaBatchOperator, KafkaReplayOperator])
def test_a_task_that_is_stopped_stops_the_spark_that_it_has_started(
    monkeypatch: pytest.MonkeyPatch, kind: type[PipelineOperator]
) -> None:
    stopped: list[str] = []
    launcher = SimpleNamespace(on_kill=lambda: stopped.append("Spark"))
    monkeypatch.setattr(connections, "make_launcher", lambda *_, **__: launcher)
    monkeypatch.setattr(connections, "kafka_config", lambda _: {})
    monkeypatch.setattr(connections, "open_database", lambda _: nullcontext())
    given: dict[str, Any] = {"value_format": Json("id BIGINT"), "sink": SqlTable("target", conn_id="warehouse")}
    operator = kind(task_id="task", group_id="group", topics=["orders"], **given)
    instance = SimpleNamespace(dag_id="dag", task_id="task", run_id="run", map_index=-1, try_number=1)

    def stop(*_: object, **given: object) -> LoadResult:
        assert given["launcher"] is launcher
        operator.on_kill()
        return LoadResult()

    operator.on_kill()  # before there is a launcher
    assert stopped == []
    operator.run_on_spark(cast("Context", {"ti": instance}), stop)
    assert stopped == ["Spark"]
