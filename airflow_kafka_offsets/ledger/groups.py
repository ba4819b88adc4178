"""Find, insert and lock rows of `consumer_groups`. Claims on them are in `ledger.claims`."""

from __future__ import annotations

from contextlib import nullcontext

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from airflow_kafka_offsets.core.log_identity import check_cluster
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.ledger.install import check_installed
from airflow_kafka_offsets.ledger.tables import Ledger, Tables

_SHOWN = 10

OTHER_CLUSTER = "Correct the connection, or load from the other cluster under a new group_id."


def read_generation(ledger: Ledger, group_id: str) -> int:
    """Return the generation of a group: the number of its rewinds; 0 for an unknown group."""
    with ledger.connect() as conn:
        return stored_generation(conn, ledger.tables, group_id)


def stored_generation(conn: Connection, tables: Tables, group_id: str) -> int:
    """Return the generation of a group, within a transaction."""
    groups = tables.consumer_groups.c
    return conn.scalar(sa.select(groups.generation).where(groups.group_id == group_id)) or 0


def cluster_of(conn: Connection, tables: Tables, group_id: str) -> str | None:
    """Return the id of the Kafka cluster that a group loads from; None where it is not stored.

    :raises ConfigurationError: there are no state tables, or there is no such group
    :raises LedgerError: they are of another version
    """
    check_installed(conn, tables)
    groups = tables.consumer_groups.c
    row = conn.execute(sa.select(groups.cluster_id).where(groups.group_id == group_id)).one_or_none()
    if row is None:
        known = conn.scalars(sa.select(groups.group_id).order_by(groups.group_id).limit(_SHOWN)).all()
        raise ConfigurationError(
            f"The state tables in database {conn.engine.url.database!r} have no group {group_id!r}; "
            f"{'they have ' + ', '.join(map(repr, known)) if known else 'they have none'}"
        )
    cluster_id: str | None = row.cluster_id
    return cluster_id


def lock(conn: Connection, tables: Tables, group_id: str) -> None:
    """Lock a group's row, after waiting for a transaction that has it locked.

    The lock is an update that changes nothing: every SQL database locks a row for that, while some ignore FOR UPDATE.
    """
    groups = tables.consumer_groups
    conn.execute(groups.update().where(groups.c.group_id == group_id).values(epoch=groups.c.epoch))


def lock_group(conn: Connection, tables: Tables, group_id: str, cluster_id: str) -> int:
    """Lock a group's row without claiming the group, and return its generation. The lease and the epoch do not change.

    :param cluster_id: stored for a new group, else compared
    :raises ClusterChangedError: the group belongs to another cluster
    """
    insert_if_missing(conn, tables, group_id, cluster_id)
    lock(conn, tables, group_id)
    row = group_row(conn, tables, group_id)
    check_name(group_id, str(row.group_id))
    check_cluster(group_id, row.cluster_id, cluster_id, OTHER_CLUSTER)
    return int(row.generation)


def wait_for_group(conn: Connection, tables: Tables, group_id: str, cluster_id: str) -> None:
    """Wait for the end of a transaction that has locked or inserted a group's row; change nothing.

    :param cluster_id: for a group without a row: only an insert of the same key waits for an uncommitted insert
    """
    if insert_if_missing(conn, tables, group_id, cluster_id):
        groups = tables.consumer_groups
        conn.execute(groups.delete().where(groups.c.group_id == group_id))
    else:
        lock(conn, tables, group_id)


def check_name(group_id: str, stored: str) -> None:
    """Check that a group's row is its own: where a collation takes two names for one, the row is the other's.

    :raises ConfigurationError: it is another group's
    """
    if stored != group_id:
        raise ConfigurationError(
            f"The database does not distinguish the names {group_id!r} and {stored!r}, and has a group {stored!r}: "
            "choose another group_id. MySQL before 8.0.17 ignores spaces at the end"
        )


def is_known(conn: Connection, tables: Tables, group_id: str) -> bool:
    """Return whether there is a group."""
    groups = tables.consumer_groups.c
    return conn.scalar(sa.select(groups.group_id).where(groups.group_id == group_id)) is not None


def group_row(conn: Connection, tables: Tables, group_id: str) -> sa.Row[tuple[object, ...]]:
    """Return the row of a group that exists."""
    groups = tables.consumer_groups
    return conn.execute(sa.select(groups).where(groups.c.group_id == group_id)).one()


def insert_if_missing(conn: Connection, tables: Tables, group_id: str, cluster_id: str) -> bool:
    """Insert a group's row; return False where it exists."""
    groups = tables.consumer_groups
    if is_known(conn, tables, group_id):
        return False
    # SQLite has one writer at a time.
    savepoint = nullcontext() if conn.dialect.name == "sqlite" else conn.begin_nested()
    try:
        with savepoint:
            conn.execute(groups.insert().values(group_id=group_id, cluster_id=cluster_id, generation=0, epoch=0))
    except IntegrityError:
        return False  # Another run inserted it between the two statements.
    return True
