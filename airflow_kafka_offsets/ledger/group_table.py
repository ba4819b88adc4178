"""The table that a group loads into, for loads, replays, rewinds and `verify`.

`ledger.double_loads` refuses loads of records that are in a table already.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.chunks import portions
from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD
from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.database.tables import reflected
from airflow_kafka_offsets.database.transactions import transact
from airflow_kafka_offsets.escaping import command_line
from airflow_kafka_offsets.exceptions import ForeignBatchError
from airflow_kafka_offsets.ledger.batch_rows import deletion_of, latest_batch, renamed_keys
from airflow_kafka_offsets.ledger.claims import Claim
from airflow_kafka_offsets.ledger.compaction import Compacted
from airflow_kafka_offsets.ledger.positions import stored_positions
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.sinks.sink import DatabaseTable
from airflow_kafka_offsets.sinks.target_names import TargetNames, is_table, targets_in

log = logging.getLogger(__name__)

AT_ONCE = 500
"""How many groups a statement names: databases limit its bound values."""


class GroupTable(NamedTuple):
    """The table that a group loads into.

    :param batch_id: the batch in the history that names the table
    :param kind: the kind of that batch: "load", or "initialize" if nothing was loaded yet
    :param name: the name in the history
    """

    batch_id: int
    kind: str
    name: str


def group_table(conn: Connection, tables: Tables, group_id: str) -> GroupTable | None:
    """Return the table that a group loads into; None where it has no batch yet, or none since it was deleted."""
    known = group_tables(conn, tables, [group_id]).get(group_id)
    return known if known is not None and known.batch_id > deletion_of(conn, tables, group_id) else None


def group_tables(conn: Connection, tables: Tables, group_ids: Sequence[str]) -> dict[str, GroupTable]:
    """Return the tables that groups load into, by group, with two queries for each few hundred."""
    groups, batches = tables.consumer_groups, tables.offset_batches.c
    into_table = (batches.state != "abandoned", batches.target_table.is_not(None))
    # A load decides; an `initialize` may be left of a load that was abandoned.
    latest = [
        latest_batch(tables, groups.c.group_id, batches.kind == kind, *into_table).correlate(groups).scalar_subquery()
        for kind in ("load", "initialize")
    ]
    columns = (batches.consumer_group, batches.batch_id, batches.kind, batches.target_table)
    known: dict[str, GroupTable] = {}
    for some in portions(group_ids, AT_ONCE):
        found = conn.scalars(sa.select(sa.func.coalesce(*latest)).where(groups.c.group_id.in_(some)))
        numbers = [batch_id for batch_id in found if batch_id is not None]
        query = sa.select(*columns).where(batches.batch_id.in_(numbers))
        known |= {group: GroupTable(*table) for group, *table in conn.execute(query)}
    return known


def targets_of_groups(conn: Connection, tables: Tables) -> list[str]:
    """Return the names of the targets that groups load into, or have loaded into, as the history has them."""
    name = tables.offset_batches.c.target_table
    loads = tables.offset_batches.c.kind.in_(("load", "initialize"))
    return sorted(conn.scalars(sa.select(name).where(loads, name.is_not(None)).distinct()))


def names_of(
    conn: Connection, tables: Tables, target: str, *of_batch: sa.ColumnElement[bool], shared: bool = False
) -> list[str]:
    """Return the names by which the history knows a target.

    :param of_batch: conditions for batches; without any, the whole history is read
    :param shared: whether to include names of several targets that share only one with it
    """
    name, known = tables.offset_batches.c.target_table, TargetNames(conn, tables.offset_batches)
    names = conn.scalars(sa.select(name).where(name.is_not(None), *of_batch).distinct()).all()
    is_meant = known.shared if shared else known.same
    return sorted(name for name in names if is_meant(name, target))


def loads_into(conn: Connection, tables: Tables, group_id: str, target: str) -> bool:
    """Return whether a table is the one that a group loads into."""
    known = group_table(conn, tables, group_id)
    return known is not None and TargetNames(conn, tables.offset_batches).same(known.name, target)


def keep_to_table(claim: Claim, topics: Sequence[str], target: str) -> None:
    """Check that a group continues to load into its table, which has the records before its positions.

    If that table does not exist any more, it is assumed to be renamed to the target, and the history of all groups gets
    the new name. If it was dropped instead, `verify` reports its rows as missing, as for a recreated table. This holds
    for tables only. The first load of a group into a renamed table finds this out by a row of the table.

    :param target: the name of the load's table
    :raises ForeignBatchError: the group loads into another table; the message says how to move to a new one
    :raises FencedError: a later attempt took over
    """
    group_id, tables = claim.group_id, claim.ledger.tables
    with claim.ledger.connect() as conn:
        known = group_table(conn, tables, group_id)
        targets = TargetNames(conn, tables.offset_batches)
        if known is None or known.kind != "load":
            former = former_name(conn, tables, target)
            renamed = [] if former is None else [former]
        elif targets.same(known.name, target):
            return
        else:
            renamed = _renamed(targets, known.name, target)
            # Into one that is new under its name, no other group has loaded.
            others = tables.offset_batches.c.consumer_group != group_id
            if not renamed or any(names_of(conn, tables, new, others, shared=True) for _, new in renamed):
                loaded = {tp.topic for tp in stored_positions(conn, tables, group_id)}
                raise _another_table(group_id, known, [topic for topic in topics if topic in loaded], target)
    for old, new in renamed:
        claim.transact(partial(_rename, tables=tables, old=old, new=new))


def follow_rename(ledger: Ledger, target: str) -> None:
    """Give the history the new name of a table, if a row of a target that it does not know shows the old one."""
    with ledger.connect() as conn:
        renamed = former_name(conn, ledger.tables, target)
    if renamed is not None:
        transact(ledger.engine, lambda conn: _rename(conn, ledger.tables, *renamed))


def _renamed(targets: TargetNames, known: str, target: str) -> list[tuple[str, str]]:
    """Return the old and the new names of tables: one of the targets of a name is gone, and a target has another; or
    several are, and are found in other schemas.
    """
    old = [each for each in targets_in(known) if targets.shared(each, target) is None]
    new = [each for each in targets_in(target) if targets.shared(each, known) is None]
    if len(old) != len(new) or not all(map(targets.is_gone, old)) or not all(map(is_table, new)):
        return []
    if len(old) == 1:
        return [(old[0], new[0])]
    by_name = {targets.meant(each).table: each for each in new}
    pairs = [(each, by_name.get(targets.meant(each).table, "")) for each in old]
    return pairs if {found for _, found in pairs} == {*new} else []


def former_name(conn: Connection, tables: Tables, target: str) -> tuple[str, str] | None:
    """Return the name in the history of a table that was renamed, and its new one, which the history does not have: one
    of the targets of a name.
    """
    targets = TargetNames(conn, tables.offset_batches)
    for new in targets_in(target):
        name = _name_of_rows(conn, tables, targets.existing(new))
        names = [] if name is None else targets_in(name)
        gone = [*filter(targets.is_gone, names)]
        if len(gone) == 1 and not names_of(conn, tables, new, shared=True):
            return gone[0], new
    return None


def _name_of_rows(conn: Connection, tables: Tables, found: DatabaseTable | None) -> str | None:
    """Return the name in the history for the batch of a row of a table; None where there is no such row."""
    table = None if found is None else reflected(conn, found.table, found.schema)
    if table is None or BATCH_ID not in table.columns:
        return None
    number, batches, ranges = table.c[BATCH_ID], tables.offset_batches.c, tables.offset_ranges.c
    place = [table.c[name] for name in RECORD if name in table.columns]
    row = conn.execute(sa.select(number, *place).where(number.is_not(None)).limit(1)).first()
    if row is None or not isinstance(row[0], int):
        return None
    query = sa.select(batches.target_table, batches.consumer_group).where(batches.batch_id == row[0])
    batch = conn.execute(query).first()
    if batch is None:
        return None
    name: str | None = batch.target_table
    span = Compacted.of(conn, tables, batch.consumer_group).span_of(row[0])
    read = sa.select(ranges.topic, ranges.partition, ranges.start_offset, ranges.end_offset).where(
        ranges.batch_id == (row[0] if span is None else span[1])
    )
    # Whoever may write a row may name any batch: it is of a record that the batch read, if ranges say what that was.
    spans = [((topic, partition), range(start, end)) for topic, partition, start, end in conn.execute(read)]
    if not spans or len(place) < len(RECORD):
        return name
    *partition, offset = row[1:]
    is_read = any(tuple(partition) == of_partition and offset in offsets for of_partition, offsets in spans)
    return name if is_read else None


def _rename(conn: Connection, tables: Tables, old: str, new: str) -> None:
    """Write the new name of a table into the history of all groups."""
    batches, targets = tables.offset_batches, TargetNames(conn, tables.offset_batches)
    changed = 0
    for name in names_of(conn, tables, old, shared=True):
        renamed = targets.renamed(name, old, new)
        keys = renamed_keys(batches.c.outputs, targets_in(name), targets_in(renamed))
        values = {"target_table": renamed, "outputs": keys}
        changed += conn.execute(batches.update().where(batches.c.target_table == name).values(values)).rowcount
    log.warning(
        "Table %r does not exist any more: it is assumed to be renamed to %r, and %s the new name from now on. If it "
        "was dropped, its rows are missing: 'kafka-offsets verify' shows them",
        old,
        new,
        count(changed, "batch of the history has", "batches of the history have"),
    )


def _another_table(group_id: str, known: GroupTable, topics: Sequence[str], target: str) -> ForeignBatchError:
    """Return the error of a load into another table.

    :param topics: those of the load that the group has positions of
    """
    scope = [word for topic in topics for word in ("--topic", topic)]
    copy = command_line("rewind", "NEW_GROUP", *scope, "--to-group", group_id)
    return ForeignBatchError(
        f"Group {group_id!r} loads into table {known.name!r}, last with batch {known.batch_id}; this load is into "
        f"{target!r}{', and would miss the records that are in the other table' if topics else ''}. Nothing was "
        "loaded. Give every load its own group_id."
        + (
            f" To continue in {target!r} from the positions of this group, choose a new group_id, and copy the "
            f"positions to it: {copy} --new-group --conn-id CONN_ID --execute --reason WHY."
            if topics
            else ""
        )
    )
