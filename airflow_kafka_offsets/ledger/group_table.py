"""Which table a group loads into: the answer for loads, replays, rewinds and `verify`; and what is refused because of
it.

What replays of a group are refused is in `replaying.double_loads`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.log_identity import is_other_topic
from airflow_kafka_offsets.core.offsets import OffsetRange, Span, TopicPartition, subtract
from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.exceptions import DoubleLoadError, ForeignBatchError
from airflow_kafka_offsets.ledger.claims import Claim
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.sinks.target_names import existing_table, is_table, same_table_names

log = logging.getLogger(__name__)


class GroupTable(NamedTuple):
    """The table that a group loads into.

    :param batch_id: the batch that the answer is from
    :param kind: of that batch: "load", or "initialize" where nothing was loaded yet
    :param name: as the history has it
    """

    batch_id: int
    kind: str
    name: str


def group_table(conn: Connection, tables: Tables, group_id: str) -> GroupTable | None:
    """Return the table that a group loads into; None where it has no batch yet."""
    batches = tables.offset_batches.c
    row = conn.execute(
        sa.select(batches.batch_id, batches.kind, batches.target_table)
        .where(
            batches.consumer_group == group_id,
            batches.kind.in_(("load", "initialize")),
            batches.state != "abandoned",
            batches.target_table.is_not(None),
        )
        # A load decides; an `initialize` may be left of a load that was abandoned.
        .order_by(sa.case((batches.kind == "load", 0), else_=1), batches.batch_id.desc())
        .limit(1)
    ).one_or_none()
    return GroupTable(*row) if row is not None else None


def tables_of_groups(conn: Connection, tables: Tables) -> list[str]:
    """Return the names of the tables that groups load into, or have loaded into, as the history has them."""
    name = tables.offset_batches.c.target_table
    loads = tables.offset_batches.c.kind.in_(("load", "initialize"))
    names = conn.scalars(sa.select(name).where(loads, name.is_not(None)).distinct().order_by(name))
    return [name for name in names if is_table(name)]


def loads_into(conn: Connection, tables: Tables, group_id: str, target: str) -> bool:
    """Return whether a table is the one that a group loads into."""
    known = group_table(conn, tables, group_id)
    return known is not None and known.name in same_table_names(conn, target)


def keep_to_table(claim: Claim, topics: Sequence[str], target: str) -> None:
    """Check that a group goes on loading into its table, which has the records before its positions.

    If that table does not exist any more, it is taken for renamed to the target, and the history gets the new name. If
    it was dropped instead, `verify` reports its rows as missing, as it does after a table was dropped and created
    again. A target that is no table is never taken for renamed.

    :param target: the name of the load's table
    :raises ForeignBatchError: the group loads into another table; the message says how to move to a new one
    :raises FencedError: a later attempt took over
    """
    group_id, tables = claim.group_id, claim.ledger.tables
    with claim.ledger.connect() as conn:
        known = group_table(conn, tables, group_id)
        if known is None or known.kind != "load" or known.name in same_table_names(conn, target):
            return
        old_names = same_table_names(conn, known.name)
        if not (is_table(known.name) and is_table(target)) or existing_table(conn, known.name) is not None:
            raise _another_table(group_id, known, topics, target)
    batches = tables.offset_batches
    rename = (
        batches.update()
        .where(batches.c.consumer_group == group_id, batches.c.target_table.in_(old_names))
        .values(target_table=target)
    )
    renamed = claim.transact(lambda conn: conn.execute(rename).rowcount)
    log.warning(
        "Table %r of group %r does not exist any more: it is taken for renamed to %r, and %s the new "
        "name from now on. If it was dropped, its rows are missing: 'airflow kafka-offsets verify' shows which",
        known.name,
        group_id,
        target,
        count(renamed, "batch of the history has", "batches of the history have"),
    )


def _another_table(group_id: str, known: GroupTable, topics: Sequence[str], target: str) -> ForeignBatchError:
    scope = " ".join(f"--topic {topic}" for topic in topics)
    return ForeignBatchError(
        f"Group {group_id!r} loads into table {known.name!r}, last with batch {known.batch_id}; this load is into "
        f"{target!r}, and would get only the records that the other one does not load. Nothing was loaded. Give every "
        f"load a group_id of its own. To go on in {target!r} from the positions of this group, choose a new group_id, "
        f"and copy the positions to it: airflow kafka-offsets rewind NEW_GROUP {scope} --to-group {group_id} "
        "--new-group --conn-id CONN_ID --execute."
    )


def refuse_replayed(
    conn: Connection, tables: Tables, group_id: str, target: str, ranges: Sequence[OffsetRange]
) -> None:
    """Check that no replay has appended offsets to a load's table, before the group's first load into it, that it would
    load.

    :param ranges: of the load; every offset from their starts on will be loaded, by this batch or a later one
    :raises DoubleLoadError: a replay has appended such offsets, and they were not replaced since
    """
    starts = {range_.topic_partition: range_ for range_ in ranges}
    history = _replays_and_removals(conn, tables, group_id, target, {tp.topic for tp in starts})
    for row in history:
        tp = TopicPartition(row.topic, row.partition)
        planned = starts.get(tp)
        if row.replaced_start_offset is not None or planned is None or is_other_topic(row.topic_id, planned.topic_id):
            continue
        appended = [(max(row.start_offset, planned.start), row.end_offset)]
        for start, end in subtract(appended, _replaced_since(row, history)):
            if start < end:
                raise DoubleLoadError(
                    f"Batch {row.batch_id}, a replay of group {group_id!r}, has appended {tp} {start}..{end} to table "
                    f"{target!r}. The group begins at offset {planned.start}, and would load these records into the "
                    "same table again. Nothing was loaded. Load into another table, or into a sink with an "
                    f"upsert_key; or let the group begin after them: airflow kafka-offsets rewind {group_id} --topic "
                    f"{tp.topic}:{tp.partition} --to-offset {row.end_offset} --conn-id CONN_ID --execute."
                )


def _replays_and_removals(
    conn: Connection, tables: Tables, group_id: str, target: str, topics: Iterable[str]
) -> Sequence[sa.Row[Any]]:
    """Return the ranges of a group's batches that appended records to a table by a replay, or removed its rows."""
    batches, ranges = tables.offset_batches.c, tables.offset_ranges.c
    is_replay = sa.and_(batches.kind == "replay", ranges.records > 0)
    return conn.execute(
        sa.select(tables.offset_ranges, batches.committed_at, batches.records_since_ms)
        .join(tables.offset_batches, ranges.batch_id == batches.batch_id)
        .where(
            batches.consumer_group == group_id,
            batches.state == "committed",
            batches.target_table.in_(same_table_names(conn, target)),
            ranges.topic.in_(topics),
            sa.or_(ranges.replaced_start_offset.is_not(None), is_replay),
        )
        .order_by(ranges.batch_id)
    ).all()


def _replaced_since(appended: sa.Row[Any], history: Iterable[sa.Row[Any]]) -> list[Span]:
    """Return the offsets of a partition whose rows later batches removed from the table.

    One that takes a span of time removed some of them; it is not known which.
    """
    return [
        (later.replaced_start_offset, later.replaced_end_offset)
        for later in history
        if later.replaced_start_offset is not None
        and later.records_since_ms is None
        and (later.topic, later.partition) == (appended.topic, appended.partition)
        and later.committed_at >= appended.committed_at
        and not is_other_topic(later.topic_id, appended.topic_id)
    ]
