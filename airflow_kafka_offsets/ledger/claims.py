"""Who holds a group: lease and fencing token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from airflow_kafka_offsets.core.log_identity import check_cluster
from airflow_kafka_offsets.database.errors import database_message, sqlstate, translated_errors
from airflow_kafka_offsets.database.transactions import database_now, transact
from airflow_kafka_offsets.exceptions import DatabaseBusyError, FencedError, GroupBusyError, LedgerError
from airflow_kafka_offsets.ledger.groups import OTHER_CLUSTER, group_row, insert_if_missing, lock
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.ledger.task_run import TaskRun

T = TypeVar("T")

_INSUFFICIENT_PRIVILEGE, _LOCK_NOT_AVAILABLE = "42501", "55P03"


class Fence(Protocol):
    """The right to write: a row that every writer locks, and a token in it that only the latest attempt holds."""

    @property
    def group_id(self) -> str: ...

    @property
    def owner(self) -> TaskRun: ...

    def lock(self, conn: Connection, tables: Tables) -> None:
        """Lock the row, and make sure that the token is still the latest: every writer begins with this.

        :raises FencedError: it is not
        """

    def wait(self, conn: Connection, tables: Tables) -> None:
        """Lock the row, whoever holds the latest token: whatever another session had under way there is over then."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write for a group, until somebody claims it with a higher epoch.

    :param lease: how long others believe, by the database's clock, that this attempt lives, unless it renews
    """

    group_id: str
    epoch: int
    owner: TaskRun
    lease: timedelta

    def lock(self, conn: Connection, tables: Tables) -> None:
        """Lock the group's row, and make sure that nobody claimed the group since.

        :raises FencedError: somebody did
        """
        if not update_claimed(conn, tables, self, epoch=self.epoch):
            raise _fenced(conn, tables, self)

    def wait(self, conn: Connection, tables: Tables) -> None:
        """Lock the group's row."""
        lock(conn, tables, self.group_id)


def claim_group(
    engine: Engine, tables: Tables, group_id: str, owner: TaskRun, *, cluster_id: str, lease: timedelta
) -> Claim:
    """Take the group for this attempt.

    :param cluster_id: the id of the Kafka cluster; remembered at the first claim, compared at every later one
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


def _claim(conn: Connection, tables: Tables, group_id: str, owner: TaskRun, cluster_id: str, lease: timedelta) -> Claim:
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
    if claimed.rowcount != 1:  # only where the database knows no FOR UPDATE
        raise GroupBusyError(f"Group {group_id!r} was claimed by another run at the same moment")
    return Claim(group_id, row.epoch + 1, owner, lease)


def renew_lease(engine: Engine, tables: Tables, held: Claim) -> bool:
    """Say that the attempt lives.

    :return: False where a later attempt took the group over
    """
    return transact(
        engine, lambda conn: update_claimed(conn, tables, held, lease_expires_at=database_now(conn) + held.lease)
    )


def release_group(engine: Engine, tables: Tables, held: Claim) -> None:
    """Let others in at once instead of at the end of the lease."""
    transact(engine, lambda conn: update_claimed(conn, tables, held, lease_owner=None, lease_expires_at=None))


def transact_claimed(engine: Engine, tables: Tables, held: Fence, work: Callable[[Connection], T]) -> T:
    """Run a transaction that writes nothing under an older token.

    :param work: may be called several times, see `transact`
    :raises FencedError: a later attempt took over
    :raises DatabaseUnavailableError: the database could not do it, for a reason that is not in the statements
    """

    def claimed(conn: Connection) -> T:
        held.lock(conn, tables)
        return work(conn)

    with translated_errors(f"The state of group {held.group_id!r} could not be written"):
        return transact(engine, claimed)


def check_claim(engine: Engine, tables: Tables, held: Claim) -> None:
    """Make sure, without a lock, that nobody claimed the group since: what is said here may be untrue a moment later.

    :raises FencedError: somebody did
    """
    with engine.connect() as conn:
        if group_row(conn, tables, held.group_id).epoch != held.epoch:
            raise _fenced(conn, tables, held)


def _fenced(conn: Connection, tables: Tables, held: Claim) -> FencedError:
    row = group_row(conn, tables, held.group_id)
    batches = tables.offset_batches.c
    loads = sa.select(batches.batch_id, batches.state, batches.reason).where(
        batches.consumer_group == held.group_id, batches.kind == "load"
    )
    last = conn.execute(loads.order_by(batches.batch_id.desc()).limit(1)).one_or_none()
    # Whoever abandons a batch takes the group from its attempt, and does not hold it.
    if row.lease_owner is None and last is not None and last.state == "abandoned":
        return FencedError(
            f"Batch {last.batch_id} of group {held.group_id!r} was given up while this attempt ({held.owner}, epoch {held.epoch}) "
            f"was at work: {last.reason}. Nothing of this attempt was written; the next load plans anew."
        )
    return FencedError(
        f"Group {held.group_id!r} was taken over by {row.lease_owner or 'a later attempt'} (epoch {row.epoch}) while "
        f"this attempt ({held.owner}, epoch {held.epoch}) was at work. Nothing of this attempt was written; the other one "
        "carries on with the same batch."
    )


def update_claimed(conn: Connection, tables: Tables, held: Claim, **values: object) -> bool:
    """Write to the group's row under the epoch of a claim; False where it is not the latest."""
    groups = tables.consumer_groups
    mine = (groups.c.group_id == held.group_id) & (groups.c.epoch == held.epoch)
    return conn.execute(groups.update().where(mine).values(**values)).rowcount == 1


def _lock_at_once(conn: Connection, tables: Tables, group_id: str) -> sa.Row[tuple[object, ...]]:
    """Lock the group's row, or find that it is locked: that somebody is committing.

    :raises GroupBusyError: it is, or this transaction's snapshot is older than the row
    """
    groups = tables.consumer_groups
    select = sa.select(groups).where(groups.c.group_id == group_id).with_for_update(nowait=True)
    try:
        row = conn.execute(select).one_or_none()
    except OperationalError as error:
        if sqlstate(error) == _LOCK_NOT_AVAILABLE or "NOWAIT" in database_message(error):
            raise GroupBusyError(f"Group {group_id!r} is being committed by another run right now") from error
        raise
    if row is None:  # Under REPEATABLE READ, what the other run of a first run has just inserted is not visible yet.
        raise GroupBusyError(f"Group {group_id!r} was claimed by another run at the same moment")
    return row
