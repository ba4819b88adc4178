"""What a command loads into or looks at: the target of a task of a DAG, or a table that the arguments name."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from airflow_kafka_offsets.cli.command import usage
from airflow_kafka_offsets.core.options import Reading, Staging, StateTables
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats.simple_formats import Json, Raw
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.sinks.fan_out import of_tables
from airflow_kafka_offsets.sinks.sink import DatabaseTable, Sink
from airflow_kafka_offsets.spark.properties import Spark

_OF_TASK = ("table", "table_schema", "columns", "transform", "upsert_key", "staging_dir")


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
        raise ConfigurationError(f"The task of --task-id says what {', '.join(given)} would say: leave out one of them")


def target_of(args: Namespace, table: str | None) -> CommandTarget:
    """Return the target.

    :param table: the one that the arguments name, if they name no task
    """
    if args.dag_id is None:
        assert table is not None  # see `check_target`
        upsert_key = tuple(getattr(args, "upsert_key", None) or ())
        sink = of_tables([DatabaseTable(table, args.table_schema, upsert_key)])
        return CommandTarget(sink, Reading.isolation_level, {})
    from airflow_kafka_offsets.cli.dag_task import find_task
    from airflow_kafka_offsets.hooks.connections import sink_connections

    task = find_task(args.dag_id, args.task_id, only=("group_id", "sink"))
    _check_group(args, task.group_id)
    return CommandTarget(task.sink, task.reading.isolation_level, sink_connections(task.sink))


def pipeline_of(args: Namespace, topics: Sequence[str]) -> CommandPipeline:
    """Return the pipeline.

    :param topics: of the records; where there are none, those of the task
    """
    connections: dict[str, dict[str, Any]]
    if args.dag_id is None:
        pipeline = Pipeline(
            group_id=args.group,
            topics=tuple(topics),
            value_format=Json(args.columns) if args.columns is not None else Raw(),
            sink=of_tables([DatabaseTable(args.table, args.table_schema, tuple(args.upsert_key or ()))]),
            transform=args.transform,
            staging=Staging(dir=args.staging_dir),
            state_tables=_state_tables(args),
        )
        kafka_conn_id, spark, connections = "kafka_default", Spark(), {}
    else:
        from airflow_kafka_offsets.cli.dag_task import find_task
        from airflow_kafka_offsets.hooks.connections import registry_config, sink_connections

        task = find_task(args.dag_id, args.task_id)
        pipeline = replace(task.pipeline(), state_tables=_state_tables(args))
        pipeline = replace(pipeline, topics=tuple(topics) or pipeline.topics)
        _check_group(args, pipeline.group_id)
        kafka_conn_id, spark = task.kafka_conn_id, task.spark
        connections = {conn_id: registry_config(conn_id) for conn_id in pipeline.conn_ids}
        connections |= sink_connections(pipeline.sink)
    return CommandPipeline(pipeline, kafka_conn_id, (args.spark_conn_id or spark.conn_id, spark.conf), connections)


def _state_tables(args: Namespace) -> StateTables:
    return StateTables(schema=args.schema, prefix=args.prefix)


def _check_group(args: Namespace, group_id: str) -> None:
    if group_id != args.group:
        raise ConfigurationError(
            f"Task {args.task_id!r} of DAG {args.dag_id!r} loads group {group_id!r}, not {args.group!r}: it is not the "
            "task of this group"
        )
