"""Taking old output back: rows and dead letters of offsets that are loaded again, with an account of what was taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.ledger.group_table import same_table_names
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.sinks.sink import Batches, Condition, Origin, Output, Removed


def replace_output(conn: Connection, tables: Tables, group_id: str, batch_id: int, target: Output) -> None:
    """Delete what batches of a group left of the offsets that a batch replaces, and note how much that was.

    The offsets are `replaced_from` to `replaced_to` of the batch's ranges, which are written before this. Called within the
    transaction that closes the batch, under the group's lock: nothing can be added to these offsets meanwhile.

    :raises ConfigurationError: rows cannot be told apart by where they are from, or the batches wrote into another table
    """
    _check_target(conn, tables, group_id, batch_id, target)
    names, batches = same_table_names(conn, target.name), tables.offset_batches.c

    def replaced(origin: Origin) -> sa.ColumnElement[bool]:
        return _is_replaced(tables, group_id, batch_id, names, origin)

    wrote = _found(conn, _overlapping(tables, group_id, batch_id, batches.row_count))
    rows = target.remove(conn, replaced, wrote) if wrote is not None else []
    aside_by = _found(conn, _overlapping(tables, group_id, batch_id, batches.dead_letters))
    letters = _remove_dead_letters(conn, tables, replaced, aside_by) if aside_by is not None else []
    counts = Counter({removed[:2]: removed.rows for removed in rows})
    aside = Counter({removed[:2]: removed.rows for removed in letters})
    if counts or aside:
        conn.execute(
            tables.replaced_output.insert(),
            [
                {
                    "batch_id": batch_id,
                    "replaced_batch_id": replaced,
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "row_count": counts[replaced, tp],
                    "dead_letters": aside[replaced, tp],
                }
                for replaced, tp in sorted(counts.keys() | aside.keys())
            ],
        )


def _found(conn: Connection, query: sa.Select[tuple[int]]) -> Batches | None:
    ids = sorted({row.batch_id for row in conn.execute(query)})
    return Batches(ids, query) if ids else None


def _remove_dead_letters(conn: Connection, tables: Tables, replaced: Condition, of_batches: Batches) -> list[Removed]:
    letters = tables.dead_letters
    columns = letters.c
    origin = Origin(columns.batch_id, columns.topic, columns.partition, columns.offset_value)
    condition = of_batches.include(origin.batch_id) & replaced(origin)
    keys = origin[:3]
    found = conn.execute(sa.select(*keys, sa.func.count()).where(condition).group_by(*keys)).all()
    conn.execute(letters.delete().where(condition))
    return [Removed(batch, TopicPartition(topic, partition), count) for batch, topic, partition, count in found]


def _is_replaced(
    tables: Tables, group_id: str, batch_id: int, names: Sequence[str], origin: Origin
) -> sa.ColumnElement[bool]:
    """Whether a row is of an offset that is replaced, and was left there by a batch of the group.

    A topic that was made anew under the same name has offsets of its own: those of the earlier one are not touched.

    :param names: every spelling of the target
    """
    # Names that are the package's, as those of its columns are: a target may have any other.
    again, loaded = (tables.offset_ranges.alias(f"_kafka_{name}") for name in ("again", "loaded"))
    batches = tables.offset_batches.alias("_kafka_batches")
    return (
        sa.exists()
        .select_from(again, loaded, batches)
        .where(
            again.c.batch_id == batch_id,
            again.c.topic == origin.topic,
            again.c.partition == origin.partition,
            origin.offset >= again.c.replaced_from,
            origin.offset < again.c.replaced_to,
            loaded.c.batch_id == origin.batch_id,
            loaded.c.topic == again.c.topic,
            loaded.c.partition == again.c.partition,
            same_topic(loaded, again),
            batches.c.batch_id == origin.batch_id,
            batches.c.consumer_group == group_id,
            batches.c.state == "committed",
            batches.c.target_table.in_(names),
        )
    )


def _overlapping(tables: Tables, group_id: str, batch_id: int, count: sa.ColumnElement[int]) -> sa.Select[tuple[int]]:
    """The committed batches of a group that loaded something of what is replaced.

    :param count: of rows, or of dead letters: how many they wrote
    """
    again, loaded = tables.offset_ranges.alias(), tables.offset_ranges.alias()
    batches = tables.offset_batches
    return sa.select(batches.c.batch_id).where(
        batches.c.consumer_group == group_id,
        batches.c.state == "committed",
        count > 0,
        batches.c.batch_id != batch_id,
        batches.c.batch_id == loaded.c.batch_id,
        again.c.batch_id == batch_id,
        again.c.topic == loaded.c.topic,
        again.c.partition == loaded.c.partition,
        same_topic(loaded, again),
        loaded.c.start_offset < again.c.replaced_to,
        loaded.c.end_offset > again.c.replaced_from,
    )


def same_topic(loaded: sa.FromClause, again: sa.FromClause) -> sa.ColumnElement[bool]:
    """Whether two ranges are of the same topic, and not of one that was made anew under its name."""
    # A broker may have told no id.
    return sa.or_(
        loaded.c.topic_id == again.c.topic_id,
        loaded.c.topic_id.is_(None),
        again.c.topic_id.is_(None),
    )


def _check_target(conn: Connection, tables: Tables, group_id: str, batch_id: int, target: Output) -> None:
    batches = tables.offset_batches.c
    found = conn.execute(
        sa.select(batches.batch_id, batches.target_table)
        .where(
            batches.batch_id.in_(_overlapping(tables, group_id, batch_id, batches.row_count)),
            batches.kind == "load",
            batches.target_table.not_in(same_table_names(conn, target.name)),
        )
        .order_by(batches.batch_id)
        .limit(1)
    ).one_or_none()
    if found is not None:
        raise ConfigurationError(
            f"Batch {found.batch_id} of group {group_id!r} loaded offsets that are to be replaced into table "
            f"{found.target_table!r}; the table named is {target.name!r}. Nothing was changed; name the table that the group "
            "loads into."
        )
