"""Hold a group for the length of a load: wait for another run, renew the lease, release it at the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from airflow_kafka_offsets.exceptions import FencedError, GroupBusyError, LedgerError
from airflow_kafka_offsets.ledger.claims import Claim, GroupClaim, claim_group, heartbeat
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.ledger.task_run import TaskRun
from airflow_kafka_offsets.loading.pipeline import LoadOptions, Pipeline

log = logging.getLogger(__name__)

_BUSY_POLL_SECONDS = 1.0

_BUSY_LOG_SECONDS = 60.0


@contextmanager
def hold_group(
    pipeline: Pipeline, options: LoadOptions, engine: Engine, run: TaskRun, cluster_id: str
) -> Iterator[GroupClaim]:
    """Claim a pipeline's group, and renew the lease until the end of the block.

    Where another run holds the group, `on_busy` decides whether to wait.

    :raises GroupBusyError: another run holds the group, and `on_busy` is "fail"
    :raises FencedError: a later attempt took over the group within the block, also where that caused another error
    """
    next_log = time.monotonic()
    while True:
        try:
            claim = claim_group(
                engine, pipeline.tables, pipeline.group_id, run, cluster_id=cluster_id, lease=options.lease
            )
            break
        except GroupBusyError as busy:
            if options.on_busy == "fail":
                raise
            if time.monotonic() >= next_log:
                log.info("%s. Waiting for it", busy)
                next_log = time.monotonic() + _BUSY_LOG_SECONDS
            time.sleep(_BUSY_POLL_SECONDS)
    try:
        # All the time: planning waits for Kafka, and writing rows may take longer than a lease.
        with (
            heartbeat(engine, pipeline.tables, claim),
            prefer_fenced_error(claim, engine, pipeline.tables),
        ):
            yield claim
    finally:
        try:
            claim.release(engine, pipeline.tables)
        except (SQLAlchemyError, LedgerError) as error:
            # The lease expires; an error here must not hide the one that ended the block.
            log.warning("The lease of group %r could not be released; it will expire: %s", claim.group_id, error)


@contextmanager
def prefer_fenced_error(claim: Claim, engine: Engine, tables: Tables) -> Iterator[None]:
    """Raise FencedError instead of another error of the block where a later attempt took over."""
    try:
        yield
    except FencedError:
        raise
    except Exception:
        # A later attempt removes the files of this one, which causes other errors. A database error of the check is not raised: the
        # first error says more.
        with suppress(SQLAlchemyError):
            claim.check(engine, tables)
        raise
