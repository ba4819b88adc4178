"""Plan the range, stage it on Spark, commit it in one transaction.

Plain functions: Airflow's operators, the command line, scripts and notebooks call the same ones.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets import bounds, identity, ledger, planning, staged
from airflow_kafka_offsets.attempt import Attempt, LoadResult, OnCommit
from airflow_kafka_offsets.cleanup import clean_up
from airflow_kafka_offsets.exceptions import (
    DataLossError,
    ForeignBatchError,
    RewoundError,
)
from airflow_kafka_offsets.holding import claimed
from airflow_kafka_offsets.instants import instant
from airflow_kafka_offsets.kafka import Cluster
from airflow_kafka_offsets.ledger import Batch, Claim, ReplayClaim, Tables, TaskRun
from airflow_kafka_offsets.listing import listed
from airflow_kafka_offsets.metrics import Commit
from airflow_kafka_offsets.mirror import mirror_after_commit
from airflow_kafka_offsets.offsets import Gap, TopicPartition
from airflow_kafka_offsets.pipeline import LoadOptions, Pipeline
from airflow_kafka_offsets.sinks.staged_rows import StagedRows
from airflow_kafka_offsets.spark.dead_letters import dead_letters, too_many
from airflow_kafka_offsets.staged import Launcher, Staged

log = logging.getLogger(__name__)

EXPIRED = "its records expired before they were read (on_data_loss='skip'); planned anew without them"
"""Why a batch is given up that was planned in time."""


class Planned(NamedTuple):
    """The batch to do next, and its files where an earlier try has staged it."""

    batch: Batch
    work: Staged | None = None


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
    """Load everything up to the log ends of this moment, or to the bound in time, in as many batches as it takes.

    Safe to run again at any time, and from two places at once: every offset is loaded exactly once.

    :param options: where the load begins, how far it goes, and how; None is `LoadOptions()`
    :param kafka_config: librdkafka configuration
    :param engine: the database of the target and the positions
    :param launcher: how Spark is started, for example `SessionLauncher(spark)`
    :param run: who loads; the tries of one task instance share the target that its first try captured
    :param on_commit: is told of every batch that was committed; where it raises, that is logged, and the load goes on
    :raises KafkaOffsetsError: see `exceptions`; `retriable` says whether loading again can help
    """
    options = options or LoadOptions()
    columns = pipeline.check()
    options.check()
    launcher.check(pipeline.staging_dir)
    run = run or TaskRun.of_this_process()
    cluster = Cluster(kafka_config, isolation_level=pipeline.isolation_level)
    cluster_id = cluster.cluster_id()
    with ledger.outages_told(f"Group {pipeline.group_id!r} was not loaded to the end"):
        ledger.create_missing(engine, pipeline.tables)
        target = pipeline.sink.prepare(engine, None if pipeline.transform else columns)
        clean_up(engine, pipeline.tables, pipeline.staging_dir, older_than=pipeline.staging_retention)
        with claimed(pipeline, options, engine, run, cluster_id) as claim:
            return _batch_by_batch(
                Attempt(
                    pipeline=pipeline,
                    kafka_config=kafka_config,
                    cluster=cluster,
                    engine=engine,
                    launcher=launcher,
                    claim=claim,
                    columns=columns,
                    target=target,
                    fingerprint=staged.fingerprint(pipeline, columns),
                    on_commit=on_commit,
                ),
                options,
            )


def _batch_by_batch(attempt: Attempt, options: LoadOptions) -> LoadResult:
    budget, begun = options.time_budget, time.monotonic()
    result = LoadResult()
    while True:
        began = time.monotonic()
        planned = plan(attempt, options)
        if planned is None:
            if not result.batches:
                # Positions that were stored without a batch, or that an earlier load could not mirror.
                mirror_after_commit(attempt.cluster, options.mirror_to, attempt.engine, attempt.pipeline)
            return result
        try:
            work = planned.work or stage(attempt, planned.batch)
        except DataLossError:
            if not _given_up_as_expired(attempt, options, planned.batch):
                raise
            continue
        rows = commit(attempt, planned.batch, work, began)
        mirror_after_commit(attempt.cluster, options.mirror_to, attempt.engine, attempt.pipeline)
        result += LoadResult((planned.batch.batch_id,), work.records, rows, work.dead_letters)
        if budget is not None and time.monotonic() - begun >= budget.total_seconds():
            complete = not decide(attempt, options).ranges
            if not complete:
                log.info("The time budget of %s is spent: what is left is loaded by the next run", budget)
            return replace(result, complete=complete)


def plan(attempt: Attempt, options: LoadOptions) -> Planned | None:
    """The batch to do next: the open one, whoever planned it, else a new one, written ahead; None where nothing is new.

    :raises ForeignBatchError: the group's batches are those of another load
    :raises DoubleLoadError: a replay has appended records to the table that the group would load into it again
    """
    pipeline, claim = attempt.pipeline, attempt.claim
    batch = ledger.open_batch(attempt.engine, pipeline.tables, claim.group_id)
    planned = _resumed(attempt, options, batch) if batch is not None else None
    if planned is not None:
        return planned
    ledger.keep_to_table(attempt.engine, pipeline.tables, claim, pipeline.topics, pipeline.sink.name)
    generation = ledger.generation(attempt.engine, pipeline.tables, claim.group_id)
    decided = decide(attempt, options)
    log_gaps(decided.gaps)
    if not decided.ranges and not decided.initial:
        log.info("Nothing to load for group %r in %s", pipeline.group_id, ", ".join(pipeline.topics))
        return None
    try:
        batch = ledger.record_plan(
            attempt.engine,
            pipeline.tables,
            claim,
            decided,
            attempt.recipe,
            generation,
            upsert=bool(pipeline.sink.upsert_key),
        )
    except RewoundError as rewound:
        log.info("%s", rewound)
        return plan(attempt, options)
    if batch is None:
        log.info("Nothing to load yet for group %r; it begins at %s", pipeline.group_id, begun(decided))
        return None
    log.info(
        "Planned batch %d of group %r: %s offsets in %d partitions: %s",
        batch.batch_id,
        batch.group_id,
        f"{batch.offsets:,}",
        len(batch.ranges),
        shown(batch),
    )
    return Planned(batch)


def decide(attempt: Attempt, options: LoadOptions) -> planning.Plan:
    """What a new batch of this task instance would load, now; nothing is written."""
    pipeline = attempt.pipeline
    return dry_run(
        pipeline.group_id,
        pipeline.topics,
        options,
        engine=attempt.engine,
        tables=pipeline.tables,
        cluster=attempt.cluster,
        targets=ledger.captured_targets(attempt.engine, pipeline.tables, attempt.claim),
    )


def dry_run(
    group_id: str,
    topics: Sequence[str],
    options: LoadOptions,
    *,
    engine: Engine,
    tables: Tables,
    cluster: Cluster,
    targets: Mapping[TopicPartition, int] | None = None,
    given_up: Batch | None = None,
) -> planning.Plan:
    """What a new batch would load, now; nothing is written, and no open batch is looked at.

    :param targets: how far a task instance goes that has begun; None is for one that begins now
    :param given_up: the open batch, where it would be abandoned first
    :raises PlanningError: where the stored positions and the logs do not fit together
    """
    # Positions first, then the ends of the logs: the other way round, lag could come out negative.
    positions = ledger.positions(engine, tables, group_id)
    if given_up is not None:
        positions |= ledger.positions_begun(given_up, positions)
    logs = cluster.logs(topics)
    if targets is None and options.until is not None:
        targets = bounds.targets_until(cluster, instant("until", options.until), logs)
    start = bounds.first_offsets(cluster, options.start, lambda: ledger.now(engine), logs, positions)
    return planning.decide(
        positions,
        bounds.reaching(cluster, logs, positions, start),
        start=start,
        on_data_loss=options.on_data_loss,
        max_records=options.max_records,
        max_bytes=options.max_bytes,
        bytes_per_offset=ledger.bytes_per_offset(engine, tables, group_id) if options.max_bytes else None,
        targets=targets,
    )


def stage(attempt: Attempt, batch: Batch) -> Staged:
    """Have Spark make files of the batch's rows."""
    pipeline, engine, claim = attempt.pipeline, attempt.engine, attempt.claim
    with engine.connect() as conn:
        # The commit asks again; here it spares Spark's time.
        pipeline.sink.refuse_unknown_rows(conn, pipeline.tables.offset_batches, batch.batch_id)
    directory = staged.make_directory(batch, pipeline.staging_dir)
    job = staged.make_job(
        pipeline, attempt.kafka_config, batch, attempt.columns, attempt.target, directory, attempt.fingerprint
    )
    ledger.begin_staging(engine, pipeline.tables, claim, batch, directory.uri, attempt.recipe)
    if batch.staging_uri is not None:
        # An attempt that was killed while it staged: its files are of no use to anybody.
        staged.remove_attempt(batch.batch_id, batch.staging_uri, pipeline.staging_dir)
    work = staged.launch(attempt.launcher, job, batch, directory)
    # Records of a topic that was made anew while Spark read would go under the old topic's name.
    identity.check_ranges(batch.ranges, attempt.cluster.logs(pipeline.topics))
    ledger.mark_staged(engine, pipeline.tables, claim, batch, work.records)
    return work


def commit(attempt: Attempt, batch: Batch, work: Staged, began: float) -> int:
    """Rows, dead letters and the positions of a load in one transaction; then the staged files are removed.

    :param began: when this attempt took the batch up, by the monotonic clock
    :return: the number of rows
    :raises DeadLetterError: more records are bad than the pipeline allows
    """
    pipeline, engine, claim = attempt.pipeline, attempt.engine, attempt.claim
    _check_dead_letters(pipeline, batch, work)
    begun = time.monotonic()
    rows = StagedRows(work.directory, work.manifest)
    schema = rows.schema()
    if schema is not None:
        pipeline.sink.prepare(engine, schema)

    def write(conn: Connection) -> int:
        pipeline.sink.refuse_unknown_rows(conn, pipeline.tables.offset_batches, batch.batch_id)
        if isinstance(claim, ReplayClaim) and claim.replay.replace:
            ledger.replace_output(conn, pipeline.tables, batch.group_id, batch.batch_id, pipeline.sink)
        ledger.write_dead_letters(conn, pipeline.tables, batch, dead_letters(work.directory, work.manifest))
        return pipeline.sink.write(conn, rows)

    count = ledger.commit(engine, pipeline.tables, claim, batch, work.reads, write)
    log.info(
        "Committed batch %d of group %r: %s records, %s rows into %s%s in %.1f s; %s: %s",
        batch.batch_id,
        batch.group_id,
        f"{work.records:,}",
        f"{count:,}",
        pipeline.sink.name,
        f", {work.dead_letters:,} dead letters" if work.dead_letters else "",
        time.monotonic() - begun,
        "positions" if isinstance(claim, Claim) else "replayed",
        listed(f"{one.topic_partition} {one.end}" for one in batch.ranges)
        if isinstance(claim, Claim)
        else shown(batch),
    )
    staged.remove_attempt(batch.batch_id, work.directory.uri, pipeline.staging_dir)
    if attempt.on_commit is not None:
        _tell(attempt.on_commit, attempt, batch, work, count, began)
    return count


def _tell(on_commit: OnCommit, attempt: Attempt, batch: Batch, work: Staged, rows: int, began: float) -> None:
    records: Counter[str] = Counter()
    dead_letters: Counter[str] = Counter()
    for tp, read in work.reads.items():
        records[tp.topic] += read.records or 0
        dead_letters[tp.topic] += read.dead_letters
    kind = "load" if isinstance(attempt.claim, Claim) else "replay"
    took = timedelta(seconds=time.monotonic() - began)
    try:
        on_commit(Commit(batch.group_id, kind, records, dead_letters, rows, took))
    except Exception:
        # What is committed is committed.
        log.exception("Telling of batch %d of group %r failed", batch.batch_id, batch.group_id)


def _resumed(attempt: Attempt, options: LoadOptions, batch: Batch) -> Planned | None:
    """The group's open batch, where it is this pipeline's to finish and can still be finished as it was planned.

    :return: None where its records are gone, the user chose to skip such, and the batch was given up for that
    :raises ForeignBatchError: it loads other topics, or into another table
    :raises PlanningError: the log is not what it was planned from
    """
    pipeline = attempt.pipeline
    topics = {one.topic for one in batch.ranges}
    is_mine = batch.target_table in ledger.same_table_names(attempt.engine, pipeline.sink.name)
    if not topics <= set(pipeline.topics) or not is_mine:
        raise ForeignBatchError(
            f"Group {batch.group_id!r} has the open batch {batch.batch_id}, of topics {', '.join(sorted(topics))} into table "
            f"{batch.target_table!r}; this load is of {', '.join(pipeline.topics)} into {pipeline.sink.name!r}. Run the load "
            "that began it to its end, and give every load a group_id of its own; or, where that load is no more, give the batch up: "
            f"airflow kafka-offsets abandon {batch.group_id} --batch {batch.batch_id} --conn-id CONN_ID."
        )
    if batch.fingerprint != attempt.fingerprint:
        log.warning(
            "Batch %d was planned by a try with other columns, another transform, or other code of it: those of this try "
            "make its rows",
            batch.batch_id,
        )
    work = staged.find(batch, attempt.fingerprint)
    if work is None and _given_up_as_expired(attempt, options, batch):
        return None
    told = "committing its files" if work is not None else "finishing it first"
    log.info("Batch %d of group %r is %s by an earlier try: %s", batch.batch_id, batch.group_id, batch.state, told)
    return Planned(batch, work)


def _given_up_as_expired(attempt: Attempt, options: LoadOptions, batch: Batch) -> bool:
    """Abandon a batch whose records are gone, where the user chose to skip such.

    :raises PlanningError: they are gone, and the user did not; or the log is another one
    """
    pipeline = attempt.pipeline
    if planning.check_open(batch.ranges, attempt.cluster.logs(pipeline.topics), options.on_data_loss):
        return False
    log.warning("Batch %d of group %r is abandoned: %s", batch.batch_id, batch.group_id, EXPIRED)
    ledger.abandon(attempt.engine, pipeline.tables, attempt.claim, batch, EXPIRED)
    if batch.staging_uri is not None:
        staged.remove_attempt(batch.batch_id, batch.staging_uri, pipeline.staging_dir)
    return True


def _check_dead_letters(pipeline: Pipeline, batch: Batch, work: Staged) -> None:
    most = pipeline.max_dead_letters
    if most is None or work.dead_letters <= most:
        return
    first = next(dead_letters(work.directory, work.manifest)).slice(0, 1).to_pylist()[0]
    told = f"{work.dead_letters:,} of {work.records:,} records of batch {batch.batch_id} cannot be decoded"
    raise too_many(told, most, first["topic"], first["partition"], first["offset"], first["error"])


def shown(batch: Batch) -> str:
    """The ranges of a batch, for the log."""
    return listed(batch.ranges)


def begun(decided: planning.Plan) -> str:
    """The positions that are stored without loading anything, for the log."""
    return listed(f"{one.topic_partition} {one.end}" for one in decided.initial)


def log_gaps(gaps: Iterable[Gap]) -> None:
    """What is not loaded is told before anything is."""
    for gap in gaps:
        log.warning(
            "%s[%d]: offsets %d..%d are %s: %s", gap.topic, gap.partition, gap.start, gap.end, gap.cause, gap.decision
        )
