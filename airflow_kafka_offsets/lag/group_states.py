"""The stored state of many groups, read with a few queries whatever their number."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.database.transactions import database_now
from airflow_kafka_offsets.lag.report import Committed
from airflow_kafka_offsets.ledger.install import installed_version
from airflow_kafka_offsets.ledger.tables import Tables

# Databases limit the bound values of a statement.
_GROUPS_PER_QUERY = 500

_COLUMNS = ("topic", "partition", "offset_value", "topic_id", "leader_epoch", "record_timestamp", "updated_at")

_Stored = tuple[str, int, int, str | None, int | None, datetime | None, datetime | None]
"""A position as it is stored. The garbage collector does not track plain tuples of plain values: objects for thousands of
groups would make its pauses longer, and these block an event loop."""


@dataclass(frozen=True, slots=True)
class GroupState:
    """The state of a group in the state tables.

    :param now: the database's time
    :param known: whether the state tables have the group
    :param cluster_id: the Kafka cluster that the group is loaded from; None if it is not known
    :param busy: whether a run holds the group's lease
    :param stored: the group's positions
    :param installed: whether the state tables exist
    """

    now: datetime
    known: bool = False
    cluster_id: str | None = None
    busy: bool = False
    stored: Sequence[_Stored] = ()
    installed: bool = True

    @property
    def topics(self) -> frozenset[str]:
        """Return the topics with positions."""
        return frozenset(topic for topic, *_ in self.stored)

    def fingerprint(self) -> int:
        """Return a number that changes when a position moves."""
        return hash(frozenset(row[:3] for row in self.stored))

    def committed(self) -> dict[TopicPartition, Committed]:
        """Return the positions as objects, created at each call; see `_Stored`."""
        return {
            TopicPartition(topic, partition): Committed(Position(offset, topic_id, epoch), newest, updated_at)
            for topic, partition, offset, topic_id, epoch, newest, updated_at in self.stored
        }


def group_states(conn: Connection, tables: Tables, group_ids: Collection[str]) -> dict[str, GroupState]:
    """Return the state of each group, known or not. Without state tables, no group is known.

    :raises LedgerError: the state tables are of another version
    """
    now, wanted = database_now(conn), sorted(group_ids)
    if installed_version(conn, tables) is None:
        return {group_id: GroupState(now, installed=False) for group_id in wanted}
    groups, offsets = tables.consumer_groups.c, tables.consumed_offsets.c
    positions = sa.select(offsets.consumer_group, *(offsets[name] for name in _COLUMNS))
    leases = sa.select(groups.group_id, groups.cluster_id, groups.lease_owner, groups.lease_expires_at)
    stored: dict[str, list[_Stored]] = {group_id: [] for group_id in wanted}
    states = {group_id: GroupState(now) for group_id in wanted}
    for index in range(0, len(wanted), _GROUPS_PER_QUERY):
        some = wanted[index : index + _GROUPS_PER_QUERY]
        for group_id, *position in conn.execute(positions.where(offsets.consumer_group.in_(some))):
            stored[group_id].append(tuple(position))
        for row in conn.execute(leases.where(groups.group_id.in_(some))):
            busy = row.lease_owner is not None and row.lease_expires_at > now
            states[row.group_id] = GroupState(now, True, row.cluster_id, busy, stored[row.group_id])
    return states
