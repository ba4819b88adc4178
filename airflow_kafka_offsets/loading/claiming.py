"""Hold a group while its load is at work: wait for whoever has it, let it go at the end, and say so where it was taken over."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from airflow_kafka_offsets.exceptions import FencedError, GroupBusyError, LedgerError
from airflow_kafka_offsets.ledger.claims import Claim
from airflow_kafka_offsets.ledger.group_claim import GroupClaim, Heartbeat, claim_group
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
    """Hold a pipeline's group, and renew its lease, for as long as the block lasts.

    Where another run holds the group, wait as `on_busy` says.

    :raises GroupBusyError: another run holds it, and is not to be waited for
    :raises FencedError: a later attempt took the group over meanwhile, whatever else went wrong for that
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
        # From the claim to the release: planning asks Kafka, and a commit may write for longer than a lease lasts.
        with (
            Heartbeat(engine, pipeline.tables, claim),
            prefer_fenced_error(claim, engine, pipeline.tables),
        ):
            yield claim
    finally:
        try:
            claim.release(engine, pipeline.tables)
        except (SQLAlchemyError, LedgerError) as error:
            # The lease ends by itself; an error here must not hide the one that ended the block.
            log.warning("The lease of group %r could not be released and ends by itself: %s", claim.group_id, error)


@contextmanager
def prefer_fenced_error(claim: Claim, engine: Engine, tables: Tables) -> Iterator[None]:
    """Let the error of an attempt that was overtaken say that it was.

    :param check: raises FencedError where a later attempt took over
    """
    try:
        yield
    except FencedError:
        raise
    except Exception:
        # Where a later attempt took over, all else follows from that: it removes files that this one works with. A database
        # that cannot be asked now is less to say than the error at hand.
        with suppress(SQLAlchemyError):
            claim.check(engine, tables)
        raise
