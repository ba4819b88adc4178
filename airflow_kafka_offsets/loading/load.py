"""Plan a range, stage it on Spark, commit it in one transaction; again, until everything is loaded.

Plain functions: Airflow's operators, the command line, scripts and notebooks call the same ones. A load holds its group
from its beginning to its end. Each step is in a separate module: `plan`, `stage`, `commit`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from airflow_kafka_offsets.database.errors import database_message, translated_errors
from airflow_kafka_offsets.exceptions import CommitUnknownError, DataLossError, FencedError, GroupBusyError, LedgerError
from airflow_kafka_offsets.formats.record_format import Connections
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.batches import open_batch
from airflow_kafka_offsets.ledger.claims import Claim, GroupClaim, claim_group, heartbeat
from airflow_kafka_offsets.ledger.compaction import compact_history
from airflow_kafka_offsets.ledger.publications import remove_leftovers
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.loading.after_commit import mirror_after_commit, send_dead_letters, warn_of_dead_letters
from airflow_kafka_offsets.loading.commit import stage_and_commit
from airflow_kafka_offsets.loading.context import LoadContext, LoadResult, OnCommit
from airflow_kafka_offsets.loading.pipeline import LoadOptions, Pipeline
from airflow_kafka_offsets.loading.plan import (
    MOST_EXPIRED,
    abandon_if_expired,
    decide_for_claim,
    expired_too_often,
    plan,
)
from airflow_kafka_offsets.loading.prefetch import Prefetcher
from airflow_kafka_offsets.loading.staging_area import check_staging, clean_up
from airflow_kafka_offsets.spark.job import Launcher

log = logging.getLogger(__name__)

_BUSY_POLL_SECONDS = 1.0

_BUSY_LOG_SECONDS = 60.0

# A batch whose records expired before they were read is followed by one of a fourth of its offsets.
_SMALLER = 4


def load(
    pipeline: Pipeline,
    options: LoadOptions | None = None,
    *,
    kafka_config: Mapping[str, Any],
    engine: Engine,
    launcher: Launcher,
    run: TaskRun | None = None,
    on_commit: OnCommit | None = None,
    connections: Connections | None = None,
) -> LoadResult:
    """Load all records up to the current end of the log, or up to `until`, in as many batches as it takes.

    Safe to run again at any time, also in two processes at once: every offset is loaded exactly once.

    :param pipeline: how records become rows, and where these are written
    :param options: where the load begins and ends, and what it does about other runs; None is `LoadOptions()`
    :param kafka_config: librdkafka configuration
    :param engine: the database of the target and the positions; sessions of Postgres have the settings of
        `database.session` from then on
    :param launcher: how Spark is started, for example `SessionLauncher(spark)`; closed at the end
    :param run: the task instance or process that loads; the tries of a task instance share the end offsets that its
        first try captured
    :param on_commit: called after each commit; an exception that it raises is logged, and the load continues
    :param connections: of the formats, such as that of a schema registry: `{"registry": {"url": "https://…"}}`
    :raises KafkaOffsetsError: see `exceptions`; `retriable` says whether loading again can help
    """
    options = options or LoadOptions()
    with translated_errors(f"Group {pipeline.group_id!r} was not loaded to the end"), closing(launcher):
        pipeline = pipeline.prepared(connections or {}, engine)
        columns = pipeline.check()
        options.check()
        launcher.check(pipeline.staging.dir)
        check_staging(pipeline.staging.dir)
        context = LoadContext.prepare(
            pipeline,
            columns,
            kafka_config=kafka_config,
            engine=engine,
            launcher=launcher,
            on_commit=on_commit,
            connections=connections,
        )
        clean_up(context.ledger, pipeline)
        remove_leftovers(context.ledger, context.table, pipeline.group_id, pipeline.staging.retention)
        run = run or TaskRun.of_this_process()
        with hold_group(context.ledger, pipeline.group_id, options, run, context.cluster_id) as claim:
            result = _load_batches(context, claim, options)
            _compact(claim, options)
        warn_of_dead_letters(context, result)
        return result


def _load_batches(context: LoadContext, claim: Claim, options: LoadOptions) -> LoadResult:
    started, budget = time.monotonic(), options.limits.time_budget

    def has_time() -> bool:
        return budget is None or time.monotonic() - started < budget.total_seconds()

    group = options.coordination.mirror_to
    mirror = partial(mirror_after_commit, context.cluster, group, context.ledger, context.pipeline)
    result = LoadResult()
    # An earlier run may have ended after its commit.
    send_dead_letters(context)
    expired = 0
    largest = 0
    most: int | None = None
    with Prefetcher(context, claim, options, has_time) as prefetcher:
        while True:
            batch_started = time.monotonic()
            staging = prefetcher.next
            if staging is not None:
                batch, staged, batch_started = staging.batch, None, staging.began
            elif (planned := plan(context, claim, prefetcher.options)) is not None:
                batch, staged = planned
            else:
                if not result.batches:
                    # Mirrors positions that were stored without a batch, or that an earlier load could not mirror.
                    mirror()
                return result
            try:
                if staging is not None:
                    staged = prefetcher.finish()
                result += stage_and_commit(context, claim, batch, staged, batch_started, prefetcher.prefetch)
            except DataLossError as error:
                if not abandon_if_expired(context, claim, options, batch):
                    raise
                expired += 1
                if expired == MOST_EXPIRED:
                    raise expired_too_often(batch, error) from error
                # The first records of a smaller batch are read sooner after they were planned.
                most, largest = max(batch.offsets // _SMALLER, 1), max(batch.offsets, largest)
            else:
                expired, most = 0, most * _SMALLER if most is not None and most * _SMALLER < largest else None
                send_dead_letters(context)
                mirror()
            prefetcher.options = options if most is None else _at_most(options, most)
            # What is prefetched is loaded, too: no run ends with an open batch for lack of time.
            if not has_time() and open_batch(context.ledger, claim.group_id) is None:
                complete = not decide_for_claim(context, claim, options).ranges
                if not complete:
                    log.info("The time budget of %s is used up; the next run loads the remaining records", budget)
                return replace(result, complete=complete)


def _compact(claim: Claim, options: LoadOptions) -> None:
    """Compact old history. An error is logged: what was loaded is committed, and the next load tries again."""
    retention = options.limits.history_retention
    if retention is None:
        return
    try:
        compact_history(claim, retention)
    except Exception as error:  # also of rows that another program wrote
        log.warning(
            "The history of group %r was not compacted; the next load does it: %s: %s",
            claim.group_id,
            type(error).__name__,
            database_message(error) if isinstance(error, DBAPIError) else error,
        )


def _at_most(options: LoadOptions, offsets: int) -> LoadOptions:
    """Return the options for batches of no more than a number of offsets."""
    most = min(offsets, options.limits.max_records or offsets)
    return replace(options, limits=replace(options.limits, max_records=most))


@contextmanager
def hold_group(
    ledger: Ledger, group_id: str, options: LoadOptions, run: TaskRun, cluster_id: str
) -> Iterator[GroupClaim]:
    """Claim a group, and renew the lease until the end of the block.

    Where another run holds the group, `on_busy` decides whether to wait.

    :raises GroupBusyError: another run holds the group, and `on_busy` is not "wait"
    :raises FencedError: a later attempt took over the group within the block, also if this caused another error
    """
    next_log = time.monotonic()
    while True:
        try:
            claim = claim_group(ledger, group_id, run, cluster_id=cluster_id, lease=options.coordination.lease)
            break
        except GroupBusyError as busy:
            if options.coordination.on_busy != "wait":
                raise
            if time.monotonic() >= next_log:
                log.info("%s. Waiting for it", busy)
                next_log = time.monotonic() + _BUSY_LOG_SECONDS
            time.sleep(_BUSY_POLL_SECONDS)
    try:
        # All the time: planning waits for Kafka, and writing rows may take longer than a lease.
        with heartbeat(claim), prefer_fenced_error(claim):
            yield claim
    finally:
        try:
            claim.release()
        except (SQLAlchemyError, LedgerError) as error:
            # The lease expires; an error here must not hide the one that ended the block.
            log.warning("The lease of group %r could not be released; it will expire: %s", claim.group_id, error)


@contextmanager
def prefer_fenced_error(claim: Claim) -> Iterator[None]:
    """Raise FencedError instead of another error of the block if a later attempt took over.

    CommitUnknownError passes unchanged: it is not a consequence.
    """
    try:
        yield
    except (FencedError, CommitUnknownError):
        raise
    except Exception:
        # A later attempt removes the files of this one, which causes other errors. A database error of the check is not
        # raised: the first error says more.
        with suppress(SQLAlchemyError):
            claim.check()
        raise
