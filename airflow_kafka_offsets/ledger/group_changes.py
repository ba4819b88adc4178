"""Delete and rename groups. What they loaded stays in the history, and in the target."""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.history import DELETE, RENAME, RENAMED, UNFINISHED_STATES
from airflow_kafka_offsets.core.instants import format_instant
from airflow_kafka_offsets.core.offsets import OffsetRange
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.database.errors import translated_errors
from airflow_kafka_offsets.database.transactions import database_now, transact
from airflow_kafka_offsets.escaping import command_line
from airflow_kafka_offsets.exceptions import ConfigurationError, GroupBusyError, OpenBatchError
from airflow_kafka_offsets.ledger.batch_rows import TaskRun, insert_batch, latest_batch
from airflow_kafka_offsets.ledger.dead_letters import DROPPED, EMPTY
from airflow_kafka_offsets.ledger.group_table import group_table
from airflow_kafka_offsets.ledger.groups import cluster_of, group_row, insert_if_missing, lock
from airflow_kafka_offsets.ledger.overview import group_summaries
from airflow_kafka_offsets.ledger.positions import stored_positions
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.sinks.target_names import is_table, targets_in


class GroupContents(NamedTuple):
    """What the state tables have of a group.

    :param target: the name of the target that it loads into; None if it has loaded nothing
    :param dead_letters: those with contents
    """

    group: str
    target: str | None
    partitions: int
    batches: int
    dead_letters: int


def group_contents(conn: Connection, tables: Tables, group_id: str) -> GroupContents:
    """Return what the state tables have of a group that can be deleted or renamed now.

    :raises ConfigurationError: there is no such group, or it was deleted
    :raises GroupBusyError: a run holds it
    :raises OpenBatchError: it has a batch that is not finished
    """
    cluster_of(conn, tables, group_id)  # raises if there is no such group
    _, (group,) = group_summaries(conn, tables, [group_id])
    unchanged = "Nothing was changed."
    if group.is_deleted:
        raise ConfigurationError(without_positions(conn, tables, group_id, ""))
    if group.held_by is not None:
        raise GroupBusyError(
            f"Group {group_id!r} is held by {group.held_by}. {unchanged} Wait until it has "
            "ended; a run that was killed holds it until HELD-UNTIL of 'kafka-offsets groups'."
        )
    batches = tables.offset_batches.c
    of_group = batches.consumer_group == group_id
    unfinished = sa.select(batches.batch_id, batches.state).where(of_group, batches.state.in_(UNFINISHED_STATES))
    if found := conn.execute(unfinished.order_by(batches.batch_id)).all():
        raise OpenBatchError(
            f"Group {group_id!r} has {first_few(f'batch {row.batch_id} ({row.state})' for row in found)}. {unchanged} "
            f"Let its task finish it, or abandon it: {command_line('abandon', group_id)} --batch "
            f"{found[0].batch_id} --conn-id CONN_ID --reason WHY."
        )
    if group.between:
        raise OpenBatchError(
            f"Group {group_id!r} is between two commits with "
            f"{first_few(f'batch {batch.batch_id} ({batch.state})' for batch in group.between)}. {unchanged} Run its "
            "load once, which completes them."
        )
    known = group_table(conn, tables, group_id)
    number = conn.scalar(sa.select(sa.func.count()).where(of_group)) or 0
    return GroupContents(group_id, known and known.name, group.partitions, number, group.dead_letters)


def without_positions(conn: Connection, tables: Tables, group_id: str, otherwise: str) -> str:
    """Return why a group has no positions, and what to do.

    :param otherwise: what to do if it was neither deleted nor renamed
    """
    change = deleted_or_renamed(conn, tables, group_id)
    return f"There are no stored positions of group {group_id!r} yet: {otherwise}" if change is None else change


def deleted_or_renamed(conn: Connection, tables: Tables, group_id: str) -> str | None:
    """Return that a group was deleted or renamed last, and what to do; None if it was not."""
    batches = tables.offset_batches.c
    of_change = latest_batch(tables, group_id, batches.state == "committed").scalar_subquery()
    query = sa.select(batches.batch_id, batches.kind, batches.scenario).where(batches.batch_id == of_change)
    last = conn.execute(query).one_or_none()
    if last is not None and last.kind == DELETE:
        return (
            f"Group {group_id!r} was deleted, by batch {last.batch_id} of its history: "
            f"'{command_line('rewind', group_id, '--undo')}' restores its positions"
        )
    if last is not None and last.kind == RENAMED:
        return f"Group {group_id!r} was {last.scenario}, by batch {last.batch_id} of its history: use that name"
    return None


def name_since(conn: Connection, tables: Tables, group_id: str, batch_id: int) -> str | None:
    """Return the name that a renamed group has now; None if no history has it.

    :param batch_id: that records the change in the history of the former name
    """
    batches = tables.offset_batches.c
    is_change = (batches.kind == RENAME, batches.scenario == f"renamed from {group_id!r}", batches.batch_id > batch_id)
    query = sa.select(batches.consumer_group).where(*is_change).order_by(batches.batch_id).limit(1)
    name: str | None = conn.scalar(query)
    return name


def delete_group(ledger: Ledger, group_id: str, *, who: str, reason: str) -> int:
    """Remove the positions of a group, and the contents of its dead letters. Its history stays, and so do its rows in
    the target: they count in the check that no record is loaded twice, also for a new group of the same name.

    :param who: the author, for the history
    :param reason: for the history
    :return: the id of the batch that records it
    :raises KafkaOffsetsError: see `group_contents`; nothing was changed
    """
    tables = ledger.tables

    def work(conn: Connection) -> int:
        lock(conn, tables, group_id)
        group_contents(conn, tables, group_id)
        ranges = [
            OffsetRange(
                tp.topic, tp.partition, old.offset, old.offset, old.offset, old.topic_id, "removed", old.leader_epoch
            )
            for tp, old in sorted(stored_positions(conn, tables, group_id).items())
        ]
        batch_id = _record(conn, tables, group_id, DELETE, "delete", Plan(tuple(ranges)), who, reason)
        offsets, dead_letters = tables.consumed_offsets, tables.dead_letters
        conn.execute(offsets.delete().where(offsets.c.consumer_group == group_id))
        of_group = (dead_letters.c.consumer_group == group_id, dead_letters.c.error_class.is_distinct_from(DROPPED))
        error = f"dropped by {who} at {format_instant(database_now(conn))} with the group: {reason}"
        conn.execute(dead_letters.update().where(*of_group).values(**EMPTY, error=error))
        # A new group of this name may load from another cluster.
        _fence(conn, tables, group_id, cluster_id=None)
        return batch_id

    with translated_errors(f"Group {group_id!r} was not deleted", "Try again."):
        return transact(ledger.engine, work)


def rename_group(ledger: Ledger, group_id: str, new_id: str, *, who: str, reason: str) -> int:
    """Give a group, with its positions, history and dead letters, another name. The history under the old name says it.

    :param who: the author, for the history
    :param reason: for the history
    :return: the id of the batch that records it in the history of the group
    :raises ConfigurationError: there is a group of that name, or the target knows the group by its name; nothing was
        changed
    :raises KafkaOffsetsError: see `group_contents`; nothing was changed
    """
    tables = ledger.tables

    def work(conn: Connection) -> int:
        cluster_of(conn, tables, group_id)
        insert_if_missing(conn, tables, new_id, "")
        for name in sorted((group_id, new_id)):
            lock(conn, tables, name)
        check_new_name(conn, tables, group_contents(conn, tables, group_id), new_id)
        old, new = group_row(conn, tables, group_id), group_row(conn, tables, new_id)
        for table in (tables.consumed_offsets, tables.offset_batches, tables.dead_letters, tables.erased_offsets):
            of_group = table.update().where(table.c.consumer_group == group_id)
            conn.execute(of_group.values(consumer_group=new_id))
        generation, epoch = max(old.generation, new.generation), max(old.epoch, new.epoch)
        _fence(conn, tables, new_id, cluster_id=old.cluster_id, generation=generation + 1, epoch=epoch + 1)
        _fence(conn, tables, group_id, cluster_id=None)
        _record(conn, tables, group_id, RENAMED, f"renamed to {new_id!r}", Plan(()), who, reason)
        return _record(conn, tables, new_id, RENAME, f"renamed from {group_id!r}", Plan(()), who, reason)

    with translated_errors(f"Group {group_id!r} was not renamed", "Try again."):
        return transact(ledger.engine, work)


def check_new_name(conn: Connection, tables: Tables, group: GroupContents, new_id: str) -> None:
    """Check that a group can get another name.

    :raises ConfigurationError: it cannot
    """
    batches = tables.offset_batches.c
    other = sa.select(batches.batch_id).where(batches.consumer_group == new_id, batches.kind != RENAMED).limit(1)
    positions = tables.consumed_offsets.c.consumer_group
    if conn.scalar(other) is not None or conn.scalar(sa.select(positions).where(positions == new_id).limit(1)):
        raise ConfigurationError(
            f"The state tables have positions or a history of group {new_id!r}. Nothing was changed; choose another "
            "name."
        )
    if group.target is not None and not all(map(is_table, targets_in(group.target))):
        raise ConfigurationError(
            f"Group {group.group!r} loads into {group.target!r}, whose commits have the name of the group. Nothing was "
            f"changed; start a new group at its positions: {command_line('rewind', new_id, '--to-group', group.group)} "
            "--topic TOPIC --new-group --conn-id CONN_ID --execute --reason WHY."
        )


def _fence(conn: Connection, tables: Tables, group_id: str, **values: object) -> None:
    """Raise the epoch of a group against paused attempts, and the generation against saved previews."""
    groups = tables.consumer_groups
    raised = {"epoch": groups.c.epoch + 1, "generation": groups.c.generation + 1, "lease_owner": None}
    conn.execute(groups.update().where(groups.c.group_id == group_id).values(**{**raised, **values}))


def _record(
    conn: Connection, tables: Tables, group_id: str, kind: str, what: str, plan: Plan, who: str, reason: str
) -> int:
    """Insert the batch that records a change, and return its id."""
    now, generation = database_now(conn), group_row(conn, tables, group_id).generation + 1
    values: dict[str, Any] = {"state": "committed", "planned_at": now, "committed_at": now, "scenario": what}
    values |= {"who": who, "reason": reason}
    run = TaskRun.of_this_process()
    return insert_batch(conn, tables, group_id, run, kind, generation, plan, **values).batch_id
