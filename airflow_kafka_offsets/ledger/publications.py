"""What the state tables know of targets that commit elsewhere: which batches are being published, and what is owed to
the target.

Between the commit of the target and that of the state tables a process may die. `publish_started_at` says that a batch
got so far:

* of an open batch, that the target may have its rows. The next attempt looks, and goes on from there;
* of an abandoned one, that its rows have to be taken back, if it has any;
* of a rewind, that rows which it replaced have to be removed.

The last two are owed: whoever next has the sink at hand pays, before it plans anything new. Replays of dead letters are
in `published_letters`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.history import OPEN_STATES, REWIND_KINDS
from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.database.transactions import database_now, transact
from airflow_kafka_offsets.exceptions import OlderLedgerError
from airflow_kafka_offsets.ledger.batch_outputs import note_outputs
from airflow_kafka_offsets.ledger.batch_rows import Batch, as_batch, change_open
from airflow_kafka_offsets.ledger.claims import Claim
from airflow_kafka_offsets.ledger.groups import lock
from airflow_kafka_offsets.ledger.installation import installation_id
from airflow_kafka_offsets.ledger.positions import RangeRead, Reads, store_reads
from airflow_kafka_offsets.ledger.replaced_output import recorded_offsets, refuse_published
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.sinks.table import Output, Published, Superseded, Table, Target
from airflow_kafka_offsets.sinks.target_names import same_table_names
from airflow_kafka_offsets.sinks.target_rows import Removed, ReplacedOffsets

log = logging.getLogger(__name__)

# Numbers in a query: databases have a limit.
_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Publication:
    """One batch on its way into a target: begun, published, finished, or looked up after an interruption.

    Of a target in the database of the positions, the transaction that publishes the batch is also what begins and
    finishes the publication. A target that commits externally has a commit of its own: `begin` stores before it that
    the target may have the batch, and the transaction of the positions, which follows, stores that it has.

    :param output: the batch, as the target knows it
    """

    ledger: Ledger
    table: Table
    output: Output
    is_external: bool

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        table: Table,
        batch: Batch,
        kind: str,
        attempt: str = "",
        conn: Connection | None = None,
    ) -> Publication:
        """Return the publication of a batch.

        :param kind: of the batch: loads of a group follow each other, and every other batch has a series of its own
        :param attempt: the name of the attempt that staged it
        :param conn: of the transaction, where it is called within one
        """
        series = ""
        if table.sink.commits_externally:
            series = f"{installation_id(ledger, conn)}.{batch.group_id}"
            if kind != "load":
                series = f"{series}.{batch.batch_id}"
        output = Output(batch.batch_id, batch.group_id, batch.ranges, series, attempt)
        return cls(ledger, table, output, table.sink.commits_externally)

    def begin(self, claim: Claim, batch: Batch, reads: Reads, *, replace: bool = False) -> None:
        """Store that the target may have the rows of a batch from now on, and what was read of each range.

        If the files of the batch are lost after the commit of the target, and its records expire, these counts and the
        target are all that is left.

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
        state = self.table.state(self.output)
        if isinstance(state, Superseded):
            raise OlderLedgerError(
                f"The target has batch {state.number} of group {self.output.group_id!r}, and batch "
                f"{self.output.batch_id} is to be committed: the state tables were restored from an older backup than "
                "the target. Nothing was written: restore both to the same moment"
            )
        return isinstance(state, Published)

    def remove_replaced(self, conn: Connection, replaced: ReplacedOffsets) -> list[Removed]:
        """Remove rows for a rewind, within the transaction that moves the positions.

        A target that commits externally only counts them: what it removes could not be taken back if the transaction
        failed. The rows are removed by `run_pending_cleanups` once the positions are committed.
        """
        try:
            with self.open(conn) as target:
                removed = target.remove(replaced)
                if self.is_external:
                    raise _CountedError(removed)
                note_outputs(conn, self.ledger.tables, self.output.batch_id, target)
        except _CountedError as counted:
            return counted.removed
        return removed

    def clean_up(self, conn: Connection, kind: str) -> list[Removed]:
        """Do what is pending of a closed batch: remove what a rewind replaced, or the rows of an abandoned batch.

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
    """A batch whose rows a target which commits elsewhere has by right."""

    batch_id: int
    group_id: str
    is_committed: bool


def published_batches(ledger: Ledger, target: str, batch_ids: Sequence[int]) -> list[PublishedBatch]:
    """Return those of some batches that are committed into a target, or are about to be.

    :param target: its name
    """
    batches = ledger.tables.offset_batches.c
    is_committed = batches.state == "committed"
    is_published = sa.or_(
        is_committed, sa.and_(batches.state.in_(OPEN_STATES), batches.publish_started_at.is_not(None))
    )
    found: list[PublishedBatch] = []
    with ledger.connect() as conn:
        into_target = batches.target_table.in_(same_table_names(conn, target))
        query = sa.select(batches.batch_id, batches.consumer_group, is_committed).where(is_published, into_target)
        for first in range(0, len(batch_ids), _AT_ONCE):
            some = batches.batch_id.in_(batch_ids[first : first + _AT_ONCE])
            found += [PublishedBatch(row[0], row[1], bool(row[2])) for row in conn.execute(query.where(some))]
    return found


def may_have_replaced(tables: Tables) -> sa.ColumnElement[bool]:
    """Return the condition that the target may have an open batch already, with a removal that cannot be taken back."""
    batches, ranges = tables.offset_batches.c, tables.offset_ranges.c
    replaces = sa.exists().where(ranges.batch_id == batches.batch_id, ranges.replaced_start_offset.is_not(None))
    return sa.and_(batches.state.in_(OPEN_STATES), batches.publish_started_at.is_not(None), replaces)


class PendingCleanup(NamedTuple):
    """What is owed to a target.

    :param batch: an abandoned one, or a rewind
    :param kind: of the batch
    """

    batch: Batch
    kind: str


def pending_cleanups(conn: Connection, tables: Tables, group_id: str, target: str) -> list[PendingCleanup]:
    """Return what a group owes to a target, in the order of the batches.

    :param target: the name of the sink
    """
    batches = tables.offset_batches
    rows = conn.execute(
        sa.select(batches)
        .where(
            batches.c.publish_started_at.is_not(None),
            batches.c.consumer_group == group_id,
            batches.c.state.not_in(OPEN_STATES),
            batches.c.target_table == target,
        )
        .order_by(batches.c.batch_id)
    ).all()
    return [PendingCleanup(as_batch(conn, tables, row), row.kind) for row in rows]


def run_pending_cleanups(ledger: Ledger, table: Table, group_id: str) -> None:
    """Remove rows of abandoned batches, and those that rewinds replaced, from a target that commits externally.

    Safe to repeat, and in two processes at once. An interrupted call leaves the rest to the next one.

    :raises TargetError: the target cannot do it now
    """
    tables = ledger.tables
    batches = tables.offset_batches
    with ledger.connect() as conn:
        pending = pending_cleanups(conn, tables, group_id, table.sink.name)
    for batch, kind in pending:
        publication = Publication.of(ledger, table, batch, kind)

        def work(
            conn: Connection, batch: Batch = batch, kind: str = kind, publication: Publication = publication
        ) -> int:
            lock(conn, tables, group_id)
            removed = publication.clean_up(conn, kind)
            conn.execute(batches.update().where(batches.c.batch_id == batch.batch_id).values(publish_started_at=None))
            return sum(part.rows for part in removed)

        rows = transact(ledger.engine, work)
        what = "replaced by rewind" if kind in REWIND_KINDS else "of abandoned batch"
        log.info(
            "Removed %s rows %s %d of group %r from %s", f"{rows:,}", what, batch.batch_id, group_id, table.sink.name
        )
