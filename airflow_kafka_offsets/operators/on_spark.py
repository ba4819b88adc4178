"""The base class of operators that run Spark: `PipelineOperator` has a pipeline, a launcher, results, assets and
lineage.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, BaseOperatorLink

from airflow_kafka_offsets.core.parameters import from_attributes
from airflow_kafka_offsets.hooks.links import BatchLink, GroupLink, RewindLink
from airflow_kafka_offsets.operators.assets import alias_of, announce, topic_uris
from airflow_kafka_offsets.operators.base import GroupOperator, task_run, topics_of
from airflow_kafka_offsets.sinks.fan_out import transform_of
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.spark.properties import Spark, refuse_literal_secrets

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context
    from sqlalchemy.engine import Engine

    from airflow_kafka_offsets.loading.context import LoadResult
    from airflow_kafka_offsets.loading.pipeline import Pipeline
    from airflow_kafka_offsets.spark.job import Launcher
    from airflow_kafka_offsets.transforms.transform import Transform

_STOPPED = (
    "Airflow stopped this task, and the task stopped Spark. What is committed stays; a retry, or the next run, "
    "resumes the open batch, of which nothing is loaded"
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

    def check_parameters(self) -> None:
        super().check_parameters()
        transform_of(self.sink, getattr(self, "transform", None))
        refuse_literal_secrets(self.spark.conf)
        if self.assets:
            self.outlets = [*self.outlets, alias_of(self.group_id, self.task_id)]

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

        return from_attributes(Pipeline, self, topics=topics_of(self.topics))

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
        self._launcher = make_launcher(self.spark.conn_id, conf=self.spark.conf, name=f"{run.dag_id}.{run.task_id}")
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
        announce(context, self.outlets, self.sink.uris(engine) if done["batches"] else (), done)
