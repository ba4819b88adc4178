"""Plan a range, stage it on Spark, commit it in one transaction; again, until everything is loaded.

Plain functions: Airflow's operators, the command line, scripts and notebooks call the same ones. Each step is in a module of its
own: `plan`, `stage`, `commit`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy.engine import Engine

from airflow_kafka_offsets.database.errors import translated_errors
from airflow_kafka_offsets.exceptions import DataLossError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.install import create_missing
from airflow_kafka_offsets.ledger.task_run import TaskRun
from airflow_kafka_offsets.loading.claiming import hold_group
from airflow_kafka_offsets.loading.commit import commit
from airflow_kafka_offsets.loading.context import LoadContext
from airflow_kafka_offsets.loading.mirror import mirror_after_commit
from airflow_kafka_offsets.loading.pipeline import LoadOptions, Pipeline
from airflow_kafka_offsets.loading.plan import abandon_if_expired, decide, plan
from airflow_kafka_offsets.loading.result import LoadResult, OnCommit
from airflow_kafka_offsets.loading.stage import stage
from airflow_kafka_offsets.loading.staging_area import clean_up
from airflow_kafka_offsets.spark.launcher import Launcher

log = logging.getLogger(__name__)


def load(
    pipeline: Pipeline,
    options: LoadOptions | None = None,
    *,
    kafka_config: Mapping[str, Any],
    engine: Engine,
    launcher: Launcher,
    run: TaskRun | None = None,
    on_commit: OnCommit | None = None,
) -> LoadResult:
    """Load all records up to the current end of the log, or up to `until`, in as many batches as it takes.

    Safe to run again at any time, and from two places at once: every offset is loaded exactly once.

    :param options: where the load begins, how far it goes, and how; None is `LoadOptions()`
    :param kafka_config: librdkafka configuration
    :param engine: the database of the target and the positions
    :param launcher: how Spark is started, for example `SessionLauncher(spark)`
    :param run: who loads; the attempts of one task instance share the end offsets that its first attempt captured
    :param on_commit: called after each commit; an exception that it raises is logged, and the load continues
    :raises KafkaOffsetsError: see `exceptions`; `retriable` says whether loading again can help
    """
    options = options or LoadOptions()
    columns = pipeline.check()
    options.check()
    launcher.check(pipeline.staging_dir)
    cluster = Cluster(kafka_config, isolation_level=pipeline.isolation_level)
    cluster_id = cluster.cluster_id()
    with translated_errors(f"Group {pipeline.group_id!r} was not loaded to the end"):
        create_missing(engine, pipeline.tables)
        target = pipeline.sink.prepare(engine, None if pipeline.transform else columns)
        clean_up(engine, pipeline.tables, pipeline.staging_dir, older_than=pipeline.staging_retention)
        with hold_group(pipeline, options, engine, run or TaskRun.of_this_process(), cluster_id) as claim:
            context = LoadContext(
                pipeline=pipeline,
                kafka_config=kafka_config,
                cluster=cluster,
                engine=engine,
                launcher=launcher,
                claim=claim,
                columns=columns,
                target=target,
                fingerprint=pipeline.fingerprint(columns),
                on_commit=on_commit,
            )
            return _load_batches(context, options)


def _load_batches(context: LoadContext, options: LoadOptions) -> LoadResult:
    started = time.monotonic()
    result = LoadResult()
    while True:
        batch_started = time.monotonic()
        planned = plan(context, options)
        if planned is None:
            if not result.batches:
                # Mirrors positions that were stored without a batch, or that an earlier load could not mirror.
                mirror_after_commit(context.cluster, options.mirror_to, context.engine, context.pipeline)
            return result
        try:
            staged = planned.staged or stage(context, planned.batch)
        except DataLossError:
            if not abandon_if_expired(context, options, planned.batch):
                raise
            continue
        rows = commit(context, planned.batch, staged, batch_started)
        mirror_after_commit(context.cluster, options.mirror_to, context.engine, context.pipeline)
        result += LoadResult((planned.batch.batch_id,), staged.records, rows, staged.dead_letters)
        budget = options.time_budget
        if budget is not None and time.monotonic() - started >= budget.total_seconds():
            complete = not decide(context, options).ranges
            if not complete:
                log.info("The time budget of %s is used up; the next run loads the remaining records", budget)
            return replace(result, complete=complete)
