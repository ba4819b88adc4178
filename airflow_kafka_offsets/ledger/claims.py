"""Claims: the right of an attempt to write batches, which a later attempt can take away.

A load claims its group. The claim is a lease, which is renewed while the attempt runs, and an epoch, which fences it.
The lease only shows other runs that the attempt is alive, so that they do not repeat its work. The epoch makes
concurrent attempts safe: every claim raises it, and nothing is written under an older one. A replay claims its batches
(`replaying.replay_batches`), and so does a replay of dead letters (`ledger.dead_letter_batches`), both without a lease.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from airflow_kafka_offsets.core.log_identity import check_cluster
from airflow_kafka_offsets.database.errors import database_message, is_lock_timeout, lacks_rights, translated_errors
from airflow_kafka_offsets.database.transactions import database_now, transact
from airflow_kafka_offsets.exceptions import DatabaseBusyError, FencedError, GroupBusyError, LedgerError
from airflow_kafka_offsets.ledger.batch_rows import Batch, TaskRun, open_prefetched_batch
from airflow_kafka_offsets.ledger.dead_letters import insert_dead_letters
from airflow_kafka_offsets.ledger.groups import OTHER_CLUSTER, check_name, group_row, insert_if_missing
from airflow_kafka_offsets.ledger.positions import Reads, check_positions, positions_after, set_positions
from airflow_kafka_offsets.ledger.tables import Ledger, Tables

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

T = TypeVar("T")

# How often a short transaction of a claim waits for a lock. MySQL waits 50 s by default, SQLite half a minute: the
# commit of a replay that has the group may take most of an hour.
_LOCK_WAITS = 60


@dataclass(frozen=True, slots=True)
class Claim(ABC):
    """A row that every writer locks, and the epoch that this attempt wrote to it: a later attempt raises the epoch.

    :param kind: the kind of its batches: `load`, `replay` or `dead_letters`
    :param title: the kind in a sentence
    :param ledger: the database with the row and the batches
    """

    kind: ClassVar[str]
    title: ClassVar[str]

    ledger: Ledger
    group_id: str
    epoch: int
    owner: TaskRun

    @abstractmethod
    def row(self) -> tuple[sa.Table, sa.ColumnElement[bool]]:
        """Return the table of the row, and the condition for it."""

    @abstractmethod
    def fenced(self, conn: Connection) -> FencedError:
        """Return the error that says which later attempt has raised the epoch."""

    @abstractmethod
    def begin_commit(self, conn: Connection, batch: Batch) -> None:
        """Lock the row, and check that the batch may be committed, before its rows are written."""

    def finish_commit(self, conn: Connection, batch: Batch, reads: Reads, now: datetime) -> None:  # noqa: B027
        """Write the rest of the commit, such as positions and the lease, after the rows were written and the batch was
        marked committed.

        :param now: the time of the commit, by the database's clock
        """

    def write_dead_letters(self, conn: Connection, batch: Batch, dead_letters: Iterable[pa.RecordBatch]) -> None:
        """Write dead letters of the batch, within the transaction that commits it.

        :param dead_letters: record batches with the columns of `staging.dead_letters.SCHEMA`
        """
        insert_dead_letters(conn, self.ledger.tables, batch, dead_letters)

    def written_reads(self, reads: Reads) -> Reads:
        """Return the reads of the batch for the history.

        :param reads: what was read of each range
        """
        return reads

    def lock(self, conn: Connection) -> None:
        """Lock the row, as every writer does first, unless a later attempt has raised its epoch.

        :raises FencedError: a later attempt has raised it
        """
        if not self.update(conn, epoch=self.epoch):
            raise self.fenced(conn)

    def update(self, conn: Connection, **values: object) -> bool:
        """Write to the row; return False where it has another epoch."""
        table, of_row = self.row()
        claimed = table.update().where(of_row, table.c.epoch == self.epoch)
        return conn.execute(claimed.values(**values)).rowcount == 1

    def wait(self, conn: Connection) -> None:
        """Lock the row, whatever its epoch, to wait for open transactions of this and other attempts."""
        table, of_row = self.row()
        conn.execute(table.update().where(of_row).values(epoch=table.c.epoch))

    def check(self) -> None:
        """Check, without a lock, that the row still has this claim's epoch.

        :raises FencedError: a later attempt has raised it
        """
        table, of_row = self.row()
        with self.ledger.connect() as conn:
            if conn.scalar(sa.select(table.c.epoch).where(of_row)) != self.epoch:
                raise self.fenced(conn)

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Run a transaction that begins by locking the row. If the wait for the lock times out, wait again: this
        attempt may have staged for hours.

        :param work: may be called several times, see `database.transactions.transact`
        :raises FencedError: a later attempt took over; nothing was written
        :raises DatabaseUnavailableError: the database failed for a reason that is not in the statements
        """

        def claimed(conn: Connection) -> T:
            self.lock(conn)
            return work(conn)

        with translated_errors(f"The state of group {self.group_id!r} could not be written"):
            for wait in range(1, _LOCK_WAITS):
                try:
                    return transact(self.ledger.engine, claimed)
                except (DBAPIError, DatabaseBusyError) as error:
                    if isinstance(error, DBAPIError) and not is_lock_timeout(error):
                        raise
                    reason = database_message(error) if isinstance(error, DBAPIError) else error
                log.warning("Wait %d for the state of group %r was in vain: %s", wait, self.group_id, reason)
            return transact(self.ledger.engine, claimed)


@dataclass(frozen=True, slots=True)
class BatchClaim(Claim):
    """The right to write one open batch, until a later attempt takes it over with a higher epoch."""

    batch: Batch

    def row(self) -> tuple[sa.Table, sa.ColumnElement[bool]]:
        """Return the table of the batches, and the condition for the batch's row."""
        batches = self.ledger.tables.offset_batches
        return batches, batches.c.batch_id == self.batch.batch_id


@dataclass(frozen=True, slots=True)
class GroupClaim(Claim):
    """The right to load for a group, until a later attempt claims it with a higher epoch.

    :param lease: how long after a renewal other runs consider this attempt alive, by the database's clock
    """

    kind: ClassVar[str] = "load"
    title: ClassVar[str] = "load"

    lease: timedelta

    def row(self) -> tuple[sa.Table, sa.ColumnElement[bool]]:
        """Return the table of the groups, and the condition for the group's row."""
        groups = self.ledger.tables.consumer_groups
        return groups, groups.c.group_id == self.group_id

    def begin_commit(self, conn: Connection, batch: Batch) -> None:
        """Lock the group, and check that the stored positions are where the batch starts.

        :raises FencedError: a later attempt has claimed the group
        :raises PositionConflictError: a stored position is another one
        """
        self.lock(conn)
        check_positions(conn, self.ledger.tables, batch)

    def finish_commit(self, conn: Connection, batch: Batch, reads: Reads, now: datetime) -> None:
        """Move the positions to the ends of the batch's ranges, open the prefetched batch, and renew the
        lease.
        """
        tables, positions = self.ledger.tables, positions_after(batch.ranges)
        set_positions(conn, tables, self.group_id, batch.batch_id, positions, now, reads)
        open_prefetched_batch(conn, tables, batch)
        # The heartbeat could not renew the lease while this transaction had the group's row locked.
        self.update(conn, lease_expires_at=now + self.lease)

    def renew(self) -> bool:
        """Renew the lease; return False where a later attempt has claimed the group."""
        return transact(
            self.ledger.engine, lambda conn: self.update(conn, lease_expires_at=database_now(conn) + self.lease)
        )

    def release(self) -> None:
        """End the lease, so that the next run does not wait for it to expire."""
        transact(self.ledger.engine, lambda conn: self.update(conn, lease_owner=None, lease_expires_at=None))

    def fenced(self, conn: Connection) -> FencedError:
        """Return the error that names the current owner of the group, or says that the batch was abandoned."""
        tables = self.ledger.tables
        row, batches = group_row(conn, tables, self.group_id), tables.offset_batches.c
        loads = sa.select(batches.batch_id, batches.state, batches.reason).where(
            batches.consumer_group == self.group_id, batches.kind == "load"
        )
        last = conn.execute(loads.order_by(batches.batch_id.desc()).limit(1)).one_or_none()
        # Abandoning a batch takes the group from its attempt, and leaves it without a holder.
        if row.lease_owner is None and last is not None and last.state == "abandoned":
            return FencedError(
                f"Batch {last.batch_id} of group {self.group_id!r} was abandoned while this attempt ({self.owner}, "
                f"epoch {self.epoch}) was running: {last.reason}. Nothing of the batch was written; the next load "
                "plans a new one."
            )
        return FencedError(
            f"Group {self.group_id!r} was taken over by {row.lease_owner or 'a later attempt'} (epoch {row.epoch}) "
            f"while this attempt ({self.owner}, epoch {self.epoch}) was running. Nothing of the current batch was "
            "written, and earlier commits of this attempt stay; the later attempt continues from there."
        )


@contextmanager
def heartbeat(claim: GroupClaim) -> Iterator[threading.Thread]:
    """Renew the lease of a claim in a thread until the end of the block, three times in the duration of the lease.

    A failed renewal does not end the attempt: if the lease expires, the epoch still protects the data. The renewals
    stop only if a later attempt has claimed the group.
    """
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(claim.lease.total_seconds() / 3):
            try:
                if not claim.renew():
                    log.warning(
                        "Group %r was taken over by a later attempt; this one will not be able to commit",
                        claim.group_id,
                    )
                    return
            except (SQLAlchemyError, LedgerError) as error:
                log.warning("The lease of group %r could not be renewed: %s", claim.group_id, error)

    thread = threading.Thread(target=renew, name=f"lease-{claim.group_id}", daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join()


def claim_group(ledger: Ledger, group_id: str, owner: TaskRun, *, cluster_id: str, lease: timedelta) -> GroupClaim:
    """Claim a group for this attempt.

    :param cluster_id: the id of the Kafka cluster; stored by the first claim, compared by every later one
    :param lease: of the claim
    :raises GroupBusyError: another run holds an unexpired lease, or is committing
    :raises ClusterChangedError: the group's positions belong to another cluster
    :raises LedgerError: the user may not write to the state tables
    """
    engine, tables = ledger.engine, ledger.tables
    groups = tables.consumer_groups

    def work(conn: Connection) -> GroupClaim:
        insert_if_missing(conn, tables, group_id, cluster_id)
        row = _lock_at_once(conn, tables, group_id, owner)
        check_cluster(group_id, row.cluster_id, cluster_id, OTHER_CLUSTER)
        now = database_now(conn)
        if row.lease_owner is not None and not row.is_own and row.lease_expires_at > now:
            raise GroupBusyError(
                f"Group {group_id!r} is being loaded by {row.lease_owner}; its lease, unless renewed, ends at "
                f"{row.lease_expires_at:%Y-%m-%d %H:%M:%S} UTC"
            )
        claimed = conn.execute(
            groups.update()
            .where(groups.c.group_id == group_id, groups.c.epoch == row.epoch)
            # The cluster is not known of a group that was deleted.
            .values(epoch=row.epoch + 1, cluster_id=cluster_id, lease_owner=str(owner), lease_expires_at=now + lease)
        )
        if claimed.rowcount != 1:  # only in databases without FOR UPDATE
            raise GroupBusyError(f"Group {group_id!r} was claimed by another run at the same moment")
        return GroupClaim(ledger, group_id, row.epoch + 1, owner, lease)

    try:
        return transact(engine, work)
    except DatabaseBusyError as error:
        raise GroupBusyError(f"Group {group_id!r} cannot be claimed: {error}") from error
    except DBAPIError as error:
        if lacks_rights(error):
            raise LedgerError(
                f"User {engine.url.username!r} of database {engine.url.database!r} may not write to the state tables: "
                f"{database_message(error)}. GRANT SELECT, INSERT, UPDATE and DELETE on them, and USAGE on their "
                "sequence."
            ) from error
        raise


def _lock_at_once(conn: Connection, tables: Tables, group_id: str, owner: TaskRun) -> sa.Row[tuple[object, ...]]:
    """Lock the group's row without waiting for a commit that has it locked. Return it, and whether its lease `is_own`.

    :raises GroupBusyError: it is locked, or this transaction's snapshot is older than the row
    """
    groups = tables.consumer_groups
    is_own = (groups.c.lease_owner == str(owner)).label("is_own")
    select = sa.select(groups, is_own).where(groups.c.group_id == group_id).with_for_update(nowait=True)
    try:
        row = conn.execute(select).one_or_none()
    except OperationalError as error:
        if is_lock_timeout(error):
            raise GroupBusyError(f"Group {group_id!r} is being committed by another run") from error
        raise
    if row is None:  # Under REPEATABLE READ, a row that another run has just inserted is not visible yet.
        raise GroupBusyError(f"Group {group_id!r} was claimed by another run at the same moment")
    check_name(group_id, str(row.group_id))
    return row
