"""What the operators that run a pipeline on Spark share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from jinja2 import UndefinedError

from airflow_kafka_offsets import parameters
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.operators.task_run import task_run
from airflow_kafka_offsets.retry_policy import KafkaOffsetsRetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import Context
    from jinja2 import Environment

    from airflow_kafka_offsets.attempt import LoadResult
    from airflow_kafka_offsets.formats import ValueFormat
    from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
    from airflow_kafka_offsets.pipeline import Pipeline
    from airflow_kafka_offsets.sinks import SqlTable

NO_INTERVAL = (
    "this run has no data interval, because an asset triggered it, or somebody without a logical date. Nothing was loaded. "
    "Trigger it with a logical date, let a timetable with data intervals run the DAG (CronDataIntervalTimetable), or choose "
    "another instant"
)


class PipelineOperator(BaseOperator):
    """Records of topics into a SQL table. What the parameters mean is said by the operators themselves.

    :raises ConfigurationError: a parameter that is not templated cannot work; raised when the DAG is parsed
    """

    template_fields: Sequence[str] = ("group_id", "topics", "transform", "staging_dir", "spark_conf")

    def __init__(
        self,
        *,
        group_id: str,
        topics: Sequence[str],
        value_format: ValueFormat,
        sink: SqlTable,
        transform: str | None = None,
        max_records: int | None = None,
        on_data_loss: str = "fail",
        on_bad_record: str = "fail",
        max_dead_letters: int | None = 1000,
        isolation_level: str = "read_committed",
        staging_dir: str | None = None,
        spark_conf: dict[str, Any] | None = None,
        slice_offsets: int = 250_000,
        staging_retention: timedelta = timedelta(days=7),
        idle_timeout: timedelta = timedelta(seconds=120),
        offsets_schema: str | None = None,
        offsets_prefix: str = "",
        kafka_conn_id: str = "kafka_default",
        spark_conn_id: str = "spark_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if self.retry_policy is None:
            self.retry_policy = KafkaOffsetsRetryPolicy()
        self.group_id = group_id
        self.topics = topics
        self.value_format = value_format
        self.sink = sink
        self.transform: Any = transform
        self.max_records = max_records
        self.on_data_loss = on_data_loss
        self.on_bad_record = on_bad_record
        self.max_dead_letters = max_dead_letters
        self.isolation_level = isolation_level
        self.staging_dir = staging_dir
        self.spark_conf = spark_conf
        self.slice_offsets = slice_offsets
        self.staging_retention = staging_retention
        self.idle_timeout = idle_timeout
        self.offsets_schema = offsets_schema
        self.offsets_prefix = offsets_prefix
        self.kafka_conn_id = kafka_conn_id
        self.spark_conn_id = spark_conn_id
        self._launcher: SparkSubmitLauncher | None = None
        self.check_parameters()
        if sink.conn_id is None:
            raise ConfigurationError(f"The sink {sink.name!r} has no conn_id: name the connection of its database")

    def check_parameters(self) -> None:
        """Refuse what cannot work, as far as it needs no rendering.

        :raises ConfigurationError: names the parameter and the value received
        """
        given = {name: value for name, value in vars(self).items() if name not in self.template_fields}
        if callable(self.transform):
            # Airflow would call it with the context, as it does with every function in a templated field.
            given["transform"] = self.transform
        parameters.check(given)

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

    def pipeline(self, **options: Any) -> Pipeline:
        """What the parameters say.

        :param options: of the pipeline, beside the shared ones
        """
        from airflow_kafka_offsets.ledger import Tables
        from airflow_kafka_offsets.pipeline import Pipeline

        return Pipeline(
            group_id=self.group_id,
            topics=topics_of(self.topics),
            value_format=self.value_format,
            sink=self.sink,
            transform=self.transform,
            max_records=self.max_records,
            on_data_loss=self.on_data_loss,  # type: ignore[arg-type]
            on_bad_record=self.on_bad_record,  # type: ignore[arg-type]
            max_dead_letters=self.max_dead_letters,
            isolation_level=self.isolation_level,
            slice_offsets=self.slice_offsets,
            staging_dir=self.staging_dir or None,
            staging_retention=self.staging_retention,
            idle_timeout=self.idle_timeout,
            tables=Tables(self.offsets_schema, self.offsets_prefix),
            **options,
        )

    def run_on_spark(
        self, context: Context, work: Callable[..., LoadResult], pipeline: Pipeline, *arguments: Any, **options: Any
    ) -> dict[str, Any]:
        """Call `load` or `replay` with what the connections lead to.

        :return: the fields of `LoadResult`, for XCom
        """
        from airflow.sdk.observability import stats

        from airflow_kafka_offsets.hooks.database import database_engine
        from airflow_kafka_offsets.hooks.kafka import kafka_config
        from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
        from airflow_kafka_offsets.metrics import emit_commit

        run = task_run(context)
        self._launcher = SparkSubmitLauncher(
            self.spark_conn_id, conf=self.spark_conf, name=f"{run.dag_id}.{run.task_id}"
        )
        config = kafka_config(self.kafka_conn_id)
        assert pipeline.sink.conn_id is not None  # see `__init__`
        engine = database_engine(pipeline.sink.conn_id)
        try:
            result = work(
                pipeline,
                *arguments,
                kafka_config=config,
                engine=engine,
                launcher=self._launcher,
                run=run,
                on_commit=partial(emit_commit, stats),
                **options,
            )
        finally:
            engine.dispose()
        return asdict(result) | {"batches": list(result.batches)}


def topics_of(topics: Any) -> tuple[str, ...]:
    """The parameter `topics`, of which one may be given as it is."""
    return tuple(topics) if isinstance(topics, Iterable) and not isinstance(topics, str) else (topics,)
