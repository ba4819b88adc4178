"""The base classes of operators: `GroupOperator` has parameters, connections and state tables; `PipelineOperator`, for
those that run Spark, also has a pipeline, a launcher, results, assets and lineage.

Each operator is in a separate module.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Asset, BaseOperator, BaseOperatorLink
from jinja2 import UndefinedError

from airflow_kafka_offsets.core.options import ISOLATION_LEVEL, Options, StateTables, group_of
from airflow_kafka_offsets.core.parameters import FLAG, NAME, Rule, assign, check_parsed, from_attributes, read_rendered
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.hooks.links import BatchLink, GroupLink, RewindLink
from airflow_kafka_offsets.loading.parameters import PIPELINE_RULES
from airflow_kafka_offsets.operators.results import alias_of, announce, outcome, topic_uris
from airflow_kafka_offsets.operators.retry_policy import ASKED, KafkaOffsetsRetryPolicy, ending_retries
from airflow_kafka_offsets.sinks.fan_out import as_sink, transform_of
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.spark.properties import Spark, refuse_literal_secrets

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context
    from jinja2 import Environment
    from sqlalchemy.engine import Engine

    from airflow_kafka_offsets.ledger.batch_rows import TaskRun
    from airflow_kafka_offsets.ledger.tables import Ledger
    from airflow_kafka_offsets.loading.context import LoadResult
    from airflow_kafka_offsets.loading.pipeline import Pipeline
    from airflow_kafka_offsets.spark.job import Launcher
    from airflow_kafka_offsets.transforms.transform import Transform


NO_INTERVAL = (
    "this run has no data interval, because an asset triggered it, or a user without a logical date. Nothing was "
    "done. Trigger it with a logical date, let a timetable with data intervals run the DAG "
    "(CronDataIntervalTimetable), or choose another instant"
)

RULES = PIPELINE_RULES | {
    "conn_id": NAME,
    "kafka_conn_id": NAME,
    "spark": group_of(Spark),
    "isolation_level": ISOLATION_LEVEL,
    "abandon_open_batch": FLAG,
    "new_group": FLAG,
    "new_cluster": FLAG,
    "assets": FLAG,
}


class GroupOperator(BaseOperator):
    """An operator for a group, with state tables in a SQL database and records in Kafka.

    The constructor of a subclass calls `take` with its parameters, among them those below. What Airflow renders is
    checked once it is rendered, everything else when the DAG is parsed. The default of `retry_policy` is
    `KafkaOffsetsRetryPolicy`.
    """

    rules: ClassVar[Mapping[str, Rule]] = RULES
    operator_extra_links: Collection[BaseOperatorLink] = (GroupLink(), RewindLink())

    # Where the page Rendered Templates shows more than text.
    template_fields_renderers: ClassVar[dict[str, str]] = dict.fromkeys(
        (
            *("sink", "value_format", "extra_columns", "on_bad_record", "limits", "coordination", "reading", "staging"),
            *("state_tables", "spark", "bounds", "replace"),
        ),
        "json",
    )

    group_id: str
    kafka_conn_id: Any
    state_tables: StateTables

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "execute" in vars(cls):
            cls.execute = ending_retries(cls.execute)  # type: ignore[method-assign]

    def __init__(self, **kwargs: Any) -> None:
        for name in kwargs:
            if groups := [f"{group.__name__}({name}=…)" for group in Options.__subclasses__() if name in group.rules]:
                raise ConfigurationError(f"{name} is not a parameter of {type(self).__name__}: {' or '.join(groups)}")
        super().__init__(**kwargs)
        if ASKED and self.retry_policy is None:
            self.retry_policy = KafkaOffsetsRetryPolicy()

    def take(self, given: Mapping[str, Any]) -> None:
        """Assign parameters to attributes, and check them, but for templates.

        :param given: the local variables of the constructor
        :raises ConfigurationError: a parameter cannot work; names it and the value received
        """
        assign(self, {**given, "sink": as_sink(given["sink"])} if "sink" in given else given)
        check_parsed(self._given(), self.rules, self.template_fields)
        sink = getattr(self, "sink", None)
        if isinstance(sink, Sink) and sink.conn_id is None:
            raise ConfigurationError(
                f"The sink {sink.name!r} has no conn_id: name the connection of the database that has the positions"
            )

    def _given(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in self.rules if hasattr(self, name)}
        # A template may render to a single topic.
        return given | {"topics": topics_of(given["topics"])} if isinstance(given.get("topics"), str) else given

    @ending_retries
    def _do_render_template_fields(
        self, parent: Any, template_fields: Iterable[str], context: Context, jinja_env: Environment, seen_oids: set[int]
    ) -> None:
        # Airflow calls this method, and no public one, for mapped tasks too.
        try:
            super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
        except UndefinedError as error:
            if "'data_interval_" not in str(error):
                raise
            raise ConfigurationError(f"{error}: {NO_INTERVAL}") from error
        if parent is self:
            names = frozenset(template_fields)
            rendered = {name: value for name, value in self._given().items() if name in names}
            assign(self, read_rendered(rendered, self.rules))

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        """Return what Airflow stores of a task, with where its state is: the web interface finds databases by it."""
        fields: frozenset[str] = super().get_serialized_fields()  # type: ignore[no-untyped-call]  # Airflow does not annotate it
        return fields | {"kafka_offsets_state"}

    @property
    def kafka_offsets_state(self) -> str:
        """Return the names of the connections, the schema, the prefix and the tables, as JSON: no secrets."""
        sink = getattr(self, "sink", None)
        # As text: Airflow reads a dictionary of a task as one of its own types.
        return json.dumps(
            {
                "conn_id": sink.conn_id if sink is not None else getattr(self, "conn_id", None),
                "schema": self.state_tables.schema,
                "prefix": self.state_tables.prefix,
                "kafka_conn_id": self.kafka_conn_id,
                "tables": [table._asdict() for table in sink.tables] if sink is not None else [],
            }
        )

    def ledger(self, conn_id: str | None) -> AbstractContextManager[Ledger]:
        """Open the state tables in the database of a connection, and close it after the block."""
        # Imported here, as in the other methods, because DAG files are parsed every few seconds.
        from airflow_kafka_offsets.hooks.connections import open_ledger

        assert conn_id is not None  # see `take`
        return open_ledger(conn_id, self.state_tables.schema, self.state_tables.prefix)


def topics_of(topics: Any) -> tuple[str, ...]:
    """Return the parameter `topics` as a tuple; a template may render to a single topic."""
    return tuple(topics) if isinstance(topics, Iterable) and not isinstance(topics, str) else (topics,)


def task_run(context: Context) -> TaskRun:
    """Return the task instance of a context, with its try, and the user who triggered its DAG run."""
    from airflow_kafka_offsets.ledger.batch_rows import TaskRun

    return from_attributes(TaskRun, context["ti"], triggered_by=context["dag_run"].triggering_user_name)


_STOPPED = (
    "Airflow stopped this task, and the task stopped Spark. Committed batches stay; a retry, or the next run, "
    "resumes the open batch, of which nothing was loaded"
)


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
        "extra_columns",
        "transform",
        "limits",
        "on_bad_record",
        "reading",
        "staging",
        "state_tables",
        "kafka_conn_id",
        "spark",
    )

    topics: Sequence[str]
    sink: Sink
    transform: str | Transform | None
    kafka_conn_id: str
    spark: Spark
    assets: bool
    _kind = "load"
    _done: dict[str, Any] | None = None
    _launcher: Launcher | None = None
    _stopped = False

    def take(self, given: Mapping[str, Any]) -> None:
        super().take(given)
        transform_of(self.sink, getattr(self, "transform", None))
        refuse_literal_secrets(self.spark)
        if self.assets:
            self.outlets = [*self.outlets, alias_of(self.group_id, self.task_id)]

    def on_kill(self) -> None:
        """Stop Spark when Airflow stops the task; the next try resumes the batch."""
        self._stopped = True
        if self._launcher is not None:
            self._launcher.cancel()

    @property
    def last_batch(self) -> int | None:
        """Return the last batch that this try committed; without one, the batch that it gave to Spark."""
        if self._done is not None and self._done["batches"]:
            return int(self._done["batches"][-1])
        return getattr(self._launcher, "last_batch", None)

    def pipeline(self) -> Pipeline:
        """Return the pipeline, of rendered parameters."""
        from airflow_kafka_offsets.loading.pipeline import Pipeline

        return from_attributes(Pipeline, self, topics=topics_of(self.topics))

    def run_on_spark(
        self, context: Context, work: Callable[..., LoadResult], *arguments: Any, **options: Any
    ) -> dict[str, Any]:
        """Call `load` or `replay` with the pipeline, and with what the connections name.

        :return: what the task instance did in all its tries, for XCom; see `outcome`
        :raises SystemExit: Airflow stopped the task. It logs the text without a traceback, and retries remain
        """
        from airflow.providers.common.compat.sdk import Stats

        from airflow_kafka_offsets.exceptions import StagingError
        from airflow_kafka_offsets.hooks.connections import kafka_config, make_launcher, pipeline_connections
        from airflow_kafka_offsets.hooks.metrics import emit_commit

        run = task_run(context)
        self._launcher = make_launcher(
            self.spark.conn_id,
            conf=self.spark.conf,
            options=self.spark.options,
            name=f"{run.dag_id}.{run.task_id}",
        )
        config = kafka_config(self.kafka_conn_id)
        pipeline = self.pipeline()
        with self.ledger(self.sink.conn_id) as ledger:
            try:
                result = work(
                    pipeline,
                    *arguments,
                    kafka_config=config,
                    engine=ledger.engine,
                    launcher=self._launcher,
                    run=run,
                    on_commit=partial(emit_commit, Stats),
                    connections=pipeline_connections(pipeline),
                    **options,
                )
            except StagingError:
                if not self._stopped:
                    raise
                raise SystemExit(_STOPPED) from None
            self._done = done = outcome(ledger, pipeline, result, run, kind=self._kind)
            if self.assets:
                self._announce(context, topic_uris(config["bootstrap.servers"], pipeline.topics), ledger.engine, done)
        return done

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """Return the topics and the target, for OpenLineage; on completion, also what was loaded."""
        return self._lineage(lambda _: self._done)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the topics and the target, with what was loaded before the error, for OpenLineage."""
        from airflow_kafka_offsets.ledger.batch_rows import TaskRun
        from airflow_kafka_offsets.loading.context import LoadResult

        run = from_attributes(TaskRun, task_instance, triggered_by=None)
        nothing = LoadResult(complete=False)
        return self._lineage(lambda ledger: outcome(ledger, self.pipeline(), nothing, run, kind=self._kind))

    def _lineage(self, read_done: Callable[[Ledger], dict[str, Any] | None]) -> OperatorLineage[Any, Any]:
        from airflow_kafka_offsets.operators.lineage import load_lineage

        return load_lineage(self.pipeline(), kind=self._kind, kafka_conn_id=self.kafka_conn_id, read_done=read_done)

    def _announce(self, context: Context, topics: Sequence[str], engine: Engine, done: dict[str, Any]) -> None:
        inlets = {asset.uri for asset in self.inlets if isinstance(asset, Asset)}
        self.inlets = [*self.inlets, *(asset for uri in topics if (asset := Asset(uri=uri)).uri not in inlets)]
        announce(context, self.outlets, self.sink.uris(engine) if done["batches"] else (), done)
