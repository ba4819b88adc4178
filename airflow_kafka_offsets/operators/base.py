"""The base classes of operators: `GroupOperator` has connections and state tables, `PipelineOperator` also runs Spark.

What an operator does with them is in the module that is named for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from jinja2 import UndefinedError

from airflow_kafka_offsets.core.parameters import (
    FLAG,
    NAME,
    TEXT,
    Rule,
    check_untemplated,
    from_attributes,
    one_of,
    or_none,
)
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.loading.parameters import PIPELINE_RULES
from airflow_kafka_offsets.operators.retry_policy import KafkaOffsetsRetryPolicy
from airflow_kafka_offsets.sinks.fan_out import FanOut
from airflow_kafka_offsets.spark.properties import refuse_literal_secrets

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from airflow.sdk import Context
    from jinja2 import Environment
    from sqlalchemy.engine import Engine

    from airflow_kafka_offsets.ledger.batch_rows import TaskRun
    from airflow_kafka_offsets.ledger.tables import Tables
    from airflow_kafka_offsets.loading.context import LoadResult
    from airflow_kafka_offsets.loading.pipeline import Pipeline
    from airflow_kafka_offsets.sinks.sink import Sink
    from airflow_kafka_offsets.spark.job import Launcher


NO_INTERVAL = (
    "this run has no data interval, because an asset triggered it, or a user without a logical date. Nothing was loaded. "
    "Trigger it with a logical date, let a timetable with data intervals run the DAG (CronDataIntervalTimetable), or choose "
    "another instant"
)

_RULES = PIPELINE_RULES | {
    "on_busy": one_of("wait", "skip", "fail"),
    "offsets_schema": or_none(TEXT),
    "offsets_prefix": TEXT,
    "conn_id": or_none(NAME),
    "offsets_conn_id": NAME,
    "kafka_conn_id": NAME,
    "spark_conn_id": NAME,
    "abandon_open_batch": FLAG,
    "new_group": FLAG,
    "new_cluster": FLAG,
}


_STOPPED = (
    "Airflow stopped this task, and the task stopped Spark. What is committed stays; a retry, or the next run, resumes the open "
    "batch, of which nothing is loaded"
)


class GroupOperator(BaseOperator):
    """An operator for a group, with state tables in a SQL database and records in Kafka.

    A subclass assigns its parameters to attributes of the same names, among them those below, and then calls `check_parameters`.
    The default of `retry_policy` is `KafkaOffsetsRetryPolicy`.
    """

    group_id: str
    isolation_level: str
    offsets_schema: str | None
    offsets_prefix: str

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.retry_policy is None:
            self.retry_policy = KafkaOffsetsRetryPolicy()

    def check_parameters(self, **rules: Rule) -> None:
        """Check the parameters that are not templated.

        :param rules: the rules for parameters that are something else in this operator
        :raises ConfigurationError: a parameter cannot work; names it and the value received
        """
        given = {
            name: value
            for name, value in vars(self).items()
            # Airflow calls a function in a templated field with the context, and a transform is not meant for that.
            if name not in self.template_fields or (name == "transform" and callable(value))
        }
        check_untemplated(given, _RULES | rules, self.template_fields)
        sink = given.get("sink")
        if sink is not None and sink.conn_id is None:
            raise ConfigurationError(f"The sink {sink.name!r} has no conn_id: name the connection of its database")

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        """Return what Airflow stores of a task, with where its state is: the web interface finds databases by it."""
        fields: frozenset[str] = super().get_serialized_fields()  # type: ignore[no-untyped-call]  # Airflow does not annotate it
        return fields | {"kafka_offsets_state"}

    @property
    def kafka_offsets_state(self) -> str:
        """Return the names of the connections, the schema and the prefix, as JSON: no secrets."""
        sink = getattr(self, "sink", None)
        conn_id = sink.conn_id if sink is not None else getattr(self, "offsets_conn_id", None)
        kafka_conn_id = getattr(self, "kafka_conn_id", None)
        # Airflow reads a dictionary of a task as one of its own types.
        return json.dumps([conn_id, self.offsets_schema, self.offsets_prefix, kafka_conn_id])

    @property
    def tables(self) -> Tables:
        """Return the state tables."""
        # Imported here, as in the other methods, because DAG files are parsed every few seconds.
        from airflow_kafka_offsets.ledger.tables import Tables

        return Tables.of(self.offsets_schema, self.offsets_prefix)

    def database(self, conn_id: str | None) -> AbstractContextManager[Engine]:
        """Open the database of a connection, and close it after the block."""
        from airflow_kafka_offsets.hooks.connections import open_database

        assert conn_id is not None  # see `check_parameters`
        return open_database(conn_id)


class PipelineOperator(GroupOperator):
    """An operator that turns records into rows on Spark.

    The parameters of a subclass have the fields of `Pipeline` among them.
    """

    template_fields: Sequence[str] = ("group_id", "topics", "transform", "staging_dir", "spark_conf", "also_to_topic")

    topics: Sequence[str]
    sink: Sink
    staging_dir: str | None
    also_to_topic: str | None
    spark_conf: dict[str, Any] | None
    kafka_conn_id: str
    spark_conn_id: str
    _launcher: Launcher | None = None
    _stopped = False

    def check_parameters(self, **rules: Rule) -> None:
        super().check_parameters(**rules)
        if isinstance(self.sink, FanOut):
            self.sink.refuse_transform(getattr(self, "transform", None))
        refuse_literal_secrets(self.spark_conf)

    def render_template_fields(self, context: Context, jinja_env: Environment | None = None) -> None:
        """Render the templated fields.

        :raises ConfigurationError: a template names the data interval, and this run has none
        """
        try:
            super().render_template_fields(context, jinja_env)
        except UndefinedError as error:
            if "'data_interval_" not in str(error):
                raise
            raise ConfigurationError(f"{error}: {NO_INTERVAL}") from error

    def on_kill(self) -> None:
        """Stop Spark when Airflow stops the task; the next try resumes the batch."""
        self._stopped = True
        if self._launcher is not None:
            self._launcher.on_kill()

    def pipeline(self) -> Pipeline:
        """Return the pipeline, of rendered parameters."""
        from airflow_kafka_offsets.loading.pipeline import Pipeline

        return from_attributes(
            Pipeline,
            self,
            topics=topics_of(self.topics),
            # Templates may render to empty texts.
            staging_dir=self.staging_dir or None,
            also_to_topic=self.also_to_topic or None,
        )

    def run_on_spark(
        self, context: Context, work: Callable[..., LoadResult], *arguments: Any, **options: Any
    ) -> dict[str, Any]:
        """Call `load` or `replay` with the pipeline, and with what the connections name.

        :return: the fields of `LoadResult`, for XCom
        :raises SystemExit: Airflow stopped the task. It logs the text without a traceback, and retries remain
        """
        from airflow.sdk.observability import stats

        from airflow_kafka_offsets.exceptions import StagingError
        from airflow_kafka_offsets.hooks.connections import (
            kafka_config,
            make_launcher,
            registry_config,
            sink_connections,
        )
        from airflow_kafka_offsets.hooks.metrics import emit_commit

        run = task_run(context)
        self._launcher = make_launcher(self.spark_conn_id, conf=self.spark_conf, name=f"{run.dag_id}.{run.task_id}")
        config = kafka_config(self.kafka_conn_id)
        pipeline = self.pipeline()
        connections = {conn_id: registry_config(conn_id) for conn_id in pipeline.conn_ids} | sink_connections(self.sink)
        with self.database(self.sink.conn_id) as engine:
            try:
                result = work(
                    pipeline,
                    *arguments,
                    kafka_config=config,
                    engine=engine,
                    launcher=self._launcher,
                    run=run,
                    on_commit=partial(emit_commit, stats),
                    connections=connections,
                    **options,
                )
            except StagingError:
                if not self._stopped:
                    raise
                raise SystemExit(_STOPPED) from None
        return asdict(result) | {"batches": list(result.batches)}


def topics_of(topics: Any) -> tuple[str, ...]:
    """Return the parameter `topics` as a tuple; a template may render to a single topic."""
    return tuple(topics) if isinstance(topics, Iterable) and not isinstance(topics, str) else (topics,)


def task_run(context: Context) -> TaskRun:
    """Return the task instance of a context, with its try, and the user who triggered its DAG run."""
    from airflow_kafka_offsets.ledger.batch_rows import TaskRun

    return from_attributes(TaskRun, context["ti"], triggered_by=context["dag_run"].triggering_user_name)
