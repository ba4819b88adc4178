"""Records that would be duplicated in a table: those that another group has loaded into it, and those that a replay has
appended.

Every plan is checked under one lock of the state tables, and planned batches count as written: two plans cannot miss
each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.chunks import portions
from airflow_kafka_offsets.core.history import DELETE, OPEN_STATES
from airflow_kafka_offsets.core.log_identity import is_other_topic
from airflow_kafka_offsets.core.offsets import OffsetRange, Span, TopicPartition, subtract
from airflow_kafka_offsets.database.mysql import is_mysql
from airflow_kafka_offsets.database.transactions import stream
from airflow_kafka_offsets.escaping import command_line
from airflow_kafka_offsets.exceptions import DoubleLoadError
from airflow_kafka_offsets.ledger.batch_rows import deletion_of, last_deletion, next_move
from airflow_kafka_offsets.ledger.group_changes import deleted_or_renamed
from airflow_kafka_offsets.ledger.group_table import AT_ONCE, group_tables, names_of
from airflow_kafka_offsets.ledger.tables import SCHEMA_VERSION, Tables
from airflow_kafka_offsets.sinks.target_names import TargetNames


def lock_plans(conn: Connection, tables: Tables) -> None:
    """Wait for other transactions that plan batches, and make later ones wait for this one.

    A transaction that also locks a group must lock the group first.
    """
    version = tables.schema_version
    conn.execute(version.update().where(version.c.version == SCHEMA_VERSION).values(version=version.c.version))


def groups_into(
    conn: Connection, tables: Tables, target: str, topics: Collection[str], *, besides: str
) -> dict[str, str]:
    """Return the groups that load topics into a target, each with the target that they have in common with it.

    :param besides: a group to leave out
    """
    stored, batches, ranges = tables.consumed_offsets.c, tables.offset_batches.c, tables.offset_ranges.c
    groups = tables.consumer_groups.c.group_id
    # Of a first load, no position is stored yet.
    is_open: sa.ColumnElement[bool] = sa.and_(batches.kind == "load", batches.state.in_(OPEN_STATES))
    if is_mysql(conn.dialect):  # which has an index of this column, and none of open loads alone
        is_open = sa.column("open_load").is_not(None)
    first_loads = sa.select(batches.consumer_group).join(tables.offset_ranges, ranges.batch_id == batches.batch_id)
    has_position = sa.exists().where(stored.consumer_group == groups, stored.topic.in_(topics))
    found = sa.union(sa.select(groups).where(has_position), first_loads.where(is_open, ranges.topic.in_(topics)))
    names = TargetNames(conn, tables.offset_batches)
    known = group_tables(conn, tables, sorted(set(conn.scalars(found)) - {besides}))
    shared = {group_id: names.shared(known[group_id].name, target) for group_id in sorted(known)}
    # Of a deleted group, the rows are still there, whatever a new group of its name loads, and where.
    is_deletion = batches.kind == sa.literal_column(f"'{DELETE}'")  # as in `deletion_of`
    for group_id in sorted({*conn.scalars(first_loads.where(is_deletion, ranges.topic.in_(topics)))} - {besides}):
        if shared.get(group_id) is None:
            of_loads = (batches.consumer_group == group_id, batches.kind == "load", batches.state != "abandoned")
            former = names_of(conn, tables, target, *of_loads, shared=True)
            shared[group_id] = next((names.shared(name, target) for name in former), None)
    return {group_id: name for group_id, name in shared.items() if name is not None}


def refuse_loaded(
    conn: Connection,
    tables: Tables,
    group_id: str,
    target: str,
    ranges: Sequence[OffsetRange],
    *,
    beside_others: bool = False,
) -> None:
    """Check that the offsets which a group is about to load are not in its target already.

    Only plans after the last load of a partition are compared: earlier ones were compared then. A partition whose
    position was moved, or is new, is compared with the whole history.

    :param ranges: of the plan; every offset from their starts on will be loaded, by this batch or a later one
    :param beside_others: whether other groups may load the same offsets into it
    :raises DoubleLoadError: a replay has appended such offsets, or another group has loaded them, and they were not
        replaced since
    """
    starts = {range_.topic_partition: range_ for range_ in ranges}
    if not starts:
        return
    lock_plans(conn, tables)
    loads, names = _last_loads(conn, tables, group_id), TargetNames(conn, tables.offset_batches)
    deleted = deletion_of(conn, tables, group_id)
    topics = {tp.topic for tp in starts}
    # The undo of a deletion may have left them out, and their rows stayed.
    begun = {tp for tp, range_ in starts.items() if not range_.continues}
    written = []
    if not beside_others:
        groups = groups_into(conn, tables, target, topics, besides=group_id) | ({group_id: target} if deleted else {})
        batches, last = tables.offset_batches.c, min(loads.get(tp, 0) for tp in starts)
        for some in portions(sorted(groups), AT_ONCE):
            of_groups = batches.consumer_group.in_(some)
            written.append(_written(tables, topics).where(of_groups, batches.batch_id > last))
        if begun and not deleted and last_deletion(conn, tables, group_id):
            written += _own(tables, group_id, begun)
    # From its first load of a topic on, nothing is replayed into the table but by key, or in the place of other rows.
    if first_topics := topics - {tp.topic for tp in loads}:
        written += _replayed(conn, tables, target, first_topics, group_id if beside_others else None)
    for row in chain.from_iterable(stream(conn, query) for query in written):
        planned = starts.get(TopicPartition(row.topic, row.partition))
        is_output = row.kind == "load" or row.replaced_start_offset is not None
        is_own = row.consumer_group == group_id and is_output and row.batch_id > deleted
        if planned is None or (is_own and planned.topic_partition not in begun):
            continue
        if row.batch_id > loads.get(planned.topic_partition, 0):
            _refuse_double(conn, tables, names, row, planned, group_id, target)


def _refuse_double(
    conn: Connection, tables: Tables, names: TargetNames, row: Any, planned: OffsetRange, group_id: str, target: str
) -> None:
    """Raise if a range that was written, or is about to be, has offsets which a group is about to load into its target.

    :param row: of the range and its batch
    :param planned: the range of the same partition that the group has planned
    """
    shared, span = names.shared(row.target_table, target), (max(row.start_offset, planned.start), row.end_offset)
    if shared is None or span[0] >= span[1] or is_other_topic(row.topic_id, planned.topic_id):
        return
    for start, end in subtract([span], _removed_since(conn, tables, names, row)):
        if start < end:
            what = f"{planned.topic_partition} {start}..{end}"
            raise _double_load(conn, tables, row, what, group_id, shared, planned)


def refuse_loaded_by_others(
    conn: Connection, tables: Tables, group_id: str, target: str, ranges: Sequence[OffsetRange]
) -> None:
    """Check that a replay which replaces the output of a group brings no record back beside that of another group.

    Where both have output of an offset, their loads were told to share the table.

    :raises DoubleLoadError: only another group has output of an offset
    """
    others = groups_into(conn, tables, target, {range_.topic for range_ in ranges}, besides=group_id)
    if not others:
        return
    own = defaultdict[TopicPartition, list[Span]](list)
    for _, range_, span in written_output(conn, tables, {group_id}, target, ranges, is_read=True):
        own[range_.topic_partition].append(span)
    for row, range_, span in written_output(conn, tables, others, target, ranges):
        for first, last in subtract([span], own[range_.topic_partition]):
            raise DoubleLoadError(
                f"Group {row.consumer_group!r} {_has(row, 'load')} {range_.topic_partition} {first}..{last} into table "
                f"{others[row.consumer_group]!r} with batch {row.batch_id}. replace=True removes only what group "
                f"{group_id!r} has written, so that these records would be duplicated. Nothing was written. Replay "
                f"them for group_id={row.consumer_group!r} with replace=True."
            )


def written_output(
    conn: Connection,
    tables: Tables,
    groups: Collection[str],
    target: str,
    ranges: Sequence[OffsetRange],
    *,
    is_read: bool = False,
) -> Iterator[tuple[Any, OffsetRange, Span]]:
    """Yield the offsets of ranges that groups have output of in a target, each with the row of its batch's range.

    :param is_read: whether offsets that groups have read count, too, if they had no records
    """
    names, stored = TargetNames(conn, tables.offset_batches), tables.offset_ranges.c
    written = _written(tables, {range_.topic for range_ in ranges}, is_read=is_read).where(
        stored.start_offset < max(range_.end for range_ in ranges),
        stored.end_offset > min(range_.start for range_ in ranges),
    )
    of_group = tables.offset_batches.c.consumer_group
    queries = [written.where(of_group.in_(some)) for some in portions(sorted(groups), AT_ONCE)]
    for row in chain.from_iterable(conn.execute(query).all() for query in queries):
        for range_ in ranges:
            span = (max(row.start_offset, range_.start), min(row.end_offset, range_.end))
            is_other = range_.topic_partition != (row.topic, row.partition) or span[0] >= span[1]
            if is_other or is_other_topic(row.topic_id, range_.topic_id) or not names.shared(row.target_table, target):
                continue
            for left in subtract([span], _removed_since(conn, tables, names, row)):
                yield row, range_, left


def _replayed(
    conn: Connection, tables: Tables, target: str, topics: Collection[str], group_id: str | None
) -> list[sa.Select[Any]]:
    """Select the ranges of topics that replays wrote into a target, if there are any.

    :param group_id: whose replays; None for all
    """
    batches = tables.offset_batches.c
    # Not a parameter: the index of replays is known to hold all of them.
    of_whom = batches.kind == sa.literal_column("'replay'")
    if group_id is not None:
        of_whom &= batches.consumer_group == group_id
    names = names_of(conn, tables, target, of_whom, shared=True)
    written = _written(tables, topics).where(of_whom)
    return [written.where(batches.target_table.in_(some)) for some in portions(names, AT_ONCE)]


def _own(tables: Tables, group_id: str, partitions: Collection[TopicPartition]) -> list[sa.Select[Any]]:
    """Select the ranges that a group has written of some partitions, perhaps with those of others."""
    partition, batches = tables.offset_ranges.c.partition, tables.offset_batches.c
    of_group = (batches.consumer_group == group_id, batches.state == "committed")
    return [
        _written(tables, topics).where(*of_group, partition.in_(numbers))
        for topics in portions(sorted({tp.topic for tp in partitions}), AT_ONCE)
        for numbers in portions(sorted({tp.partition for tp in partitions}), AT_ONCE)
    ]


def _last_loads(conn: Connection, tables: Tables, group_id: str) -> dict[TopicPartition, int]:
    """Return the last loads that moved positions of a group, if nothing else has moved them since."""
    stored, batches = tables.consumed_offsets.c, tables.offset_batches.c
    query = (
        sa.select(stored.topic, stored.partition, stored.batch_id)
        .join(tables.offset_batches, batches.batch_id == stored.batch_id)
        .where(stored.consumer_group == group_id, batches.kind == "load")
    )
    return {TopicPartition(row.topic, row.partition): int(row.batch_id) for row in conn.execute(query)}


def _written(tables: Tables, topics: Collection[str], *, is_read: bool = False) -> sa.Select[Any]:
    """Select the ranges of topics that loads and replays have written, or are about to write.

    :param is_read: whether ranges that had no records are among them
    """
    batches, ranges = tables.offset_batches.c, tables.offset_ranges
    return (
        sa.select(ranges, batches.kind, batches.state, batches.consumer_group)
        .add_columns(batches.target_table, batches.committed_at)
        .join(tables.offset_batches, ranges.c.batch_id == batches.batch_id)
        .where(
            batches.kind.in_(("load", "replay")),
            batches.state != "abandoned",
            batches.target_table.is_not(None),
            ranges.c.topic.in_(topics),
            # Where nothing was read, nothing was written. It is not known of a batch that is not committed.
            sa.or_(ranges.c.records.is_(None), ranges.c.records > 0, sa.true() if is_read else sa.false()),
        )
        .order_by(ranges.c.batch_id)
    )


def _removed_since(conn: Connection, tables: Tables, names: TargetNames, written: Any) -> list[Span]:
    """Return the offsets of a partition whose rows later batches of the same group removed from the same table.

    A batch for a span of time removed only some of them, which are unknown.
    """
    if written.committed_at is None:
        return []
    batches, ranges = tables.offset_batches.c, tables.offset_ranges
    query = (
        sa.select(ranges, batches.target_table)
        .join(tables.offset_batches, ranges.c.batch_id == batches.batch_id)
        .where(
            batches.consumer_group == written.consumer_group,
            batches.state == "committed",
            batches.committed_at >= written.committed_at,
            batches.batch_id != written.batch_id,
            batches.records_since_ms.is_(None),
            ranges.c.topic == written.topic,
            ranges.c.partition == written.partition,
            ranges.c.replaced_start_offset.is_not(None),
        )
    )
    return [
        (later.replaced_start_offset, later.replaced_end_offset)
        for later in conn.execute(query).all()
        if not is_other_topic(later.topic_id, written.topic_id)
        and later.target_table is not None
        and names.shared(later.target_table, written.target_table)
    ]


def _has(row: Any, verb: str) -> str:
    """Return what the batch of a row has done, or will do."""
    return f"has {verb}ed" if row.state == "committed" else f"has planned to {verb}"


def _double_load(
    conn: Connection, tables: Tables, row: Any, offsets: str, group_id: str, target: str, planned: OffsetRange
) -> DoubleLoadError:
    tp = planned.topic_partition
    begins = (
        f"Group {group_id!r} begins at offset {planned.start}, and would load these records into the same table "
        "again. Nothing was loaded."
    )
    unwritten = None
    if row.state != "committed":
        # What is said of written records would have these skipped, if the batch is abandoned.
        unwritten = (
            "Let that batch be committed, and run this load again; or, if nobody will run it, abandon it: "
            f"{command_line('abandon', row.consumer_group, '--batch', str(row.batch_id))} --conn-id CONN_ID --reason "
            "WHY."
        )
    if row.kind == "replay":
        appended = (
            f"Batch {row.batch_id}, a replay of group {row.consumer_group!r}, {_has(row, 'append')} {offsets} to table "
            f"{target!r}. {begins}"
        )
        if unwritten is not None:
            return DoubleLoadError(f"{appended} {unwritten}")
        before = f" replay {planned.start}..{row.start_offset} too, and" if planned.start < row.start_offset else ""
        return DoubleLoadError(
            f"{appended} Load into another table, or into a sink with an upsert_key; or{before} let the "
            f"group begin after them: {command_line('rewind', group_id, '--topic', f'{tp.topic}:{tp.partition}')} "
            f"--to-offset {row.end_offset} --conn-id CONN_ID --execute --reason WHY."
        )
    deletion = deletion_of(conn, tables, row.consumer_group)
    if row.batch_id < deletion:
        undo = (
            "To go on where it stopped, take the deletion back: "
            f"{command_line('rewind', row.consumer_group)} --undo --conn-id CONN_ID --execute --reason WHY. "
            if next_move(conn, tables, row.consumer_group, deletion) is None
            else ""
        )
        return DoubleLoadError(
            f"Group {row.consumer_group!r}, which was deleted, has loaded {offsets} into table {target!r} with batch "
            f"{row.batch_id}. {begins} {undo}If its rows are "
            'gone, or are to be there twice, set in the load: Coordination(other_groups="allow").'
        )
    if row.consumer_group == group_id:
        end = (
            f"{command_line('rewind', group_id, '--topic', f'{tp.topic}:{tp.partition}')} --to-offset {row.end_offset}"
        )
        return DoubleLoadError(
            f"Group {group_id!r} has no position of {tp}, but has loaded {offsets} into table {target!r} with batch "
            f"{row.batch_id}, before it was deleted, and that undone in part. {begins} To go on after them: {end} "
            "--conn-id CONN_ID --execute --reason WHY. If the topic was recreated, or its rows are gone or are to be "
            'there twice, set in the load: Coordination(other_groups="allow").'
        )
    has_loaded = (
        f"Group {row.consumer_group!r} {_has(row, 'load')} {offsets} into table {target!r} with batch {row.batch_id}. "
        f"{begins}"
    )
    if unwritten is not None:
        return DoubleLoadError(f"{has_loaded} {unwritten}")
    change = deleted_or_renamed(conn, tables, group_id)
    if change is not None and not deletion_of(conn, tables, group_id):
        return DoubleLoadError(f"{has_loaded} {change} as the group_id of the load.")
    return DoubleLoadError(
        f"{has_loaded} If it is the same load under another name, end that load, and take over its positions: "
        f"{command_line('rewind', group_id, '--topic', tp.topic, '--to-group', row.consumer_group)} --new-group "
        "--conn-id CONN_ID --execute --reason WHY. If the transform of each group takes other records, set in both "
        'loads: Coordination(other_groups="allow").'
    )


class LoadedByOthers(NamedTuple):
    """Offsets of a partition that another group has loaded into a table of a group.

    :param group_id: of the other one; None where it may not be named
    :param target: the table
    :param start: the lowest of them
    :param end: exclusive
    """

    group_id: str | None
    target: str
    topic_partition: TopicPartition
    start: int
    end: int

    def __str__(self) -> str:
        who = "another group" if self.group_id is None else f"group {self.group_id!r}"
        return f"{who} has loaded {self.topic_partition} {self.start}..{self.end} into {self.target!r}"


def loaded_by_others(
    conn: Connection, tables: Tables, group_id: str, target: str, starts: Mapping[TopicPartition, int] | None = None
) -> list[LoadedByOthers]:
    """Return the offsets that other groups have loaded into a target, and that a group has loaded or will load.

    :param target: the name of the sink
    :param starts: the next offsets of the group, by partition; None compares the offsets that it has loaded
    """
    loaded = _bounds(conn, tables, {group_id}, None) if starts is None else {}
    own: dict[TopicPartition, tuple[int, int | None]] = {tp: bounds for (_, tp), bounds in loaded.items()}
    own |= {tp: (start, None) for tp, start in (starts or {}).items()}
    topics = {tp.topic for tp in own}
    others = groups_into(conn, tables, target, topics, besides=group_id)
    found = []
    for (group, tp), (first, last) in sorted(_bounds(conn, tables, others, topics).items()) if others else ():
        start, end = own.get(tp, (last, None))
        start, end = max(start, first), last if end is None else min(end, last)
        if start < end:
            found.append(LoadedByOthers(group, others[group], tp, start, end))
    return found


def _bounds(
    conn: Connection, tables: Tables, groups: Collection[str], topics: Collection[str] | None
) -> dict[tuple[str, TopicPartition], Span]:
    """Return the first offset that groups have loaded of each partition, and the end of the last ones.

    :param topics: None for all
    """
    batches, ranges = tables.offset_batches.c, tables.offset_ranges.c
    keys = (batches.consumer_group, ranges.topic, ranges.partition)
    query = (
        sa.select(*keys, sa.func.min(ranges.start_offset), sa.func.max(ranges.end_offset))
        .join(tables.offset_ranges, ranges.batch_id == batches.batch_id)
        .where(batches.kind == "load", ranges.records > 0)
        .group_by(*keys)
    )
    if topics is not None:
        query = query.where(ranges.topic.in_(topics))
    found: dict[tuple[str, TopicPartition], Span] = {}
    for some in portions(sorted(groups), AT_ONCE):
        for group, topic, partition, start, end in conn.execute(query.where(batches.consumer_group.in_(some))):
            found[group, TopicPartition(topic, partition)] = (start, end)
    return found
