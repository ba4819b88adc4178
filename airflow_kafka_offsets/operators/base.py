"""What operators share: a group with its connections and state tables, and a pipeline that runs on Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from jinja2 import UndefinedError

from airflow_kafka_offsets.core.parameters import Rule, check, check_untemplated
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.operators.parameters import OPERATOR_RULES
from airflow_kafka_offsets.operators.retry_policy import KafkaOffsetsRetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from airflow.sdk import Context
    from jinja2 import Environment
    from sqlalchemy.engine import Engine

    from airflow_kafka_offsets.formats.record_format import RecordFormat
    from airflow_kafka_offsets.ledger.tables import Tables
    from airflow_kafka_offsets.ledger.task_run import TaskRun
    from airflow_kafka_offsets.loading.parameters import OnBadRecord
    from airflow_kafka_offsets.loading.pipeline import Pipeline
    from airflow_kafka_offsets.loading.result import LoadResult
    from airflow_kafka_offsets.sinks.sink import Sink
    from airflow_kafka_offsets.spark.launcher import Launcher


NO_INTERVAL = (
    "this run has no data interval, because an asset triggered it, or somebody without a logical date. Nothing was loaded. "
    "Trigger it with a logical date, let a timetable with data intervals run the DAG (CronDataIntervalTimetable), or choose "
    "another instant"
)


class GroupOperator(BaseOperator):
    """Work for a group, whose state tables are in a SQL database and whose records are in Kafka.

    A subclass calls `check_parameters` at the end of its `__init__`. Its tasks have `KafkaOffsetsRetryPolicy`, unless they are
    given another policy.
    """

    parameter_rules: ClassVar[Mapping[str, Rule]] = OPERATOR_RULES

    def __init__(
        self,
        *,
        group_id: str,
        isolation_level: str,
        offsets_schema: str | None,
        offsets_prefix: str,
        kafka_conn_id: str | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if self.retry_policy is None:
            self.retry_policy = KafkaOffsetsRetryPolicy()
        self.group_id = group_id
        self.isolation_level = isolation_level
        self.offsets_schema = offsets_schema
        self.offsets_prefix = offsets_prefix
        self.kafka_conn_id = kafka_conn_id

    def check_parameters(self) -> None:
        """Refuse what cannot work, as far as it needs no rendering.

        :raises ConfigurationError: names the parameter and the value received
        """
        given = {name: value for name, value in vars(self).items() if name not in self.template_fields}
        check_untemplated(given, self.parameter_rules, self.template_fields)
        sink = given.get("sink")
        if sink is not None and sink.conn_id is None:
            raise ConfigurationError(f"The sink {sink.name!r} has no conn_id: name the connection of its database")

    @property
    def tables(self) -> Tables:
        """The state tables."""
        # Here and not above, as below: DAG files are parsed every few seconds.
        from airflow_kafka_offsets.ledger.tables import Tables

        return Tables(self.offsets_schema, self.offsets_prefix)

    def kafka_config(self) -> dict[str, Any]:
        """Return the librdkafka configuration of the connection."""
        from airflow_kafka_offsets.hooks.kafka import kafka_config

        assert self.kafka_conn_id is not None  # an operator that may do without Kafka asks first
        return kafka_config(self.kafka_conn_id)

    @contextmanager
    def database(self, conn_id: str | None) -> Iterator[Engine]:
        """Open the database of a connection for as long as the block lasts."""
        from airflow_kafka_offsets.hooks.database import database_engine

        assert conn_id is not None  # see `check_parameters`
        engine = database_engine(conn_id)
        try:
            yield engine
        finally:
            engine.dispose()


class PipelineOperator(GroupOperator):
    """Turn records of topics into rows of a SQL table. `KafkaBatchOperator` says what the parameters mean."""

    template_fields: Sequence[str] = ("group_id", "topics", "transform", "staging_dir", "spark_conf")

    def __init__(
        self,
        *,
        topics: Sequence[str],
        value_format: RecordFormat,
        sink: Sink,
        transform: str | None,
        on_bad_record: OnBadRecord,
        max_dead_letters: int | None,
        staging_dir: str | None,
        spark_conf: dict[str, Any] | None,
        slice_offsets: int,
        staging_retention: timedelta,
        idle_timeout: timedelta,
        spark_conn_id: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topics = topics
        self.value_format = value_format
        self.sink = sink
        self.transform: Any = transform
        self.on_bad_record = on_bad_record
        self.max_dead_letters = max_dead_letters
        self.staging_dir = staging_dir
        self.spark_conf = spark_conf
        self.slice_offsets = slice_offsets
        self.staging_retention = staging_retention
        self.idle_timeout = idle_timeout
        self.spark_conn_id = spark_conn_id
        self._launcher: Launcher | None = None

    def check_parameters(self) -> None:
        """Refuse what cannot work, as far as it needs no rendering.

        :raises ConfigurationError: names the parameter and the value received
        """
        super().check_parameters()
        if callable(self.transform):
            # Airflow would call it with the context, as it does with every function in a templated field.
            check({"transform": self.transform}, self.parameter_rules)

    def render_template_fields(self, context: Context, jinja_env: Environment | None = None) -> None:
        """Render.

        :raises ConfigurationError: a template names the data interval, and this run has none
        """
        try:
            super().render_template_fields(context, jinja_env)
        except UndefinedError as error:
            if "'data_interval_" not in str(error):
                raise
            raise ConfigurationError(f"{error}: {NO_INTERVAL}") from error

    def on_kill(self) -> None:
        """Stop Spark when Airflow stops the task; what was staged is replayed by the next try."""
        if self._launcher is not None:
            self._launcher.on_kill()

    def pipeline(self) -> Pipeline:
        """Return what the parameters say about rows."""
        from airflow_kafka_offsets.loading.pipeline import Pipeline

        return Pipeline(
            group_id=self.group_id,
            topics=topics_of(self.topics),
            value_format=self.value_format,
            sink=self.sink,
            transform=self.transform,
            on_bad_record=self.on_bad_record,
            max_dead_letters=self.max_dead_letters,
            isolation_level=self.isolation_level,
            slice_offsets=self.slice_offsets,
            staging_dir=self.staging_dir or None,
            staging_retention=self.staging_retention,
            idle_timeout=self.idle_timeout,
            tables=self.tables,
        )

    def run_on_spark(
        self, context: Context, work: Callable[..., LoadResult], *arguments: Any, **options: Any
    ) -> dict[str, Any]:
        """Call `load` or `replay` with the pipeline and with what the connections lead to.

        :return: the fields of `LoadResult`, for XCom
        """
        from airflow.sdk.observability import stats

        from airflow_kafka_offsets.hooks.launchers import make_launcher
        from airflow_kafka_offsets.hooks.metrics import emit_commit

        run = task_run(context)
        self._launcher = make_launcher(self.spark_conn_id, conf=self.spark_conf, name=f"{run.dag_id}.{run.task_id}")
        config = self.kafka_config()
        with self.database(self.sink.conn_id) as engine:
            result = work(
                self.pipeline(),
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
    """The parameter `topics`, of which one may be given as it is."""
    return tuple(topics) if isinstance(topics, Iterable) and not isinstance(topics, str) else (topics,)


def task_run(context: Context) -> TaskRun:
    """The task instance of a context, with its try."""
    # Here and not above: DAG files are parsed every few seconds.
    from airflow_kafka_offsets.ledger.task_run import TaskRun

    instance = context["ti"]
    return TaskRun(
        dag_id=instance.dag_id,
        task_id=instance.task_id,
        run_id=instance.run_id,
        map_index=instance.map_index,
        try_number=instance.try_number,
    )
