"""`@task.kafka_batch`: the body of a function as a transform, and the operator that it becomes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_kafka_offsets.exceptions import ConfigurationError, TransformError
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.operators.batch import KafkaBatchOperator
from airflow_kafka_offsets.operators.task_decorator import KafkaBatchTask, kafka_batch_task
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.transforms.dataframe import TaskBody

PARAMETERS: dict[str, Any] = {
    "group_id": "g",
    "topics": ["orders"],
    "value_format": Json("id BIGINT"),
    "sink": SqlTable("target", conn_id="warehouse"),
}


def clean(records: Any, day: str = "") -> Any:
    return records


def limited(limit: int) -> Callable[[Any], Any]:
    def below(records: Any) -> Any:
        return records.where(f"id < {limit}")

    return below


def decorated(function: Callable[..., Any], **options: Any) -> Any:
    return kafka_batch_task(**PARAMETERS | options)(function)


class Frame:
    """Is asked for nothing but to be a DataFrame."""

    mapInArrow = None  # noqa: N815


class TestTheTransform:
    def test_body_calls_the_function_with_its_arguments(self) -> None:
        seen = TaskBody.of(lambda records, day: type("Seen", (Frame,), {"day": day}), {"day": "today"})
        assert seen.apply(None).day == "today"  # type: ignore[arg-type]

    def test_the_fingerprint_changes_with_arguments_outer_values_and_modules(self, tmp_path: Path) -> None:
        prints = [
            TaskBody.of(clean).fingerprint(),
            TaskBody.of(clean, {"day": "2026-01-01"}).fingerprint(),
            TaskBody.of(clean, modules=["tests.support.loads"]).fingerprint(),
            TaskBody.of(limited(1)).fingerprint(),
            TaskBody.of(limited(2)).fingerprint(),
        ]
        assert len(set(prints)) == len(prints)
        assert TaskBody.of(limited(1)).fingerprint() == prints[3]

    def test_the_fingerprint_changes_with_the_source(self, tmp_path: Path) -> None:
        file, prints = tmp_path / "dag.py", []
        for text in ("return rows", "return rows.where('true')"):
            file.write_text(f"def clean(rows):\n    {text}\n")
            scope: dict[str, Any] = {"__name__": "dag_of_this_test"}
            exec(compile(file.read_text(), str(file), "exec"), scope)
            prints.append(TaskBody.of(scope["clean"]).fingerprint())
        assert prints[0] != prints[1]

    def test_arguments_are_plain_data(self) -> None:
        with pytest.raises(ConfigurationError, match="arguments must be what JSON can hold"):
            TaskBody.of(clean, {"day": datetime(2026, 1, 1)})

    def test_argument_that_cannot_be_pickled_is_named(self) -> None:
        import threading

        lock = threading.Lock()

        def locked(records: Any) -> Any:
            with lock:
                return records

        with pytest.raises(
            TransformError, match=r"locked' cannot be sent to Spark: TypeError: cannot pickle '_thread.lock'"
        ):
            TaskBody.of(locked)


class TestTheDecorator:
    def test_decorator_makes_a_load_of_the_function(self) -> None:
        with DAG("d", schedule=None):
            made: Any = task.kafka_batch(**PARAMETERS, modules=["tests.support.loads"])(clean)
            load = made(day="{{ ds }}").operator
            other = made.override(task_id="other")().operator
        assert isinstance(load, KafkaBatchTask)
        assert isinstance(load, KafkaBatchOperator)
        assert (load.task_id, other.task_id, load.op_kwargs) == ("clean", "other", {"day": "{{ ds }}"})
        assert (load.group_id, load.transform, load.modules) == ("g", None, ["tests.support.loads"])
        assert {"op_kwargs", "group_id", "start"} <= set(load.template_fields)

    def test_the_body_is_the_transform_when_it_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ran: list[Any] = []
        monkeypatch.setattr(KafkaBatchOperator, "execute", lambda self, context: ran.append(self.pipeline().transform))
        with DAG("d", schedule=None):
            load = decorated(clean)("today").operator
        load.execute({})
        assert ran == [TaskBody.of(clean, {"day": "today"})]

    @pytest.mark.parametrize(
        ("function", "options", "error"),
        [
            (clean, {"transform": "a.b"}, "has no parameter transform"),
            (clean, {"modules": "shop"}, "modules must be a list of the names of modules; got modules='shop'"),
            (lambda: None, {}, "the first parameter of .* must be the DataFrame"),
            (lambda *, records: None, {}, "the first parameter of .* must be the DataFrame"),
            (lambda records, *days: records, {}, r"are given by name, so each needs one; got \*days"),
            (lambda records, **days: records, {}, r"are given by name, so each needs one; got \*\*days"),
            (lambda records, day, /: records, {}, "are given by name, so each needs one; got day"),
            (clean, {"on_bad_record": "skip"}, "on_bad_record must be 'fail', or DeadLetters"),
        ],
    )
    def test_invalid_body_is_refused_at_parsing(
        self, function: Callable[..., Any], options: dict[str, Any], error: str
    ) -> None:
        with DAG("d", schedule=None), pytest.raises(ConfigurationError, match=error):
            decorated(function, **options)()

    def test_an_argument_that_the_function_does_not_have_is_refused(self) -> None:
        with DAG("d", schedule=None), pytest.raises(TypeError, match="unexpected keyword argument 'night'"):
            decorated(clean)(night="x")


# tests/docs/test_example_dags.py does the same with an operator every day.
@pytest.mark.long
def test_two_parses_serialize_alike(tmp_path: Path) -> None:
    """Airflow makes a new version of a DAG whenever its serialization changes."""
    code = """
        import json
        from airflow.sdk import DAG, task
        from airflow.serialization.serialized_objects import DagSerialization
        from airflow_kafka_offsets import ArrowTransform, Json, KafkaBatchOperator, Sql, SqlTable
        sink = SqlTable("t", conn_id="w")
        common = {"group_id": "g", "topics": ["t"], "value_format": Json("id BIGINT"), "sink": sink}
        with DAG("parsed", schedule=None) as dag:
            @task.kafka_batch(**common)
            def clean(records, day):
                return records
            clean(day="{{ ds }}")
            KafkaBatchOperator(task_id="sql", transform=Sql("SELECT id FROM records"), **common)
            KafkaBatchOperator(task_id="arrow", transform=ArrowTransform("a.b", modules=["c"]), **common)
        print(json.dumps(DagSerialization.to_dict(dag), sort_keys=True))
    """
    path = tmp_path / "parsed.py"
    path.write_text(dedent(code), encoding="utf-8")
    first, second = (
        subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True).stdout for _ in range(2)
    )
    assert first == second
    assert "Sql(query='SELECT id FROM records')" in first
    assert "ArrowTransform(path='a.b', modules=('c',))" in first
