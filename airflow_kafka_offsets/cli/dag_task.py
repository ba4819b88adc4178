"""The task of a DAG as its file says now, for commands that work as the task does. Airflow's metadata database is not
asked.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import fields
from typing import Any, Protocol, cast, runtime_checkable

from airflow.sdk import XComArg
from airflow.sdk.execution_time.context import ConnectionAccessor, VariableAccessor
from jinja2 import UndefinedError

from airflow_kafka_offsets.core.options import Reading
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.spark.properties import Spark


@runtime_checkable
class PipelineTask(Protocol):
    """A task that turns records into rows, as `operators.base.PipelineOperator` does."""

    template_fields: Sequence[str]
    group_id: str
    sink: Sink
    reading: Reading
    kafka_conn_id: str
    spark: Spark

    def pipeline(self) -> Pipeline:
        """Return the pipeline, of rendered parameters."""


def find_task(dag_id: str, task_id: str, *, only: Sequence[str] | None = None) -> PipelineTask:
    """Parse the DAG files, and return a task that turns records into rows, with its templates rendered.

    :param only: the parameters that are rendered, for a command that asks for no others; None renders those of the
        pipeline
    :raises ConfigurationError: there is no such task, it is one of another kind or mapped, or a template or an argument
        needs a run
    """
    # DAG files may print, and Airflow logs.
    with redirect_stdout(sys.stderr):
        dag, broken = _find_dag(dag_id)
    if dag is None:
        errors = f"; these files have errors: {first_few(sorted(broken))}" if broken else ""
        raise ConfigurationError(f"No DAG file has a DAG {dag_id!r}{errors}")
    task: Any = dag.task_dict.get(task_id)
    if task is None:
        raise ConfigurationError(f"DAG {dag_id!r} has no task {task_id!r}; it has {first_few(sorted(dag.task_dict))}")
    if not isinstance(task, PipelineTask):
        raise ConfigurationError(
            f"Task {task_id!r} of DAG {dag_id!r} is a {task.task_type}, and not one that turns records into rows, such "
            "as KafkaBatchOperator, or it is mapped"
        )
    return _rendered(task, only)


def _find_dag(dag_id: str) -> tuple[Any, list[str]]:
    """Return a DAG of the DAG files, or None, and the files that have errors."""
    # Each imports a large part of Airflow.
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag

    bundles: Any = DagBundlesManager()  # type: ignore[no-untyped-call]  # Airflow does not annotate it
    broken: list[str] = []
    for bundle in bundles.get_all_dag_bundles():
        bundle.initialize()
        bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
        if dag_id in bag.dags:
            return bag.dags[dag_id], []
        broken += bag.import_errors
    return None, broken


def _rendered(task: Any, only: Sequence[str] | None) -> PipelineTask:
    """Return a copy of a task whose parameters have no templates any more, as far as they are asked for."""
    # What `@task.kafka_batch` gives its function is a part of the transform.
    of_pipeline = {field.name for field in fields(Pipeline)} | {"spark", "op_args", "op_kwargs"}
    rendered_names = of_pipeline if only is None else set(only)
    context = {
        "dag": task.dag,
        "task": task,
        "params": task.params.dump(),
        "var": {"value": VariableAccessor(deserialize_json=False), "json": VariableAccessor(deserialize_json=True)},
        "conn": ConnectionAccessor(),
    }
    environment, rendered = task.get_template_env(), copy.copy(task)
    for name in rendered_names.intersection(task.template_fields):
        if any(XComArg.iter_xcom_references(getattr(task, name))):
            raise ConfigurationError(
                f"{name} of task {task.task_id!r} of DAG {task.dag_id!r} has what another task returns in a run: give "
                "the options of the command instead of --dag-id and --task-id"
            )
        try:
            setattr(rendered, name, task.render_template(getattr(task, name), context, environment))
        except UndefinedError as error:
            raise ConfigurationError(
                f"{name} of task {task.task_id!r} of DAG {task.dag_id!r} has a template that only a run can render "
                f"({error}): give the options of the command instead of --dag-id and --task-id"
            ) from error
    return cast("PipelineTask", rendered)
