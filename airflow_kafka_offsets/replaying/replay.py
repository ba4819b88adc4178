"""Replay a bounded range of topics: plan, stage and commit, without moving positions and without claiming the group."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.options import Limits, check_rendered
from airflow_kafka_offsets.core.planning import OnDataLoss, most_offsets
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.database.errors import translated_errors
from airflow_kafka_offsets.exceptions import ConfigurationError, DataLossError
from airflow_kafka_offsets.formats.record_format import Connections
from airflow_kafka_offsets.kafka.start_offsets import TimeSearch
from airflow_kafka_offsets.ledger.batch_notes import schemas_of_group
from airflow_kafka_offsets.ledger.batch_rows import Batch, TaskRun
from airflow_kafka_offsets.ledger.batches import bytes_per_offset
from airflow_kafka_offsets.ledger.dead_letter_batches import settle_dead_letter_batches
from airflow_kafka_offsets.ledger.group_table import loads_into
from airflow_kafka_offsets.ledger.positions import stored_positions
from airflow_kafka_offsets.ledger.publications import run_pending_cleanups
from airflow_kafka_offsets.ledger.replaced_output import offsets_to_replace
from airflow_kafka_offsets.loading.after_commit import send_dead_letters, warn_of_dead_letters
from airflow_kafka_offsets.loading.commit import stage_and_commit
from airflow_kafka_offsets.loading.context import LoadContext, LoadResult, OnCommit
from airflow_kafka_offsets.loading.load import prefer_fenced_error
from airflow_kafka_offsets.loading.parameters import PIPELINE_RULES
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.loading.plan import (
    EXPIRED,
    MOST_EXPIRED,
    expired_too_often,
    find_files,
    is_published,
    log_gaps,
    log_planned,
)
from airflow_kafka_offsets.loading.staging_area import check_staging, clean_up
from airflow_kafka_offsets.replaying.bounds import (
    Bounds,
    BoundsGiven,
    check_bounds,
    describe_bounds,
    fit_to_logs,
    plan_parts,
    requested_ranges,
    resolve_bounds,
    taken_span,
)
from airflow_kafka_offsets.replaying.replay_batches import (
    Replay,
    ReplayBatch,
    ReplayClaim,
    ReplayedBatch,
    batch_of,
    unfinished_owner,
)
from airflow_kafka_offsets.spark.job import Launcher

log = logging.getLogger(__name__)

# The databases whose tables keep the milliseconds of timestamps, the state tables included.
_EXACT_TIMES = ("postgresql", "sqlite", "mysql", "mariadb")


def replay(
    pipeline: Pipeline,
    bounds: BoundsGiven,
    *,
    kafka_config: Mapping[str, Any],
    engine: Engine,
    launcher: Launcher,
    limits: Limits = Limits(),
    on_data_loss: OnDataLoss = "fail",
    replace: bool = False,
    reason: str | None = None,
    who: str | None = None,
    run: TaskRun | None = None,
    on_commit: OnCommit | None = None,
    connections: Connections | None = None,
) -> LoadResult:
    """Load a range of offsets in batches, as `limits` says; the positions of the group do not move.

    If the registry of a format has lost a schema, that of an earlier batch of the group is used.

    A running load of the group continues. A replay appends its rows to a table other than the group's. Into the group's
    own table, it needs `replace` or an `upsert_key`, and offsets before the stored positions.

    The tries of a task instance share the batches that its first try planned, and do not repeat committed ones. Two
    runs with the same bounds append the rows twice.

    :param pipeline: of the load whose records are replayed, with its own sink or another
    :param bounds: `OffsetBounds`, `TimeBounds`, `BatchBounds`, or a mapping such as `{"orders": {0: (10, 20)}}`
    :param kafka_config: librdkafka configuration
    :param engine: the database of the target and the history
    :param launcher: how Spark is started, for example `SessionLauncher(spark)`; closed at the end
    :param limits: `max_records` is the maximum number of offsets in a batch, by default as for a load; one batch with
        `replace`, so that nobody sees half of it; a replay has no other limits
    :param on_data_loss: fail, or skip records of the range that are gone, and record the gap; with `replace`, also
        whether output of records that compaction removed is deleted
    :param replace: remove the rows and dead letters that the group's batches wrote for these offsets, in the
        transaction that writes the new ones
    :param reason: a note for the history
    :param who: the author, for the history
    :param run: the task instance or process that replays. Without one, the same replay of another process is finished
        if it may have been published; any other one is a new replay
    :param on_commit: called after each commit
    :param connections: as for `load`
    :return: what all tries of the task instance have replayed
    :raises DoubleLoadError: records would be duplicated
    :raises DataLossError: records of the range are gone, or of the output to replace; not with `on_data_loss="skip"`
    :raises KafkaOffsetsError: see `exceptions`; `retriable` says whether running it again can help
    """
    not_finished = f"The replay for group {pipeline.group_id!r} was not finished"
    with translated_errors(not_finished):
        pipeline = pipeline.prepared(connections or {}, engine)
    columns = pipeline.check()
    check_rendered({"limits": limits, "on_data_loss": on_data_loss, "replace": replace}, PIPELINE_RULES)
    bounds = _check(pipeline, bounds, limits, engine, replace=replace)
    scenario = describe_bounds(bounds, pipeline.topics)
    with translated_errors(not_finished), closing(launcher):
        # It may open a session, which is closed whatever comes after it.
        launcher.check(pipeline.staging.dir)
        check_staging(pipeline.staging.dir)
        context = _prepare(
            pipeline,
            columns,
            kafka_config=kafka_config,
            engine=engine,
            launcher=launcher,
            on_commit=on_commit,
            replace=replace,
            skips_lost=on_data_loss == "skip",
            connections=connections,
        )
        if replace:
            context.table.check_removal()
            scenario = f"{scenario}, replacing what was loaded"
        if run is None:
            run = unfinished_owner(context.ledger, pipeline.group_id, scenario, pipeline.sink.name)
        request = Replay(
            group_id=pipeline.group_id,
            owner=run or TaskRun.of_this_process(),
            scenario=scenario,
            recipe=context.recipe,
            span=taken_span(bounds),
            replace=replace,
            upsert=pipeline.sink.replaces_rows,
            reason=reason,
            who=who,
        )
        result = _run(context, request, bounds, limits, on_data_loss)
        warn_of_dead_letters(context, result)
        return result


def _run(context: LoadContext, request: Replay, bounds: Bounds, limits: Limits, on_data_loss: OnDataLoss) -> LoadResult:
    """Take over the batches of an earlier try, or plan them, and load those that are open."""
    ledger, pipeline = context.ledger, context.pipeline
    batches = request.record(ledger, cluster_id=context.cluster_id)
    if request.replace:
        settle_dead_letter_batches(ledger, context.table, pipeline.group_id)
    run_pending_cleanups(ledger, context.table, pipeline.group_id)
    clean_up(ledger, pipeline)
    result = LoadResult()
    for batch in batches or _plan(context, bounds, request, limits, on_data_loss):
        if isinstance(batch, ReplayClaim):
            result += _stage_and_commit(context, batch, on_data_loss)
        else:
            result += _result_of_earlier_try(batch, context.recipe.fingerprint)
        send_dead_letters(context)
    return result


def _prepare(pipeline: Pipeline, columns: pa.Schema, **options: Any) -> LoadContext:
    """Return the context of the replay, with the schemas that batches of the group have read; see
    `LoadContext.prepare`.
    """
    context = LoadContext.prepare(pipeline, columns, **options)
    with context.ledger.connect() as conn:
        stored = schemas_of_group(conn, context.ledger.tables, pipeline.group_id)
    return dataclasses.replace(context, pipeline=pipeline.with_schemas(stored))


def _check(pipeline: Pipeline, bounds: BoundsGiven, limits: Limits, engine: Engine, *, replace: bool) -> Bounds:
    """Check the limits and bounds of a replay, and return the bounds."""
    if limits != Limits(max_records=limits.max_records):
        raise ConfigurationError(f"A replay has no limits but max_records; got {limits}")
    bounds = check_bounds(bounds, pipeline.topics)
    if taken_span(bounds) is not None and replace and engine.dialect.name not in _EXACT_TIMES:
        raise ConfigurationError(
            "To replace rows of a span of time, their timestamps need milliseconds, which tables on "
            f"{engine.dialect.name} may not store: with all_records, replace=True works on "
            f"{' and '.join(_EXACT_TIMES)}"
        )
    return bounds


def _plan(
    context: LoadContext, bounds: Bounds, request: Replay, limits: Limits, on_data_loss: OnDataLoss
) -> list[ReplayBatch]:
    """Plan all batches of a replay, and write them to the state tables."""
    pipeline, ledger = context.pipeline, context.ledger
    planned_batch = partial(batch_of, ledger, pipeline.group_id)
    search = TimeSearch(context.cluster, pipeline.group_id)
    positions = None
    with ledger.connect() as conn:
        if loads_into(conn, ledger.tables, pipeline.group_id, request.target):
            stored = stored_positions(conn, ledger.tables, pipeline.group_id)
            positions = {tp: position.offset for tp, position in stored.items()}
    ranges, logs = resolve_bounds(bounds, pipeline.topics, search, planned_batch, positions)
    if not ranges:
        log.info("Nothing to replay for group %r: no offsets within %s", pipeline.group_id, request.scenario)
        return []
    # Where rows have no index on their offsets, each batch that replaces some searches the whole table.
    if not request.replace:
        limits = limits.of_batch(len(ranges), appends_files=pipeline.sink.appends_files)
    sizes = bytes_per_offset(ledger, pipeline.group_id)
    most = most_offsets(ranges, limits.max_records, limits.max_bytes, sizes)
    plans = plan_parts(ranges, logs, most, on_data_loss)
    batches = request.record(ledger, plans, cluster_id=context.cluster_id)
    for planned in batches:
        log_gaps(planned.batch.gaps)
        log_planned(planned.batch, "replay")
    return batches


def _stage_and_commit(
    context: LoadContext, claim: ReplayClaim, on_data_loss: OnDataLoss, expired: int = 0
) -> LoadResult:
    """Stage and commit an open batch of this or an earlier try.

    :param expired: how many batches of the same offsets were abandoned before
    """
    began, batch = time.monotonic(), claim.batch
    if claim.replay.replace and not batch.is_publishing:
        _check_replaced(context, batch)
    with prefer_fenced_error(claim):
        staged = find_files(context, claim, batch, on_data_loss)
        again = _plan_again(context, claim, on_data_loss) if staged is None else None
        if again is None:
            try:
                return stage_and_commit(context, claim, batch, staged, began)
            except DataLossError as error:
                again = _plan_again(context, claim, on_data_loss)
                if again is None:
                    raise
                if expired + 1 == MOST_EXPIRED:
                    raise expired_too_often(batch, error) from error
    return _stage_and_commit(context, again, on_data_loss, expired + 1)


def _check_replaced(context: LoadContext, batch: Batch) -> None:
    """Check that the target can remove the rows that a batch replaces, before these are read again."""
    with context.ledger.connect() as conn:
        replaced = offsets_to_replace(conn, context.ledger.tables, batch, context.table.sink.name)
        if replaced is not None:
            context.table.check_replaced(conn, replaced)


def _plan_again(context: LoadContext, claim: ReplayClaim, on_data_loss: OnDataLoss) -> ReplayClaim | None:
    """Plan another batch instead of an open one that has expired records, if the user chose to skip these.

    :return: None where the log has all records, or the target has the rows
    :raises PlanningError: the log is another one, or records are gone and the user did not choose to skip
    :raises DoubleLoadError: records would be duplicated by now
    """
    batch = claim.batch
    logs = context.cluster.logs_of_ranges(batch.ranges)
    plan = fit_to_logs(batch.ranges, logs, on_data_loss)
    # The commit checks this again; here it saves a Spark application.
    with claim.ledger.connect() as conn:
        claim.refuse_double(conn)
    # It may have been published since it was read: then it is not abandoned.
    if not plan.gaps or is_published(context, claim.kind, batch_of(claim.ledger, claim.group_id, batch.batch_id)):
        return None
    plan = fit_to_logs(requested_ranges(batch), logs, on_data_loss)
    log.warning("Batch %d, a replay for group %r, is abandoned: %s", batch.batch_id, batch.group_id, EXPIRED)
    again = claim.plan_again(plan, EXPIRED)
    log_gaps(again.batch.gaps)
    return again


def _result_of_earlier_try(committed: ReplayedBatch, fingerprint: str) -> LoadResult:
    batch = committed.batch
    log.info("Nothing to do for %s: already replayed by batch %d", first_few(batch.ranges), batch.batch_id)
    if batch.fingerprint != fingerprint:
        log.warning(
            "Batch %d was replayed with other columns, another transform, or other code of the transform; a new run "
            "replays it with the current ones",
            batch.batch_id,
        )
    return committed.result
