"""Who may work for a consumer group: the lease, and the epoch that fences earlier attempts.

The lease only says whether the holder is alive, so that a second run does not redo live work. What makes two attempts
safe is the epoch: every claim raises it, and nothing is written under an older one.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    DatabaseBusyError,
    FencedError,
    GroupBusyError,
    LedgerError,
)
from airflow_kafka_offsets.identity import check_cluster
from airflow_kafka_offsets.ledger.connection import database_now, outages_told, said, sqlstate, transact
from airflow_kafka_offsets.ledger.install import check_installed
from airflow_kafka_offsets.ledger.tables import Tables

T = TypeVar("T")

_INSUFFICIENT_PRIVILEGE, _LOCK_NOT_AVAILABLE = "42501", "55P03"
_SHOWN = 10
_OTHER_CLUSTER = "Correct the connection, or load from the other cluster under a new group_id."


@dataclass(frozen=True, slots=True)
class TaskRun:
    """Who asks: an Airflow task instance, or a process of its own.

    Tries of one task instance are the same asker: a later try takes over from an earlier one at once.
    """

    run_id: str
    dag_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None
    try_number: int | None = None

    @classmethod
    def of_this_process(cls) -> TaskRun:
        """For scripts and notebooks: an identity that no other process has."""
        return cls(run_id=f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}")

    def __str__(self) -> str:
        if self.dag_id is None:
            return f"process {self.run_id}"
        mapped = f" map index {self.map_index}" if self.map_index is not None and self.map_index >= 0 else ""
        return f"dag {self.dag_id!r} task {self.task_id!r} run {self.run_id!r}{mapped}"


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


def claim(engine: Engine, tables: Tables, group_id: str, owner: TaskRun, *, cluster_id: str, lease: timedelta) -> Claim:
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
        if sqlstate(error) == _INSUFFICIENT_PRIVILEGE or "readonly database" in said(error):
            raise LedgerError(
                f"User {engine.url.username!r} of database {engine.url.database!r} may not write to the state tables: "
                f"{said(error)}. GRANT SELECT, INSERT, UPDATE and DELETE on them, and USAGE on their sequence."
            ) from error
        raise


def _claim(conn: Connection, tables: Tables, group_id: str, owner: TaskRun, cluster_id: str, lease: timedelta) -> Claim:
    groups = tables.consumer_groups
    _insert_if_missing(conn, tables, group_id, cluster_id)
    row = _lock_at_once(conn, tables, group_id)
    check_cluster(group_id, row.cluster_id, cluster_id, _OTHER_CLUSTER)
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


def generation(engine: Engine, tables: Tables, group_id: str) -> int:
    """How often the positions of a group were moved otherwise than by loading; 0 where the group is not known."""
    with engine.connect() as conn:
        return stored_generation(conn, tables, group_id)


def stored_generation(conn: Connection, tables: Tables, group_id: str) -> int:
    """The same, within a transaction."""
    groups = tables.consumer_groups.c
    return conn.scalar(sa.select(groups.generation).where(groups.group_id == group_id)) or 0


def cluster_of(conn: Connection, tables: Tables, group_id: str) -> str | None:
    """The id of the Kafka cluster that a group loads from, where it is known.

    :raises ConfigurationError: there are no state tables, or they know no such group
    :raises LedgerError: they are of another version
    """
    check_installed(conn, tables)
    groups = tables.consumer_groups.c
    row = conn.execute(sa.select(groups.cluster_id).where(groups.group_id == group_id)).one_or_none()
    if row is None:
        known = conn.scalars(sa.select(groups.group_id).order_by(groups.group_id).limit(_SHOWN)).all()
        raise ConfigurationError(
            f"The state tables in database {conn.engine.url.database!r} know no group {group_id!r}; "
            f"{'they know ' + ', '.join(map(repr, known)) if known else 'they know none'}"
        )
    cluster_id: str | None = row.cluster_id
    return cluster_id


def renew(engine: Engine, tables: Tables, held: Claim) -> bool:
    """Say that the attempt lives.

    :return: False where a later attempt took the group over
    """
    return transact(
        engine, lambda conn: update_claimed(conn, tables, held, lease_expires_at=database_now(conn) + held.lease)
    )


def release(engine: Engine, tables: Tables, held: Claim) -> None:
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

    with outages_told(f"The state of group {held.group_id!r} could not be written"):
        return transact(engine, claimed)


def lock(conn: Connection, tables: Tables, group_id: str) -> None:
    """Lock the group's row, waiting for whoever holds it.

    By an update that changes nothing: every SQL database takes a lock for that, while some ignore FOR UPDATE.
    """
    groups = tables.consumer_groups
    conn.execute(groups.update().where(groups.c.group_id == group_id).values(epoch=groups.c.epoch))


def lock_group(conn: Connection, tables: Tables, group_id: str, cluster_id: str) -> int:
    """Lock the row of a group without claiming it: its lease and its epoch stay as they are.

    :param cluster_id: remembered where the group is new, else compared
    :return: the group's generation
    :raises ClusterChangedError: the group belongs to another cluster
    """
    _insert_if_missing(conn, tables, group_id, cluster_id)
    lock(conn, tables, group_id)
    row = _group(conn, tables, group_id)
    check_cluster(group_id, row.cluster_id, cluster_id, _OTHER_CLUSTER)
    return int(row.generation)


def wait_for_group(conn: Connection, tables: Tables, group_id: str, cluster_id: str) -> None:
    """Wait until another transaction that locks the row of a group, or has inserted it, is over; change nothing.

    :param cluster_id: for a group without a row: only an insert of the same key waits for one that is not committed
    """
    if _insert_if_missing(conn, tables, group_id, cluster_id):
        groups = tables.consumer_groups
        conn.execute(groups.delete().where(groups.c.group_id == group_id))
    else:
        lock(conn, tables, group_id)


def check_claim(engine: Engine, tables: Tables, held: Claim) -> None:
    """Make sure, without a lock, that nobody claimed the group since: what is said here may be untrue a moment later.

    :raises FencedError: somebody did
    """
    with engine.connect() as conn:
        if _group(conn, tables, held.group_id).epoch != held.epoch:
            raise _fenced(conn, tables, held)


def _group(conn: Connection, tables: Tables, group_id: str) -> sa.Row[tuple[object, ...]]:
    groups = tables.consumer_groups
    return conn.execute(sa.select(groups).where(groups.c.group_id == group_id)).one()


def _fenced(conn: Connection, tables: Tables, held: Claim) -> FencedError:
    row = _group(conn, tables, held.group_id)
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
        if sqlstate(error) == _LOCK_NOT_AVAILABLE or "NOWAIT" in said(error):
            raise GroupBusyError(f"Group {group_id!r} is being committed by another run right now") from error
        raise
    if row is None:  # Under REPEATABLE READ, what the other run of a first run has just inserted is not visible yet.
        raise GroupBusyError(f"Group {group_id!r} was claimed by another run at the same moment")
    return row


def _insert_if_missing(conn: Connection, tables: Tables, group_id: str, cluster_id: str) -> bool:
    """Insert the row of a group; return False where there is one."""
    groups = tables.consumer_groups
    if conn.scalar(sa.select(groups.c.group_id).where(groups.c.group_id == group_id)) is not None:
        return False
    # SQLite's transaction already excludes every other writer.
    savepoint = nullcontext() if conn.dialect.name == "sqlite" else conn.begin_nested()
    try:
        with savepoint:
            conn.execute(groups.insert().values(group_id=group_id, cluster_id=cluster_id, generation=0, epoch=0))
    except IntegrityError:
        return False  # The other run of a first run inserted it between the two statements.
    return True
