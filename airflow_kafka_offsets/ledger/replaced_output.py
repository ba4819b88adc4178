"""Remove the rows and dead letters that earlier batches wrote of offsets that are loaded again, and count them in `replaced_output`."""

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
    """Delete the rows and dead letters that batches of a group wrote of the offsets that a batch replaces, and count them.

    The offsets are `replaced_from` to `replaced_to` of the batch's ranges, which are written before this call. The caller's
    transaction has the group's row locked, so that no load adds to these offsets meanwhile.

    :raises ConfigurationError: the rows lack the columns of their origin, or the batches wrote into another table
    """
    _check_target(conn, tables, group_id, batch_id, target)
    names, batches = same_table_names(conn, target.name), tables.offset_batches.c

    def is_replaced(origin: Origin) -> sa.ColumnElement[bool]:
        return _is_replaced(tables, group_id, batch_id, names, origin)

    wrote_rows = _batches(conn, _overlapping(tables, group_id, batch_id, batches.row_count))
    rows = target.remove(conn, is_replaced, wrote_rows) if wrote_rows is not None else []
    wrote_letters = _batches(conn, _overlapping(tables, group_id, batch_id, batches.dead_letters))
    letters = _remove_dead_letters(conn, tables, is_replaced, wrote_letters) if wrote_letters is not None else []
    row_counts = Counter({removed[:2]: removed.rows for removed in rows})
    letter_counts = Counter({removed[:2]: removed.rows for removed in letters})
    counts = [
        {
            "batch_id": batch_id,
            "replaced_batch_id": replaced,
            "topic": tp.topic,
            "partition": tp.partition,
            "row_count": row_counts[replaced, tp],
            "dead_letters": letter_counts[replaced, tp],
        }
        for replaced, tp in sorted(row_counts.keys() | letter_counts.keys())
    ]
    if counts:
        conn.execute(tables.replaced_output.insert(), counts)


def same_topic(loaded: sa.FromClause, other: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition that two ranges are of the same topic, and not of one that was recreated under its name."""
    # Brokers before Kafka 2.8 report no topic id.
    return sa.or_(loaded.c.topic_id == other.c.topic_id, loaded.c.topic_id.is_(None), other.c.topic_id.is_(None))


def _batches(conn: Connection, query: sa.Select[tuple[int]]) -> Batches | None:
    ids = sorted({row.batch_id for row in conn.execute(query)})
    return Batches(ids, query) if ids else None


def _remove_dead_letters(conn: Connection, tables: Tables, replaced: Condition, of_batches: Batches) -> list[Removed]:
    letters = tables.dead_letters
    origin = Origin(letters.c.batch_id, letters.c.topic, letters.c.partition, letters.c.offset_value)
    condition = of_batches.include(origin.batch_id) & replaced(origin)
    keys = origin[:3]
    counts = conn.execute(sa.select(*keys, sa.func.count()).where(condition).group_by(*keys)).all()
    conn.execute(letters.delete().where(condition))
    return [Removed(batch, TopicPartition(topic, partition), count) for batch, topic, partition, count in counts]


def _is_replaced(
    tables: Tables, group_id: str, batch_id: int, names: Sequence[str], origin: Origin
) -> sa.ColumnElement[bool]:
    """Return the condition that a row is of a replaced offset, and was written by a batch of the group.

    Offsets of an earlier topic of the same name are not replaced.

    :param names: every name of the target
    """
    # Aliases with the package's prefix: the target may have any other name.
    replacing, loaded = (tables.offset_ranges.alias(f"_kafka_{name}") for name in ("replacing", "loaded"))
    batches = tables.offset_batches.alias("_kafka_batches")
    return (
        sa.exists()
        .select_from(replacing, loaded, batches)
        .where(
            replacing.c.batch_id == batch_id,
            replacing.c.topic == origin.topic,
            replacing.c.partition == origin.partition,
            origin.offset >= replacing.c.replaced_from,
            origin.offset < replacing.c.replaced_to,
            loaded.c.batch_id == origin.batch_id,
            *_same_partition(loaded, replacing),
            batches.c.batch_id == origin.batch_id,
            batches.c.consumer_group == group_id,
            batches.c.state == "committed",
            batches.c.target_table.in_(names),
        )
    )


def _overlapping(tables: Tables, group_id: str, batch_id: int, count: sa.ColumnElement[int]) -> sa.Select[tuple[int]]:
    """Select the committed batches of a group that loaded some of the replaced offsets.

    :param count: the column with the number of rows, or of dead letters, that a batch wrote
    """
    replacing, loaded = tables.offset_ranges.alias(), tables.offset_ranges.alias()
    batches = tables.offset_batches
    return sa.select(batches.c.batch_id).where(
        batches.c.consumer_group == group_id,
        batches.c.state == "committed",
        count > 0,
        batches.c.batch_id != batch_id,
        batches.c.batch_id == loaded.c.batch_id,
        replacing.c.batch_id == batch_id,
        *_same_partition(loaded, replacing),
        loaded.c.start_offset < replacing.c.replaced_to,
        loaded.c.end_offset > replacing.c.replaced_from,
    )


def _same_partition(loaded: sa.FromClause, replacing: sa.FromClause) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        loaded.c.topic == replacing.c.topic,
        loaded.c.partition == replacing.c.partition,
        same_topic(loaded, replacing),
    )


def _check_target(conn: Connection, tables: Tables, group_id: str, batch_id: int, target: Output) -> None:
    batches = tables.offset_batches.c
    elsewhere = conn.execute(
        sa.select(batches.batch_id, batches.target_table)
        .where(
            batches.batch_id.in_(_overlapping(tables, group_id, batch_id, batches.row_count)),
            batches.kind == "load",
            batches.target_table.not_in(same_table_names(conn, target.name)),
        )
        .order_by(batches.batch_id)
        .limit(1)
    ).one_or_none()
    if elsewhere is not None:
        raise ConfigurationError(
            f"Batch {elsewhere.batch_id} of group {group_id!r} loaded offsets that are to be replaced into table "
            f"{elsewhere.target_table!r}; the table named is {target.name!r}. Nothing was changed; name the table that the group "
            "loads into."
        )
