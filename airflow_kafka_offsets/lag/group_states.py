"""What is stored of many groups, as a look at their lag needs it: a handful of queries, whatever their number."""

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

# Every database takes so many bound values in one statement.
_GROUPS_AT_ONCE = 500


_Stored = tuple[str, int, int, str | None, int | None, datetime | None, datetime | None]
"""A position as it is stored. Plain tuples of plain values: of thousands of groups, they cost the garbage collector nothing,
whose pauses would hold up an event loop."""


@dataclass(frozen=True, slots=True)
class GroupState:
    """What the state tables say of a group.

    :param now: the database's time
    :param known: whether they know the group
    :param cluster_id: the Kafka cluster that it is loaded from; None where that is not known
    :param busy: whether a run holds the group's lease now
    :param stored: its positions
    :param installed: whether there are state tables at all
    """

    now: datetime
    known: bool = False
    cluster_id: str | None = None
    busy: bool = False
    stored: Sequence[_Stored] = ()
    installed: bool = True

    @property
    def topics(self) -> frozenset[str]:
        """The topics that it has positions of."""
        return frozenset(topic for topic, *_ in self.stored)

    def fingerprint(self) -> int:
        """A number that is another one after a position has moved."""
        return hash(frozenset(one[:3] for one in self.stored))

    def committed(self) -> dict[TopicPartition, Committed]:
        """The positions: made anew at every call, since thousands of groups are looked at together."""
        return {
            TopicPartition(topic, partition): Committed(Position(offset, topic_id, epoch), newest, updated_at)
            for topic, partition, offset, topic_id, epoch, newest, updated_at in self.stored
        }


def group_states(conn: Connection, tables: Tables, group_ids: Collection[str]) -> dict[str, GroupState]:
    """The state of every group that is asked for. Without state tables, no group is known.

    :raises LedgerError: the tables are of another version
    """
    now, wanted = database_now(conn), sorted(group_ids)
    if installed_version(conn, tables) is None:
        return {group_id: GroupState(now, installed=False) for group_id in group_ids}
    groups, offsets = tables.consumer_groups.c, tables.consumed_offsets.c
    stored: dict[str, list[_Stored]] = {group_id: [] for group_id in group_ids}
    found: dict[str, GroupState] = {}
    for at in range(0, len(wanted), _GROUPS_AT_ONCE):
        some = wanted[at : at + _GROUPS_AT_ONCE]
        for group_id, *values in conn.execute(
            sa.select(
                offsets.consumer_group,
                offsets.topic,
                offsets.partition,
                offsets.offset_value,
                offsets.topic_id,
                offsets.leader_epoch,
                offsets.record_timestamp,
                offsets.updated_at,
            ).where(offsets.consumer_group.in_(some))
        ):
            stored[group_id].append(tuple(values))
        for row in conn.execute(
            sa.select(groups.group_id, groups.cluster_id, groups.lease_owner, groups.lease_expires_at).where(
                groups.group_id.in_(some)
            )
        ):
            busy = row.lease_owner is not None and row.lease_expires_at > now
            found[row.group_id] = GroupState(now, True, row.cluster_id, busy, stored[row.group_id])
    return {group_id: found.get(group_id, GroupState(now)) for group_id in group_ids}
