"""The base classes of operators: `GroupOperator` has connections and state tables, `PipelineOperator` also runs Spark.

What an operator does with them is in the module that is named for it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Asset, BaseOperator, BaseOperatorLink
from jinja2 import UndefinedError

from airflow_kafka_offsets.core.parameters import (
    FLAG,
    NAME,
    TEXT,
    Rule,
    check_parsed,
    from_attributes,
    one_of,
    or_none,
    read_rendered,
)
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.hooks.links import BatchLink, GroupLink, RewindLink
from airflow_kafka_offsets.loading.parameters import PIPELINE_RULES
from airflow_kafka_offsets.operators.assets import alias_of, announce, target_uris, topic_uris
from airflow_kafka_offsets.operators.retry_policy import KafkaOffsetsRetryPolicy
from airflow_kafka_offsets.sinks.fan_out import FanOut
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.spark.properties import refuse_literal_secrets

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context
    from jinja2 import Environment
    from sqlalchemy.engine import Engine

    from airflow_kafka_offsets.ledger.batch_rows import TaskRun
    from airflow_kafka_offsets.ledger.tables import Tables
    from airflow_kafka_offsets.loading.context import LoadResult
    from airflow_kafka_offsets.loading.pipeline import Pipeline
    from airflow_kafka_offsets.spark.job import Launcher


NO_INTERVAL = (
    "this run has no data interval, because an asset triggered it, or a user without a logical date. Nothing was loaded. "
    "Trigger it with a logical date, let a timetable with data intervals run the DAG (CronDataIntervalTimetable), or choose "
    "another instant"
)

RULES = PIPELINE_RULES | {
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
    "assets": FLAG,
}


_STOPPED = (
    "Airflow stopped this task, and the task stopped Spark. What is committed stays; a retry, or the next run, resumes the open "
    "batch, of which nothing is loaded"
)


class GroupOperator(BaseOperator):
    """An operator for a group, with state tables in a SQL database and records in Kafka.

    A subclass assigns its parameters to attributes of the same names, among them those below, and then calls `check_parameters`.
    What Airflow renders is checked once it is rendered, everything else when the DAG is parsed. The default of `retry_policy` is
    `KafkaOffsetsRetryPolicy`.
    """

    rules: ClassVar[Mapping[str, Rule]] = RULES
    operator_extra_links: Collection[BaseOperatorLink] = (GroupLink(), RewindLink())

    group_id: str
    isolation_level: str
    offsets_schema: str | None
    offsets_prefix: str

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.retry_policy is None:
            self.retry_policy = KafkaOffsetsRetryPolicy()

    def check_parameters(self) -> None:
        """Check the parameters, but for templates.

        :raises ConfigurationError: a parameter cannot work; names it and the value received
        """
        check_parsed(self._given(), self.rules, self.template_fields)
        sink = getattr(self, "sink", None)
        if isinstance(sink, Sink) and sink.conn_id is None:
            raise ConfigurationError(f"The sink {sink.name!r} has no conn_id: name the connection of its database")

    def _given(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in self.rules if hasattr(self, name)}
        # A template may render to a single topic.
        return given | {"topics": topics_of(given["topics"])} if isinstance(given.get("topics"), str) else given

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Iterable[str],
        context: Context,
        jinja_env: Environment,
        seen_oids: set[int],
    ) -> None:
        # Airflow calls this method, and no public one, for mapped tasks too.
        super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
        if parent is self:
            self._read_rendered(template_fields)

    def _read_rendered(self, names: Iterable[str]) -> None:
        """Give rendered texts the types of their parameters.

        :raises ConfigurationError: one cannot work; names it and the value received
        """
        names = frozenset(names)
        given = {name: value for name, value in self._given().items() if name in names}
        for name, value in read_rendered(given, self.rules).items():
            if value is not given[name]:
                setattr(self, name, value)

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        """Return what Airflow stores of a task, with where its state is: the web interface finds databases by it."""
        fields: frozenset[str] = super().get_serialized_fields()  # type: ignore[no-untyped-call]  # Airflow does not annotate it
        return fields | {"kafka_offsets_state"}

    @property
    def kafka_offsets_state(self) -> str:
        """Return the names of the connections, the schema, the prefix and the tables, as JSON: no secrets."""
        from airflow_kafka_offsets.sinks.fan_out import FanOut
        from airflow_kafka_offsets.sinks.sql.table import SqlTable

        sink = getattr(self, "sink", None)
        conn_id = sink.conn_id if sink is not None else getattr(self, "offsets_conn_id", None)
        kafka_conn_id = getattr(self, "kafka_conn_id", None)
        targets = [branch.sink for branch in sink.branches] if isinstance(sink, FanOut) else [sink]
        # Those that verify and remove their rows by their parameters alone.
        tables = [
            [target.table, target.schema, list(target.upsert_key)] for target in targets if isinstance(target, SqlTable)
        ]
        known = tables if len(tables) == len(targets) else []
        # Airflow reads a dictionary of a task as one of its own types.
        return json.dumps([conn_id, self.offsets_schema, self.offsets_prefix, kafka_conn_id, known])

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

    operator_extra_links: Collection[BaseOperatorLink] = (GroupLink(), BatchLink(), RewindLink())
    template_fields: Sequence[str] = (
        "group_id",
        "topics",
        "sink",
        "value_format",
        "key_format",
        "metadata_columns",
        "transform",
        "max_records",
        "max_dead_letters",
        "also_to_topic",
        "max_record_bytes",
        "staging_dir",
        "spark_conf",
        "slice_offsets",
        "offsets_schema",
        "offsets_prefix",
        "kafka_conn_id",
        "spark_conn_id",
    )
    # Where the page Rendered Templates shows more than text.
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "sink": "json",
        "value_format": "json",
        "key_format": "json",
        "metadata_columns": "json",
        "spark_conf": "json",
    }

    topics: Sequence[str]
    sink: Sink
    staging_dir: str | None
    also_to_topic: str | None
    spark_conf: dict[str, Any] | None
    kafka_conn_id: str
    spark_conn_id: str
    assets: bool
    _kind = "load"
    _done: dict[str, Any] | None = None
    _launcher: Launcher | None = None
    _stopped = False

    def check_parameters(self) -> None:
        super().check_parameters()
        if isinstance(self.sink, FanOut):
            self.sink.refuse_transform(getattr(self, "transform", None))
        refuse_literal_secrets(self.spark_conf)
        if self.assets:
            self.outlets = [*self.outlets, alias_of(self.group_id, self.task_id)]

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Iterable[str],
        context: Context,
        jinja_env: Environment,
        seen_oids: set[int],
    ) -> None:
        try:
            super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
        except UndefinedError as error:
            if "'data_interval_" not in str(error):
                raise
            raise ConfigurationError(f"{error}: {NO_INTERVAL}") from error

    def on_kill(self) -> None:
        """Stop Spark when Airflow stops the task; the next try resumes the batch."""
        self._stopped = True
        if self._launcher is not None:
            self._launcher.cancel()

    @property
    def last_batch(self) -> int | None:
        """Return the last batch that this try committed, or else gave to Spark."""
        if self._done is not None and self._done["batches"]:
            return int(self._done["batches"][-1])
        return getattr(self._launcher, "last_batch", None)

    def pipeline(self) -> Pipeline:
        """Return the pipeline, of rendered parameters."""
        from airflow_kafka_offsets.loading.pipeline import Pipeline

        return from_attributes(
            Pipeline,
            self,
            topics=topics_of(self.topics),
            # A template may render to an empty text.
            staging_dir=self.staging_dir or None,
        )

    def run_on_spark(
        self, context: Context, work: Callable[..., LoadResult], *arguments: Any, **options: Any
    ) -> dict[str, Any]:
        """Call `load` or `replay` with the pipeline, and with what the connections name.

        :return: what the task instance did in all its tries, for XCom; see `outcome`
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
        from airflow_kafka_offsets.operators.outcome import outcome

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
            self._done = done = outcome(engine, pipeline, result, run, kind=self._kind)
            if self.assets:
                self._announce(context, topic_uris(config["bootstrap.servers"], pipeline.topics), engine, done)
        return done

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """Return the topics and the target, for OpenLineage."""
        return self._lineage(lambda _: None)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the topics and the target, with what was loaded, for OpenLineage."""
        return self._lineage(lambda _: self._done)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the topics and the target, with what was loaded before the error, for OpenLineage."""
        from airflow_kafka_offsets.ledger.batch_rows import TaskRun
        from airflow_kafka_offsets.loading.context import LoadResult
        from airflow_kafka_offsets.operators.outcome import outcome

        run = from_attributes(TaskRun, task_instance, triggered_by=None)
        nothing = LoadResult(complete=False)
        return self._lineage(lambda engine: outcome(engine, self.pipeline(), nothing, run, kind=self._kind))

    def _lineage(self, read_done: Callable[[Engine], dict[str, Any] | None]) -> OperatorLineage[Any, Any]:
        from airflow_kafka_offsets.operators.lineage import load_lineage

        return load_lineage(self.pipeline(), kind=self._kind, kafka_conn_id=self.kafka_conn_id, read_done=read_done)

    def _announce(self, context: Context, topics: Sequence[str], engine: Engine, done: dict[str, Any]) -> None:
        inlets = {asset.uri for asset in self.inlets if isinstance(asset, Asset)}
        self.inlets = [*self.inlets, *(asset for uri in topics if (asset := Asset(uri=uri)).uri not in inlets)]
        announce(context, self.outlets, target_uris(self.sink, engine) if done["batches"] else (), done)


def topics_of(topics: Any) -> tuple[str, ...]:
    """Return the parameter `topics` as a tuple; a template may render to a single topic."""
    return tuple(topics) if isinstance(topics, Iterable) and not isinstance(topics, str) else (topics,)


def task_run(context: Context) -> TaskRun:
    """Return the task instance of a context, with its try, and the user who triggered its DAG run."""
    from airflow_kafka_offsets.ledger.batch_rows import TaskRun

    return from_attributes(TaskRun, context["ti"], triggered_by=context["dag_run"].triggering_user_name)
