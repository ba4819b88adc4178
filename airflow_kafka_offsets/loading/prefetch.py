"""Prefetching: while a batch is committed, the next one is planned and staged.

The calling thread does all work with the state tables; the other thread only runs Spark. The prefetched batch is in the
state `prefetched` (`ledger.prefetched`), the commit of the batch before it makes it the open one, and only then it is
marked as staged, and committed. Where that commit fails, Spark is stopped, and the row stays: the next attempt commits
the batch before it, and resumes this one as any open batch.

A batch that depends on the commit before it is not prefetched, see `Prefetcher._may_follow` and `plan.plan_after`.
These do not depend on it:

* The target's columns: they were read when the load began, and stay those, also with `columns_from="target"`.
* Files that Spark's tasks write for a lake table: they have the schema and the partitions that the table has now. If
  another writer changes these, the commit stages the batch again, as any batch.
* Publications: their numbers are the ids of batches, and only an open batch is published.
* Pending cleanups of a target: to abandon a load, another attempt takes over the group; rewinds wait for the open
  batch; and the rows of an abandoned replay are not those of a load.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType

from airflow_kafka_offsets.exceptions import KafkaOffsetsError, StagedFileError
from airflow_kafka_offsets.ledger.batch_rows import Batch, has_prefetched_batch
from airflow_kafka_offsets.ledger.claims import Claim
from airflow_kafka_offsets.loading.context import LoadContext
from airflow_kafka_offsets.loading.pipeline import LoadOptions
from airflow_kafka_offsets.loading.plan import plan_after
from airflow_kafka_offsets.loading.stage import StagedBatch, begin_attempt, finish_attempt, launch_application

log = logging.getLogger(__name__)

# A job may be cancelled before the launcher has it.
_CANCEL_AGAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class PrefetchedBatch:
    """A batch whose staging began before the commit of the batch before it.

    :param batch: as it is after that commit
    :param began: when it was planned, by the monotonic clock
    :param staging: by the other thread
    """

    batch: Batch
    began: float
    staging: Future[StagedBatch]


class Prefetcher:
    """Stages a batch of a load in another thread, while the one before it is committed. A context manager: the thread
    has ended when it exits.

    :ivar options: of the batches that are planned next
    :ivar next: the batch that is staged, which is open once the one before it is committed; None where the next one has
        to be planned
    """

    def __init__(self, context: LoadContext, claim: Claim, options: LoadOptions, has_time: Callable[[], bool]) -> None:
        """
        :param has_time: whether the time budget allows for another batch
        """
        self._context, self._claim, self.options, self._has_time = context, claim, options, has_time
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
        self.next: PrefetchedBatch | None = None

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()
        self._thread.shutdown()

    @contextmanager
    def prefetch(self, batch: Batch, staged: StagedBatch) -> Iterator[None]:
        """Begin to stage the batch after the one that the block commits. If the block raises, staging stops."""
        self._begin(batch, staged)
        try:
            yield
        except BaseException:
            self._stop()
            raise

    def finish(self) -> StagedBatch | None:
        """Wait until the next batch, which is open now, is staged, and record that.

        :return: None if its files are unusable, and it has to be staged again
        :raises KafkaOffsetsError: it could not be staged, and stays open
        """
        assert self.next is not None
        batch, staging = self.next.batch, self.next.staging
        try:
            staged = staging.result()
        except StagedFileError as damaged:
            log.warning("Batch %d is staged again: %s", batch.batch_id, damaged)
            return None
        finally:
            if staging.done():
                self.next = None
        return finish_attempt(self._context, self._claim, batch, staged)

    def _begin(self, batch: Batch, staged: StagedBatch) -> None:
        began = time.monotonic()
        prefetched = self._plan(batch, staged) if self._may_follow(batch) else None
        if prefetched is None:
            return
        try:
            attempt = begin_attempt(self._context, self._claim, prefetched)
            staging = self._thread.submit(launch_application, self._context.launcher, *attempt)
        except Exception as error:
            # Raised when the batch is open: the one before it is committed first.
            staging = Future()
            staging.set_exception(error)
        self.next = PrefetchedBatch(replace(prefetched, state="planned"), began, staging)

    def _may_follow(self, batch: Batch) -> bool:
        """Return whether a batch may be planned after one that is not committed yet."""
        remains = any(range_.end < range_.target for range_ in batch.ranges)
        # The commit may add a column that the next batch's rows are made for.
        adds_columns = self._context.pipeline.adds_columns
        if not remains or adds_columns or not self._has_time():
            return False
        # That of an earlier attempt is resumed when it is open.
        return not has_prefetched_batch(self._context.ledger, batch.group_id)

    def _plan(self, batch: Batch, staged: StagedBatch) -> Batch | None:
        try:
            return plan_after(self._context, self._claim, self.options, batch, staged)
        except KafkaOffsetsError as error:
            # The batch before is committed first, unless that fails, too. Then planning meets the error again, or does
            # not.
            log.info("Nothing is prefetched while batch %d is committed: %s", batch.batch_id, error)
            return None

    def _stop(self) -> None:
        prefetched = self.next
        if prefetched is None:
            return
        while not prefetched.staging.done():
            self._context.launcher.cancel()
            wait([prefetched.staging], timeout=_CANCEL_AGAIN_SECONDS)
        # Only now: where an exception of a signal ends the wait, it is stopped again at the end of the load.
        self.next = None
        log.info("Prefetched batch %d is left to the next attempt", prefetched.batch.batch_id)
