"""Plan the range, stage it on Spark, commit it in one transaction.

Plain functions: Airflow's operators, the command line, scripts and notebooks call the same ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from airflow_kafka_offsets import ledger, planning, staged
from airflow_kafka_offsets.exceptions import ForeignBatchError, GroupBusyError, LedgerError
from airflow_kafka_offsets.kafka import Cluster
from airflow_kafka_offsets.ledger import Batch, Claim, TaskRun
from airflow_kafka_offsets.pipeline import Pipeline
from airflow_kafka_offsets.sinks.staged_rows import StagedRows
from airflow_kafka_offsets.spark.job import TargetColumns
from airflow_kafka_offsets.spark.staging import StagingDirectory
from airflow_kafka_offsets.staged import Launcher, Staged

log = logging.getLogger(__name__)

_BUSY_POLL_SECONDS = 1.0
_BUSY_LOG_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load did.

    :param batches: the ids of the batches that it committed, in order; another run's open batch may be the first
    :param records: how many records were read
    :param rows: how many rows were written
    """

    batches: tuple[int, ...] = ()
    records: int = 0
    rows: int = 0


def load(
    pipeline: Pipeline,
    *,
    kafka_config: Mapping[str, Any],
    engine: Engine,
    launcher: Launcher,
    run: TaskRun | None = None,
) -> LoadResult:
    """Load everything up to the log ends of this moment, in as many batches as it takes.

    Safe to run again at any time, and from two places at once: every offset is loaded exactly once.

    :param kafka_config: librdkafka configuration
    :param engine: the database of the target and the positions
    :param launcher: how Spark is started, for example `SessionLauncher(spark)`
    :param run: who loads; the tries of one task instance share the target that its first try captured
    """
    columns = pipeline.check()
    launcher.check(pipeline.staging_dir)
    run = run or TaskRun.of_this_process()
    cluster = Cluster(kafka_config, isolation_level=pipeline.isolation_level)
    cluster_id = cluster.cluster_id()
    ledger.init(engine, pipeline.tables)
    target = pipeline.sink.prepare(engine, None if pipeline.transform else columns)
    result = LoadResult()
    with _claimed(pipeline, engine, run, cluster_id) as claim:
        while True:
            batch = plan(pipeline, cluster, engine, claim, columns)
            if batch is None:
                break
            work = stage(pipeline, kafka_config, cluster, engine, claim, launcher, batch, columns, target)
            rows = commit(pipeline, engine, claim, batch, work)
            result = LoadResult((*result.batches, batch.batch_id), result.records + work.records, result.rows + rows)
    return result


def plan(pipeline: Pipeline, cluster: Cluster, engine: Engine, claim: Claim, columns: pa.Schema) -> Batch | None:
    """The batch to do next: the open one, whoever planned it, else a new one, written ahead; None where nothing is new."""
    batch = ledger.open_batch(engine, pipeline.tables, claim.group_id)
    if batch is not None and _can_go_on(pipeline, cluster, engine, claim, batch, columns):
        log.info("Batch %d of group %r is %s: finishing it first", batch.batch_id, batch.group_id, batch.state)
        return batch
    # Positions first, then the ends of the logs: the other way round, lag could come out negative.
    positions = ledger.positions(engine, pipeline.tables, claim.group_id)
    targets = ledger.captured_targets(engine, pipeline.tables, claim)
    decided = planning.decide(
        positions,
        cluster.logs(pipeline.topics),
        start=pipeline.start,
        on_data_loss=pipeline.on_data_loss,
        max_records=pipeline.max_records,
        targets=targets,
    )
    for gap in decided.gaps:
        log.warning(
            "%s[%d]: offsets %d..%d are %s: %s", gap.topic, gap.partition, gap.start, gap.end, gap.cause, gap.decision
        )
    if not decided.ranges and not decided.initial:
        told = "Nothing new" if targets is None else "Nothing left up to the ends that this run began with"
        log.info("%s for group %r in %s", told, pipeline.group_id, ", ".join(pipeline.topics))
        return None
    batch = ledger.record_plan(engine, pipeline.tables, claim, decided, target_table=pipeline.sink.name)
    if batch is not None:
        log.info(
            "Planned batch %d of group %r: %s offsets in %d partitions: %s",
            batch.batch_id,
            batch.group_id,
            f"{batch.offsets:,}",
            len(batch.ranges),
            _shown(batch),
        )
    return batch


def _can_go_on(
    pipeline: Pipeline, cluster: Cluster, engine: Engine, claim: Claim, batch: Batch, columns: pa.Schema
) -> bool:
    """Whether the open batch is this pipeline's to finish, and can still be finished as it was planned.

    :return: False where its records are gone, the user chose to skip such, and the batch was given up for that
    :raises ForeignBatchError: it loads other topics, or into another table
    :raises PlanningError: the log is not what it was planned from
    """
    topics = {one.topic for one in batch.ranges}
    if not topics <= set(pipeline.topics) or batch.target_table != pipeline.sink.name:
        raise ForeignBatchError(
            f"Group {batch.group_id!r} has the open batch {batch.batch_id}, of topics {', '.join(sorted(topics))} into table "
            f"{batch.target_table!r}; this load is of {', '.join(pipeline.topics)} into {pipeline.sink.name!r}. Run the load "
            "that began it to its end, and give every load a group_id of its own."
        )
    if staged.find(batch, staged.fingerprint(pipeline, columns)) is not None:
        return True
    if planning.check_open(batch.ranges, cluster.logs(pipeline.topics), pipeline.on_data_loss):
        return True
    reason = "its records expired before they were read (on_data_loss='skip'); planned anew without them"
    log.warning("Batch %d of group %r is abandoned: %s", batch.batch_id, batch.group_id, reason)
    ledger.abandon(engine, pipeline.tables, claim, batch, reason)
    return False


def stage(
    pipeline: Pipeline,
    kafka_config: Mapping[str, Any],
    cluster: Cluster,
    engine: Engine,
    claim: Claim,
    launcher: Launcher,
    batch: Batch,
    columns: pa.Schema,
    target: TargetColumns,
) -> Staged:
    """The batch's rows as files: those of an earlier try where they are complete, else made by Spark now."""
    earlier = staged.find(batch, staged.fingerprint(pipeline, columns))
    if earlier is not None:
        log.info("Batch %d was staged by an earlier try: committing its files", batch.batch_id)
        return earlier
    directory = staged.make_directory(batch, pipeline.staging_dir)
    job = staged.make_job(pipeline, kafka_config, batch, columns, target, directory)
    ledger.begin_staging(engine, pipeline.tables, claim, batch, directory.uri)
    if batch.staging_uri is not None:
        # An attempt that was killed while it staged: its files are of no use to anybody.
        staged.remove(StagingDirectory(batch.staging_uri))
    with ledger.Heartbeat(engine, pipeline.tables, claim, pipeline.lease):
        work = staged.launch(launcher, job, batch, directory)
    # Records of a topic that was made anew while Spark read would go under the old topic's name.
    planning.check_identity(batch.ranges, cluster.logs(pipeline.topics))
    ledger.mark_staged(engine, pipeline.tables, claim, batch, work.records)
    return work


def commit(pipeline: Pipeline, engine: Engine, claim: Claim, batch: Batch, work: Staged) -> int:
    """Rows and positions in one transaction; then the staged files are removed.

    :return: the number of rows
    """
    begun = time.monotonic()
    rows = StagedRows(work.directory, work.manifest)
    schema = rows.schema()
    if schema is not None:
        pipeline.sink.prepare(engine, schema)
    count = ledger.commit(
        engine,
        pipeline.tables,
        claim,
        batch,
        work.reads,
        lambda conn: pipeline.sink.write(conn, rows),
        lease=pipeline.lease,
    )
    log.info(
        "Committed batch %d of group %r: %s records, %s rows into %s in %.1f s; positions: %s",
        batch.batch_id,
        batch.group_id,
        f"{work.records:,}",
        f"{count:,}",
        pipeline.sink.name,
        time.monotonic() - begun,
        ", ".join(f"{one.topic_partition} {one.end}" for one in batch.ranges[:10]),
    )
    staged.remove(work.directory)
    return count


@contextmanager
def _claimed(pipeline: Pipeline, engine: Engine, run: TaskRun, cluster_id: str) -> Iterator[Claim]:
    next_log = time.monotonic()
    while True:
        try:
            claim = ledger.claim(
                engine, pipeline.tables, pipeline.group_id, run, cluster_id=cluster_id, lease=pipeline.lease
            )
            break
        except GroupBusyError as busy:
            if pipeline.on_busy == "fail":
                raise
            if time.monotonic() >= next_log:
                log.info("%s. Waiting for it", busy)
                next_log = time.monotonic() + _BUSY_LOG_SECONDS
            time.sleep(_BUSY_POLL_SECONDS)
    try:
        yield claim
    finally:
        try:
            ledger.release(engine, pipeline.tables, claim)
        except (SQLAlchemyError, LedgerError) as error:
            # The lease ends by itself; an error here must not hide the one that ended the block.
            log.warning("The lease of group %r could not be released and ends by itself: %s", claim.group_id, error)


def _shown(batch: Batch) -> str:
    shown = ", ".join(str(one) for one in batch.ranges[:10])
    return shown if len(batch.ranges) <= 10 else f"{shown} and {len(batch.ranges) - 10} more"
