"""What a command loads into or looks at: a table that the arguments name, or the target of a task of a DAG.

A task is as its DAG file says now. Airflow's metadata database is not asked.
"""

from __future__ import annotations

import copy
import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

from airflow_kafka_offsets.cli.command import usage
from airflow_kafka_offsets.core.options import Reading, Staging, StateTables
from airflow_kafka_offsets.core.text import count, first_few
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats.simple_formats import Json, Raw
from airflow_kafka_offsets.hooks.connections import pipeline_connections, sink_connections
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.sinks.fan_out import of_tables
from airflow_kafka_offsets.sinks.sink import DatabaseTable, Sink
from airflow_kafka_offsets.spark.properties import Spark
from airflow_kafka_offsets.version_compat import dag_bag

_OF_TASK = ("table", "table_schema", "columns", "transform", "upsert_key", "staging_dir")


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


class CommandPipeline(NamedTuple):
    """A pipeline of a command, and the connections that it runs with.

    :param kafka_conn_id: where the arguments name none
    :param spark: the connection, and the properties of the task
    :param connections: what those of the formats and the sink hold
    """

    pipeline: Pipeline
    kafka_conn_id: str
    spark: tuple[str, Mapping[str, Any] | None]
    connections: dict[str, dict[str, Any]]


class CommandTarget(NamedTuple):
    """The target of a command.

    :param isolation_level: of its load
    :param connections: what those of the sink hold
    """

    sink: Sink
    isolation_level: str
    connections: dict[str, dict[str, Any]]


@usage()
def check_target(args: Namespace, command: str, *, table: str = "--table") -> None:
    """Check that the arguments name one target.

    :param command: what needs it, as the subject of a message
    :param table: the argument that names a table, as a message names it
    :raises ConfigurationError: they name none, or two
    """
    if (args.dag_id is None) != (args.task_id is None):
        raise ConfigurationError("--dag-id and --task-id belong together")
    option = table.partition(" ")[0]
    named = getattr(args, option.removeprefix("--"))
    if args.dag_id is None:
        if not named:
            raise ConfigurationError(f"{command} needs --dag-id and --task-id of the load, or {table}")
        return
    given = [f"--{name.replace('_', '-')}" for name in _OF_TASK if getattr(args, name, None)]
    if named and option not in given:
        given.insert(0, table)
    if given:
        raise ConfigurationError(f"The task of --task-id defines {', '.join(given)}: leave out the options or the task")


def named_table(args: Namespace, table: str) -> DatabaseTable:
    """Return a table that the arguments name."""
    return DatabaseTable(table, args.table_schema, tuple(getattr(args, "upsert_key", None) or ()))


def target_of(args: Namespace, table: str | None) -> CommandTarget:
    """Return the target.

    :param table: the one that the arguments name, if they name no task
    """
    if args.dag_id is None:
        assert table is not None  # see `check_target`
        return CommandTarget(of_tables([named_table(args, table)]), Reading.isolation_level, {})
    task = _find_task(args, only=("group_id", "sink"))
    return CommandTarget(task.sink, task.reading.isolation_level, sink_connections(task.sink))


def unparsed(args: Namespace) -> str:
    """Return words for a question where no argument says how records are decoded; empty otherwise."""
    if args.dag_id is not None or args.columns is not None or args.transform is not None:
        return ""
    return " with keys and values unparsed (there is no --columns and no --dag-id)"


def pipeline_of(args: Namespace, topics: Sequence[str]) -> CommandPipeline:
    """Return the pipeline.

    :param topics: of the records; where there are none, those of the task
    """
    connections: dict[str, dict[str, Any]]
    state_tables = StateTables(schema=args.schema, prefix=args.prefix)
    if args.dag_id is None:
        pipeline = Pipeline(
            group_id=args.group,
            topics=tuple(topics),
            value_format=Json(args.columns) if args.columns is not None else Raw(),
            sink=of_tables([named_table(args, args.table)]),
            transform=args.transform,
            staging=Staging(dir=args.staging_dir),
            state_tables=state_tables,
        )
        kafka_conn_id, spark, connections = "kafka_default", Spark(), {}
    else:
        task = _find_task(args)
        pipeline = task.pipeline()
        pipeline = replace(pipeline, topics=tuple(topics) or pipeline.topics, state_tables=state_tables)
        kafka_conn_id, spark = task.kafka_conn_id, task.spark
        connections = pipeline_connections(pipeline)
    return CommandPipeline(pipeline, kafka_conn_id, (args.spark_conn_id or spark.conn_id, spark.conf), connections)


def _find_task(args: Namespace, *, only: Sequence[str] | None = None) -> PipelineTask:
    """Parse the DAG files, and return the task of the arguments as they say it now, with its templates rendered.

    :param only: the parameters that are rendered, for a command that asks for no others; None renders those of the
        pipeline
    :raises ConfigurationError: there is no such task, it is one of another kind, or a template or an argument
        needs a run, or the task loads another group
    """
    dag_id, task_id = args.dag_id, args.task_id
    dag, broken = _find_dag(dag_id)
    if dag is None:
        errors = f"; these files have errors: {first_few(sorted(broken))}" if broken else ""
        raise ConfigurationError(f"No DAG file has a DAG {dag_id!r}{errors}")
    task: Any = dag.task_dict.get(task_id)
    if task is None:
        raise ConfigurationError(f"DAG {dag_id!r} has no task {task_id!r}; it has {first_few(sorted(dag.task_dict))}")
    if task.is_mapped:
        task = _unmapped(args, task)
    if not isinstance(task, PipelineTask):
        raise ConfigurationError(
            f"Task {task_id!r} of DAG {dag_id!r} is a {task.task_type}: name a task that loads records, such as a "
            "KafkaBatchOperator"
        )
    rendered = _rendered(task, only, args.map_values or {})
    if rendered.group_id != args.group:
        raise ConfigurationError(
            f"Task {task_id!r} of DAG {dag_id!r} loads group {rendered.group_id!r}, not {args.group!r}: name the task "
            "that loads this group"
        )
    return rendered


def _unmapped(args: Namespace, task: Any) -> Any:
    """Return the task of a mapped task instance: the one that the arguments name, or that loads the group.

    :raises ConfigurationError: the arguments do not say which one
    """
    from airflow.sdk import XComArg

    what = f"Task {args.task_id!r} of DAG {args.dag_id!r} is mapped"
    if args.map_values is not None:
        try:
            return task.unmap(args.map_values)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"{what}, and --map-values are not what it is mapped over: {error}") from error
    # Airflow has no public name for what a task is mapped over.
    mapped_over = task._get_specified_expand_input().value
    if any(XComArg.iter_xcom_references(mapped_over)):
        raise ConfigurationError(
            f"{what} over what another task returns in a run: give the values with --map-values, as the page Rendered "
            "Templates of the task instance has them"
        )
    by_name = isinstance(mapped_over, Mapping)
    number = math.prod(map(len, mapped_over.values())) if by_name else len(mapped_over)
    if args.map_index is not None and args.map_index >= number:
        raise ConfigurationError(f"{what} to {count(number, 'task instance')}: --map-index is from 0 on")
    for index in range(number) if args.map_index is None else (args.map_index,):
        values, _ = task._expand_mapped_kwargs({"ti": SimpleNamespace(map_index=index)})
        unmapped = task.unmap(values)
        if args.map_index is not None or _rendered(unmapped, ("group_id",)).group_id == args.group:
            return unmapped
    raise ConfigurationError(f"{what}, and none of its {number} task instances loads group {args.group!r}")


def _find_dag(dag_id: str) -> tuple[Any, list[str]]:
    """Return a DAG of the DAG files, or None, and the files that have errors."""
    # Each imports a large part of Airflow.
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    bundles: Any = DagBundlesManager()  # type: ignore[no-untyped-call]  # Airflow does not annotate it
    broken: list[str] = []
    for bundle in bundles.get_all_dag_bundles():
        bundle.initialize()
        bag = dag_bag(bundle)
        if dag_id in bag.dags:
            return bag.dags[dag_id], []
        broken += bag.import_errors
    return None, broken


def _rendered(task: Any, only: Sequence[str] | None, mapped: Mapping[str, Any] = MappingProxyType({})) -> PipelineTask:
    """Return a copy of a task whose parameters have no templates any more, as far as they are asked for.

    :param mapped: parameters with values of a run: what another task has returned is not rendered
    """
    from airflow.sdk import XComArg
    from airflow.sdk.execution_time.context import ConnectionAccessor, VariableAccessor
    from jinja2 import UndefinedError

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
        given, needs_run, of_run = getattr(task, name), "", mapped.get(name, {})
        if name in mapped and not (isinstance(given, Mapping) and isinstance(of_run, Mapping)):
            continue
        if of_run:  # such as some of the arguments of a function
            given = {key: value for key, value in given.items() if key not in of_run}
        if any(XComArg.iter_xcom_references(given)):
            needs_run = "has what another task returns in a run"
        else:
            try:
                value = task.render_template(given, context, environment)
                setattr(rendered, name, {**value, **of_run} if of_run else value)
            except UndefinedError as error:
                needs_run = f"has a template that only a run can render ({error})"
        if needs_run:
            raise ConfigurationError(
                f"{name} of task {task.task_id!r} of DAG {task.dag_id!r} {needs_run}: give the options of the command "
                "instead of --dag-id and --task-id"
            )
    return cast("PipelineTask", rendered)
