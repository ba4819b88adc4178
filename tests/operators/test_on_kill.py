"""Airflow stops a task: its operator stops Spark."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_kafka_offsets import Json, KafkaBatchOperator, KafkaReplayOperator, SqlTable
from airflow_kafka_offsets.exceptions import KafkaOffsetsError, StagingError, TargetError
from airflow_kafka_offsets.hooks import connections
from airflow_kafka_offsets.loading.context import LoadResult
from airflow_kafka_offsets.operators import base
from airflow_kafka_offsets.operators.base import PipelineOperator
from tests.support.task_context import task_context

KINDS = pytest.mark.parametrize("kind", [KafkaBatchOperator, KafkaReplayOperator])


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What launchers have stopped."""
    stopped: list[str] = []
    launcher = SimpleNamespace(cancel=lambda: stopped.append("Spark"))
    monkeypatch.setattr(connections, "make_launcher", lambda *_, **__: launcher)
    monkeypatch.setattr(connections, "kafka_config", lambda _: {"bootstrap.servers": "localhost:9092"})
    # Nothing is loaded here, and there are no state tables to ask.
    monkeypatch.setattr(base, "outcome", lambda *_, **__: {"batches": []})
    monkeypatch.setattr(connections, "open_ledger", lambda *_: nullcontext(SimpleNamespace(engine=None)))
    return stopped


def operator_of(kind: type[PipelineOperator]) -> PipelineOperator:
    given: dict[str, Any] = {"value_format": Json("id BIGINT"), "sink": SqlTable("target", conn_id="warehouse")}
    own = {"bounds": {"orders": {0: [0, 1]}}} if kind is KafkaReplayOperator else {}
    return kind(task_id="task", group_id="group", topics=["orders"], **given, **own)


@KINDS
def test_a_task_that_is_stopped_stops_the_spark_that_it_has_started(
    stopped: list[str], kind: type[PipelineOperator]
) -> None:
    operator = operator_of(kind)

    def stop(*_: object, **given: object) -> LoadResult:
        assert given["launcher"] is connections.make_launcher("spark_default", name="task")
        operator.on_kill()
        return LoadResult()

    operator.on_kill()  # before there is a launcher
    assert stopped == []
    operator.run_on_spark(task_context(), stop)
    assert stopped == ["Spark"]


@KINDS
def test_a_task_that_airflow_stopped_says_so(stopped: list[str], kind: type[PipelineOperator]) -> None:
    operator = operator_of(kind)

    def stop(*_: object, **__: object) -> LoadResult:
        operator.on_kill()
        raise StagingError("Spark did not stage batch 1: error code -9")

    # Of this exception, Airflow logs the text and no traceback, and retries the task.
    with pytest.raises(SystemExit, match="Airflow stopped this task, and the task stopped Spark"):
        operator.run_on_spark(task_context(), stop)
    assert stopped == ["Spark"]


@pytest.mark.parametrize("error", [StagingError("no executor left"), TargetError("no such column")])
def test_other_errors_stay_what_they_are(stopped: list[str], error: KafkaOffsetsError) -> None:
    operator = operator_of(KafkaBatchOperator)

    def fail(*_: object, **__: object) -> LoadResult:
        if not isinstance(error, StagingError):
            operator.on_kill()
        raise error

    with pytest.raises(type(error), match=str(error)):
        operator.run_on_spark(task_context(), fail)
