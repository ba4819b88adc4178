"""The base classes of operators: `GroupOperator` has connections and state tables, `PipelineOperator` also runs Spark.

What an operator does with them is in the module that is named for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from jinja2 import UndefinedError

from airflow_kafka_offsets.core.parameters import Rule, check_untemplated, from_attributes
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.operators.parameters import OPERATOR_RULES
from airflow_kafka_offsets.operators.retry_policy import KafkaOffsetsRetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import Context
    from jinja2 import Environment
    from sqlalchemy.engine import Engine

    from airflow_kafka_offsets.ledger.tables import Tables
    from airflow_kafka_offsets.ledger.task_run import TaskRun
    from airflow_kafka_offsets.loading.context import LoadResult
    from airflow_kafka_offsets.sinks.sink import Sink
    from airflow_kafka_offsets.spark.launcher import Launcher


NO_INTERVAL = (
    "this run has no data interval, because an asset triggered it, or a user without a logical date. Nothing was loaded. "
    "Trigger it with a logical date, let a timetable with data intervals run the DAG (CronDataIntervalTimetable), or choose "
    "another instant"
)


class GroupOperator(BaseOperator):
    """An operator for a group, with state tables in a SQL database and records in Kafka.

    A subclass assigns its parameters to attributes of the same names, among them those below, and then calls `check_parameters`.
    The default of `retry_policy` is `KafkaOffsetsRetryPolicy`.
    """

    parameter_rules: ClassVar[Mapping[str, Rule]] = OPERATOR_RULES

    group_id: str
    isolation_level: str
    offsets_schema: str | None
    offsets_prefix: str
    kafka_conn_id: str | None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.retry_policy is None:
            self.retry_policy = KafkaOffsetsRetryPolicy()

    def check_parameters(self) -> None:
        """Check the parameters that are not templated.

        :raises ConfigurationError: a parameter cannot work; names it and the value received
        """
        given = {
            name: value
            for name, value in vars(self).items()
            # Airflow calls a function in a templated field with the context, and a transform is not meant for that.
            if name not in self.template_fields or (name == "transform" and callable(value))
        }
        check_untemplated(given, self.parameter_rules, self.template_fields)
        sink = given.get("sink")
        if sink is not None and sink.conn_id is None:
            raise ConfigurationError(f"The sink {sink.name!r} has no conn_id: name the connection of its database")

    @property
    def tables(self) -> Tables:
        """Return the state tables."""
        # Imported here, as in the other methods, because DAG files are parsed every few seconds.
        from airflow_kafka_offsets.ledger.tables import Tables

        return Tables(self.offsets_schema, self.offsets_prefix)

    def kafka_config(self) -> dict[str, Any]:
        """Return the librdkafka configuration of the connection."""
        from airflow_kafka_offsets.hooks.kafka import kafka_config

        assert self.kafka_conn_id is not None  # checked by the caller, where Kafka is optional
        return kafka_config(self.kafka_conn_id)

    @contextmanager
    def database(self, conn_id: str | None) -> Iterator[Engine]:
        """Open the database of a connection, and close it after the block."""
        from airflow_kafka_offsets.hooks.database import database_engine

        assert conn_id is not None  # see `check_parameters`
        engine = database_engine(conn_id)
        try:
            yield engine
        finally:
            engine.dispose()


class PipelineOperator(GroupOperator):
    """An operator that turns records into rows on Spark.

    The parameters of a subclass have the fields of `Pipeline` among them.
    """

    template_fields: Sequence[str] = ("group_id", "topics", "transform", "staging_dir", "spark_conf")

    topics: Sequence[str]
    sink: Sink
    staging_dir: str | None
    spark_conf: dict[str, Any] | None
    spark_conn_id: str
    _launcher: Launcher | None = None

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
        if self._launcher is not None:
            self._launcher.on_kill()

    def run_on_spark(
        self, context: Context, work: Callable[..., LoadResult], *arguments: Any, **options: Any
    ) -> dict[str, Any]:
        """Call `load` or `replay` with the pipeline, and with what the connections name.

        :return: the fields of `LoadResult`, for XCom
        """
        from airflow.sdk.observability import stats

        from airflow_kafka_offsets.hooks.launchers import make_launcher
        from airflow_kafka_offsets.hooks.metrics import emit_commit
        from airflow_kafka_offsets.loading.pipeline import Pipeline

        run = task_run(context)
        self._launcher = make_launcher(self.spark_conn_id, conf=self.spark_conf, name=f"{run.dag_id}.{run.task_id}")
        config = self.kafka_config()
        with self.database(self.sink.conn_id) as engine:
            result = work(
                from_attributes(Pipeline, self, topics=topics_of(self.topics), staging_dir=self.staging_dir or None),
                *arguments,
                kafka_config=config,
                engine=engine,
                launcher=self._launcher,
                run=run,
                on_commit=partial(emit_commit, stats),
                **options,
            )
        return asdict(result) | {"batches": list(result.batches)}


def topics_of(topics: Any) -> tuple[str, ...]:
    """Return the parameter `topics` as a tuple; a template may render to a single topic."""
    return tuple(topics) if isinstance(topics, Iterable) and not isinstance(topics, str) else (topics,)


def task_run(context: Context) -> TaskRun:
    """Return the task instance of a context, with its try."""
    from airflow_kafka_offsets.ledger.task_run import TaskRun

    return from_attributes(TaskRun, context["ti"])
