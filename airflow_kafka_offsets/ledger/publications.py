"""The state of external targets, and of targets for which Spark's tasks write files: which batches are being published,
and which rows and files are still to be removed from the target.

A process may die between the commit of the target and that of the state tables. `publish_started_at` marks such a
batch:

* An open batch: the target may have its rows. The next attempt looks them up, and continues from there.
* An abandoned batch: its rows have to be removed from the target, if there are any.
* A rewind: the rows that it replaces have to be removed.

The last two are pending cleanups: the next process that has the sink runs them, before it plans anything new.

`has_files_since` marks batches whose attempts may have left files in the target. A fenced attempt may still write, or
even publish, for a while. So these files are removed only after the batch has been closed for long enough, and never if
a snapshot of the target names them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.attempts import attempt_name
from airflow_kafka_offsets.core.chunks import portions
from airflow_kafka_offsets.core.history import DEAD_LETTERS, OPEN_STATES, REWIND_KINDS, UNFINISHED_STATES
from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.database.transactions import database_now, now, stream, transact
from airflow_kafka_offsets.exceptions import KafkaOffsetsError, OlderLedgerError, TargetError
from airflow_kafka_offsets.ledger.batch_notes import note_outputs
from airflow_kafka_offsets.ledger.batch_rows import Batch, as_batch, change_open, update_batch
from airflow_kafka_offsets.ledger.claims import Claim
from airflow_kafka_offsets.ledger.group_table import names_of
from airflow_kafka_offsets.ledger.groups import lock
from airflow_kafka_offsets.ledger.install import installation_id
from airflow_kafka_offsets.ledger.other_logs import of_other_logs
from airflow_kafka_offsets.ledger.positions import RangeRead, Reads, store_reads
from airflow_kafka_offsets.ledger.replaced_output import recorded_offsets, refuse_published
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.sinks.table import Output, Table, Target
from airflow_kafka_offsets.sinks.target_names import TargetNames
from airflow_kafka_offsets.sinks.target_rows import LogOrder, Removed, ReplacedOffsets

log = logging.getLogger(__name__)

# Numbers in a query: databases have a limit.
_AT_ONCE = 1_000

# A load looks after so many batches with files: there are no more than that, unless loads failed for long.
_WITH_FILES_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class Publication:
    """One batch on its way into a target: begun, published, finished, or looked up after an interruption.

    For a target in the database of the positions, one transaction begins, makes and finishes the publication. A target
    that commits externally makes its own commit: `begin` stores before it that the target may have the batch, and the
    transaction of the positions, which follows, stores that it has.

    :param output: the batch, as the target knows it
    """

    ledger: Ledger
    table: Table
    output: Output

    @property
    def is_external(self) -> bool:
        return self.table.sink.commits_externally

    @classmethod
    def of(
        cls, ledger: Ledger, table: Table, batch: Batch, kind: str, attempt: str = "", conn: Connection | None = None
    ) -> Publication:
        """Return the publication of a batch.

        :param kind: the kind of the batch: loads of a group are one series, and every other batch has its own
        :param attempt: the name of the attempt that staged it; without one, it gets a new name
        :param conn: of the transaction, where it is called within one
        """
        sink, series = table.sink, ""
        installation = installation_id(ledger, conn) if sink.commits_externally or sink.writes_files else ""
        if sink.commits_externally:
            series = f"{installation}.{batch.group_id}"
            if kind != "load":
                series = f"{series}.{batch.batch_id}"
        attempt = attempt or attempt_name(installation, batch.batch_id)
        log_order = LogOrder(partial(of_other_logs, ledger.tables, batch, kind), kind == DEAD_LETTERS)
        return cls(ledger, table, Output(batch.batch_id, batch.group_id, batch.ranges, series, attempt, log_order))

    def begin(self, claim: Claim, batch: Batch, reads: Reads, *, replace: bool = False) -> None:
        """Store that the target may have the rows of a batch from now on, and the reads of its ranges.

        If the files of the batch are lost after the commit of the target, and its records expire, only these counts and
        the target remain.

        :param replace: whether the batch replaces what earlier batches wrote of its offsets
        :raises OpenBatchError: another batch may be publishing rows of these offsets
        :raises FencedError: a later attempt took over
        :raises BatchClosedError: the batch was abandoned meanwhile
        """
        if not self.is_external:
            return
        tables = claim.ledger.tables
        if replace:
            # Again within the transaction; here two replays do not end up waiting for each other.
            with claim.ledger.connect() as conn:
                refuse_published(conn, tables, batch.group_id, batch.batch_id)

        def work(conn: Connection) -> None:
            change_open(conn, tables, batch, states=("staged",), publish_started_at=database_now(conn))
            store_reads(conn, tables, batch.batch_id, reads)

        claim.transact(work)

    def open(self, conn: Connection) -> AbstractContextManager[Target]:
        """Open the target within the transaction that commits the batch; see `Table.publish`."""
        return self.table.publish(conn, self.output)

    def is_published(self) -> bool:
        """Return whether the target has the rows of the batch.

        :raises OlderLedgerError: it has a later batch of the series
        """
        number = self.table.last_number(self.output)
        if number > self.output.batch_id:
            raise OlderLedgerError(
                f"The target has batch {number} of group {self.output.group_id!r}, which is later than the batch to "
                f"commit, {self.output.batch_id}: the state tables were restored from an older backup than the "
                "target. Nothing was written: restore both to the same moment"
            )
        return number == self.output.batch_id

    def remove_replaced(self, conn: Connection, replaced: ReplacedOffsets) -> list[Removed]:
        """Remove rows for a rewind, within the transaction that moves the positions.

        An external target only counts them, because it could not undo the removal if the transaction failed.
        `run_pending_cleanups` removes the rows after the positions are committed.
        """
        try:
            with self.open(conn) as target:
                removed = target.remove(replaced)
                if self.is_external:
                    target.check_removed()
                    raise _CountedError(removed)
                note_outputs(conn, self.ledger.tables, self.output.batch_id, target)
        except _CountedError as counted:
            return counted.removed
        return removed

    def clean_up(self, conn: Connection, kind: str) -> list[Removed]:
        """Run the pending cleanup of a closed batch: remove the rows that a rewind replaced, or those of an abandoned
        batch.

        :param kind: of the batch
        """
        if kind not in REWIND_KINDS:
            return self.table.retire(self.output)
        replaced = recorded_offsets(conn, self.ledger.tables, self.output.batch_id)
        if replaced is None:
            return []
        with self.open(conn) as target:
            return target.remove(replaced)


class _CountedError(Exception):
    """Ends the block of a publication, so that nothing of it is committed."""

    def __init__(self, removed: list[Removed]) -> None:
        super().__init__()
        self.removed = removed


def published_reads(ledger: Ledger, batch_id: int) -> dict[TopicPartition, RangeRead]:
    """Return what was read of the ranges of a batch when its last publication began."""
    ranges = ledger.tables.offset_ranges
    columns = (ranges.c[field.name] for field in fields(RangeRead))
    query = sa.select(ranges.c.topic, ranges.c.partition, *columns).where(
        ranges.c.batch_id == batch_id, ranges.c.start_offset < ranges.c.end_offset
    )
    with ledger.connect() as conn:
        return {TopicPartition(*row[:2]): RangeRead(*row[2:]) for row in conn.execute(query)}


class PublishedBatch(NamedTuple):
    """A batch that belongs in an external target."""

    batch_id: int
    group_id: str
    is_committed: bool


def published_batches(ledger: Ledger, target: str, batch_ids: Sequence[int]) -> list[PublishedBatch]:
    """Return which batches are committed into a target, or are about to be.

    :param target: its name
    """
    batches = ledger.tables.offset_batches.c
    is_committed = batches.state == "committed"
    is_published = sa.or_(
        is_committed, sa.and_(batches.state.in_(OPEN_STATES), batches.publish_started_at.is_not(None))
    )
    found: list[PublishedBatch] = []
    with ledger.connect() as conn:
        names = TargetNames(conn, ledger.tables.offset_batches)
        query = sa.select(batches.batch_id, batches.consumer_group, is_committed, batches.target_table)
        for some in portions(batch_ids, _AT_ONCE):
            rows = conn.execute(query.where(is_published, batches.batch_id.in_(some))).all()
            found += [
                PublishedBatch(row[0], row[1], bool(row[2]))
                for row in rows
                if names.same(row.target_table or "", target)
            ]
    return found


def may_have_replaced(tables: Tables) -> sa.ColumnElement[bool]:
    """Return the condition that the target may have an open batch already, whose removal of rows cannot be undone."""
    batches, ranges = tables.offset_batches.c, tables.offset_ranges.c
    replaces = sa.exists().where(ranges.batch_id == batches.batch_id, ranges.replaced_start_offset.is_not(None))
    return sa.and_(batches.state.in_(OPEN_STATES), batches.publish_started_at.is_not(None), replaces)


def run_pending_cleanups(ledger: Ledger, table: Table, group_id: str) -> None:
    """Remove rows of abandoned batches, and those that rewinds replaced, of all groups, from a target that commits
    externally.

    Safe to repeat, also in two processes at once. An interrupted call leaves the rest to the next one.

    :param group_id: the group that needs it; a clean-up of another one that fails is logged, and left to later calls
    :raises TargetError: the target cannot do it now
    """
    tables = ledger.tables
    batches = tables.offset_batches.c
    if not table.sink.commits_externally:
        return
    query = sa.select(batches.batch_id, batches.target_table).where(
        batches.publish_started_at.is_not(None), batches.state.not_in(OPEN_STATES)
    )
    whole = sa.select(tables.offset_batches)
    with ledger.connect() as conn:
        names = TargetNames(conn, tables.offset_batches)
        found = stream(conn, query.order_by(batches.batch_id))
        pending = [number for number, name in found if names.same(name or "", table.sink.name)]
        rows = [conn.execute(whole.where(batches.batch_id == number)).one_or_none() for number in pending]
    for row in filter(None, rows):

        def work(conn: Connection, row: Any = row) -> int:
            lock(conn, tables, row.consumer_group)
            batch = as_batch(conn, tables, row)
            publication = Publication.of(ledger, table, batch, batch.kind, conn=conn)
            removed = publication.clean_up(conn, batch.kind)
            # By the number of its rows, an abandoned batch is known as one that the target had.
            taken_back = {} if batch.kind in REWIND_KINDS else {"row_count": 0}
            update_batch(conn, tables, batch.batch_id, publish_started_at=None, **taken_back)
            return sum(part.rows for part in removed)

        what = "replaced by rewind" if row.kind in REWIND_KINDS else "of abandoned batch"
        what = f"rows {what} {row.batch_id} of group {row.consumer_group!r}"
        try:
            count_removed = transact(ledger.engine, work)
        except (KafkaOffsetsError, OSError) as error:
            failure = f"The {what} could not be removed from {table.sink.name}"
            if row.consumer_group != group_id:
                log.warning("%s, which the next load of the group does again: %s", failure, error)
                continue
            if isinstance(error, TargetError):
                raise TargetError(f"{failure}, which the next load does again: {error}") from None
            raise
        log.info("Removed %s %s from %s", f"{count_removed:,}", what, table.sink.name)


def remove_leftovers(ledger: Ledger, table: Table, group_id: str, retention: timedelta) -> None:
    """Remove the files that attempts to stage batches left in the storage of a target. A table has none.

    :param retention: how long a batch must be closed, and a file unchanged
    """
    if not table.sink.writes_files:
        return
    batches = ledger.tables.offset_batches
    before = now(ledger.engine) - retention
    of_group = batches.c.consumer_group == group_id
    closed = sa.select(batches.c.batch_id).where(
        batches.c.has_files_since < before,
        of_group,
        batches.c.state.not_in(UNFINISHED_STATES),
        sa.or_(batches.c.committed_at.is_(None), batches.c.committed_at < before),
        # What is owed to the target comes first.
        batches.c.publish_started_at.is_(None),
    )
    with ledger.connect() as conn:
        names = names_of(conn, ledger.tables, table.sink.name, of_group, batches.c.has_files_since.is_not(None))
        into_target = closed.where(batches.c.target_table.in_(names)).order_by(batches.c.batch_id)
        ids = conn.scalars(into_target.limit(_WITH_FILES_AT_ONCE)).all()
    for batch_id in ids:
        try:
            removed = table.remove_leftovers(batch_id, before, installation_id(ledger))
        except (OSError, TargetError) as error:
            files = f"The files that attempts of batch {batch_id} left in {table.sink.name}"
            log.warning("%s could not be removed: %s", files, error)
            return
        if removed:
            files = count(removed, "file")
            log.info("Removed %s from %s that failed attempts of batch %d left", files, table.sink.name, batch_id)
        transact(ledger.engine, partial(update_batch, tables=ledger.tables, batch_id=batch_id, has_files_since=None))
