"""What is stored of many groups, as a look at their lag needs it: a handful of queries, whatever their number."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.lag import Committed
from airflow_kafka_offsets.ledger.connection import database_now
from airflow_kafka_offsets.ledger.install import installed_version
from airflow_kafka_offsets.ledger.positions import read_ahead
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.offsets import Position, TopicPartition

# Every database takes so many bound values in one statement.
_GROUPS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class GroupState:
    """What the state tables say of a group.

    :param now: the database's time
    :param known: whether they know the group
    :param cluster_id: the Kafka cluster that it is loaded from; None where that is not known
    :param busy: whether a run holds the group's lease now
    """

    now: datetime
    known: bool = False
    cluster_id: str | None = None
    busy: bool = False
    committed: Mapping[TopicPartition, Committed] = field(default_factory=dict)


def group_states(conn: Connection, tables: Tables, group_ids: Collection[str]) -> dict[str, GroupState]:
    """The state of every group that is asked for. Without state tables, no group is known.

    :raises LedgerError: the tables are of another version
    """
    now, wanted = database_now(conn), sorted(group_ids)
    if installed_version(conn, tables) is None:
        return {group_id: GroupState(now) for group_id in group_ids}
    groups = tables.consumer_groups.c
    committed: dict[str, dict[TopicPartition, Committed]] = {group_id: {} for group_id in group_ids}
    found: dict[str, GroupState] = {}
    for at in range(0, len(wanted), _GROUPS_AT_ONCE):
        some = wanted[at : at + _GROUPS_AT_ONCE]
        for group_id, tp, one in _positions(conn, tables, some):
            committed[group_id][tp] = one
        for row in conn.execute(
            sa.select(groups.group_id, groups.cluster_id, groups.lease_owner, groups.lease_expires_at).where(
                groups.group_id.in_(some)
            )
        ):
            busy = row.lease_owner is not None and row.lease_expires_at > now
            found[row.group_id] = GroupState(now, True, row.cluster_id, busy, committed[row.group_id])
    return {group_id: found.get(group_id, GroupState(now)) for group_id in group_ids}


def _positions(
    conn: Connection, tables: Tables, group_ids: Collection[str]
) -> Iterator[tuple[str, TopicPartition, Committed]]:
    offsets = tables.consumed_offsets
    for row in conn.execute(sa.select(offsets).where(offsets.c.consumer_group.in_(group_ids))):
        ahead = read_ahead(row.ahead_offset, row.ahead_before_ms)
        position = Position(row.offset_value, row.topic_id, row.leader_epoch, ahead)
        yield (
            row.consumer_group,
            TopicPartition(row.topic, row.partition),
            Committed(position, row.record_timestamp, row.updated_at),
        )
