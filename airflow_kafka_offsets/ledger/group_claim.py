"""The claim of a load on its consumer group: a lease, which is renewed while the attempt runs, and an epoch, which fences it.

The lease only tells other runs that the attempt is alive, so that they do not redo its work. The epoch makes two attempts safe:
every claim raises it, and nothing is written under an older one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import ClassVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from airflow_kafka_offsets.core.log_identity import check_cluster
from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.database.errors import database_message, sqlstate
from airflow_kafka_offsets.database.transactions import database_now, transact
from airflow_kafka_offsets.exceptions import DatabaseBusyError, FencedError, GroupBusyError, LedgerError
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.groups import OTHER_CLUSTER, group_row, insert_if_missing, lock
from airflow_kafka_offsets.ledger.positions import RangeRead, check_positions, set_positions, stored_positions
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.ledger.task_run import TaskRun

log = logging.getLogger(__name__)

_INSUFFICIENT_PRIVILEGE, _LOCK_NOT_AVAILABLE = "42501", "55P03"


@dataclass(frozen=True, slots=True)
class GroupClaim:
    """The right to load for a group, until a later attempt claims it with a higher epoch.

    :param lease: how long other runs take this attempt for alive after a renewal, by the database's clock
    """

    kind: ClassVar[str] = "load"

    group_id: str
    epoch: int
    owner: TaskRun
    lease: timedelta

    def lock(self, conn: Connection, tables: Tables) -> None:
        """Lock the group's row, and check that no later attempt has claimed the group.

        :raises FencedError: one has
        """
        if not self._update(conn, tables, epoch=self.epoch):
            raise self._fenced(conn, tables)

    def wait(self, conn: Connection, tables: Tables) -> None:
        """Lock the group's row under any epoch."""
        lock(conn, tables, self.group_id)

    def check(self, engine: Engine, tables: Tables) -> None:
        """Check, without a lock, that no later attempt has claimed the group.

        :raises FencedError: one has
        """
        with engine.connect() as conn:
            if group_row(conn, tables, self.group_id).epoch != self.epoch:
                raise self._fenced(conn, tables)

    def begin_commit(self, conn: Connection, tables: Tables, batch: Batch) -> None:
        """Lock the group, and check that the stored positions are where the batch starts.

        :raises FencedError: a later attempt has claimed the group
        :raises PositionConflictError: a stored position is another one
        """
        self.lock(conn, tables)
        check_positions(conn, tables, batch)

    def finish_commit(
        self, conn: Connection, tables: Tables, batch: Batch, reads: Mapping[TopicPartition, RangeRead], now: datetime
    ) -> None:
        """Move the positions to the ends of the batch's ranges."""
        stored = stored_positions(conn, tables, self.group_id)
        set_positions(conn, tables, self.group_id, batch.batch_id, batch.ranges, stored, reads, now)
        # The heartbeat could not renew the lease while this transaction had the group's row locked.
        self._update(conn, tables, lease_expires_at=now + self.lease)

    def renew(self, engine: Engine, tables: Tables) -> bool:
        """Renew the lease; return False where a later attempt has claimed the group."""
        return transact(
            engine, lambda conn: self._update(conn, tables, lease_expires_at=database_now(conn) + self.lease)
        )

    def release(self, engine: Engine, tables: Tables) -> None:
        """End the lease, so that the next run does not wait for it to expire."""
        transact(engine, lambda conn: self._update(conn, tables, lease_owner=None, lease_expires_at=None))

    def _update(self, conn: Connection, tables: Tables, **values: object) -> bool:
        """Write to the group's row; return False where it has another epoch."""
        groups = tables.consumer_groups
        claimed = (groups.c.group_id == self.group_id) & (groups.c.epoch == self.epoch)
        return conn.execute(groups.update().where(claimed).values(**values)).rowcount == 1

    def _fenced(self, conn: Connection, tables: Tables) -> FencedError:
        row = group_row(conn, tables, self.group_id)
        batches = tables.offset_batches.c
        loads = sa.select(batches.batch_id, batches.state, batches.reason).where(
            batches.consumer_group == self.group_id, batches.kind == "load"
        )
        last = conn.execute(loads.order_by(batches.batch_id.desc()).limit(1)).one_or_none()
        # Abandoning a batch takes the group from its attempt, and leaves it without a holder.
        if row.lease_owner is None and last is not None and last.state == "abandoned":
            return FencedError(
                f"Batch {last.batch_id} of group {self.group_id!r} was abandoned while this attempt ({self.owner}, epoch "
                f"{self.epoch}) was running: {last.reason}. Nothing of this attempt was written; the next load plans a new batch."
            )
        return FencedError(
            f"Group {self.group_id!r} was taken over by {row.lease_owner or 'a later attempt'} (epoch {row.epoch}) while "
            f"this attempt ({self.owner}, epoch {self.epoch}) was running. Nothing of this attempt was written; the later "
            "attempt carries on with the same batch."
        )


class Heartbeat:
    """A thread that renews the lease of a claim three times a lease, from the beginning to the end of a `with` block.

    A renewal that fails does not end the attempt: when the lease expires, the epoch still keeps the data safe. The renewals
    stop only where a later attempt has claimed the group.
    """

    def __init__(self, engine: Engine, tables: Tables, claim: GroupClaim) -> None:
        self._engine = engine
        self._tables = tables
        self._claim = claim
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease-{claim.group_id}", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        group_id = self._claim.group_id
        while not self._stop.wait(self._claim.lease.total_seconds() / 3):
            try:
                if not self._claim.renew(self._engine, self._tables):
                    log.warning(
                        "Group %r was taken over by a later attempt; this one will not be able to commit", group_id
                    )
                    return
            except (SQLAlchemyError, LedgerError) as error:
                log.warning("The lease of group %r could not be renewed: %s", group_id, error)


def claim_group(
    engine: Engine, tables: Tables, group_id: str, owner: TaskRun, *, cluster_id: str, lease: timedelta
) -> GroupClaim:
    """Claim a group for this attempt.

    :param cluster_id: the id of the Kafka cluster; stored by the first claim, compared by every later one
    :param lease: of the claim
    :raises GroupBusyError: another run holds an unexpired lease, or is committing
    :raises ClusterChangedError: the group's positions belong to another cluster
    :raises LedgerError: the user may not write to the state tables
    """
    try:
        return transact(engine, lambda conn: _claim(conn, tables, group_id, owner, cluster_id, lease))
    except DatabaseBusyError as error:
        raise GroupBusyError(f"Group {group_id!r} cannot be claimed: {error}") from error
    except DBAPIError as error:
        if sqlstate(error) == _INSUFFICIENT_PRIVILEGE or "readonly database" in database_message(error):
            raise LedgerError(
                f"User {engine.url.username!r} of database {engine.url.database!r} may not write to the state tables: "
                f"{database_message(error)}. GRANT SELECT, INSERT, UPDATE and DELETE on them, and USAGE on their sequence."
            ) from error
        raise


def _claim(
    conn: Connection, tables: Tables, group_id: str, owner: TaskRun, cluster_id: str, lease: timedelta
) -> GroupClaim:
    groups = tables.consumer_groups
    insert_if_missing(conn, tables, group_id, cluster_id)
    row = _lock_at_once(conn, tables, group_id)
    check_cluster(group_id, row.cluster_id, cluster_id, OTHER_CLUSTER)
    now = database_now(conn)
    if row.lease_owner not in (None, str(owner)) and row.lease_expires_at > now:
        raise GroupBusyError(
            f"Group {group_id!r} is being loaded by {row.lease_owner}; its lease, unless renewed, ends at "
            f"{row.lease_expires_at:%Y-%m-%d %H:%M:%S} UTC"
        )
    claimed = conn.execute(
        groups.update()
        .where(groups.c.group_id == group_id, groups.c.epoch == row.epoch)
        .values(epoch=row.epoch + 1, lease_owner=str(owner), lease_expires_at=now + lease)
    )
    if claimed.rowcount != 1:  # only in databases without FOR UPDATE
        raise GroupBusyError(f"Group {group_id!r} was claimed by another run at the same moment")
    return GroupClaim(group_id, row.epoch + 1, owner, lease)


def _lock_at_once(conn: Connection, tables: Tables, group_id: str) -> sa.Row[tuple[object, ...]]:
    """Lock the group's row and return it, without waiting for a commit that has it locked.

    :raises GroupBusyError: it is locked, or this transaction's snapshot is older than the row
    """
    groups = tables.consumer_groups
    select = sa.select(groups).where(groups.c.group_id == group_id).with_for_update(nowait=True)
    try:
        row = conn.execute(select).one_or_none()
    except OperationalError as error:
        if sqlstate(error) == _LOCK_NOT_AVAILABLE or "NOWAIT" in database_message(error):
            raise GroupBusyError(f"Group {group_id!r} is being committed by another run right now") from error
        raise
    if row is None:  # Under REPEATABLE READ, a row that another run has just inserted is not visible yet.
        raise GroupBusyError(f"Group {group_id!r} was claimed by another run at the same moment")
    return row
