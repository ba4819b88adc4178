"""Removes rows and dead letters of offsets that are loaded again, and records how many were removed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.chunks import portions
from airflow_kafka_offsets.core.history import OPEN_STATES
from airflow_kafka_offsets.core.instants import TimeSpan
from airflow_kafka_offsets.core.offsets import Span, TopicPartition, subtract
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.escaping import command_line
from airflow_kafka_offsets.exceptions import ConfigurationError, DataLossError, OpenBatchError
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.group_table import former_name, names_of
from airflow_kafka_offsets.ledger.positions import Reads
from airflow_kafka_offsets.ledger.tables import Tables, sum_of
from airflow_kafka_offsets.sinks.sql.rows import delete_rows
from airflow_kafka_offsets.sinks.target_names import TargetNames
from airflow_kafka_offsets.sinks.target_rows import Batches, OriginColumns, Removed, ReplacedOffsets

# A statement has a limited number of parameters: 999 in older SQLite.
_MOST_BOUND = 500
_SPANS_AT_ONCE = 50

if TYPE_CHECKING:
    _Ranges = sa.Select[int, str, int, int, int]
    _RangesOf = Callable[..., _Ranges]
    """Selects the offsets to replace, once for each batch that loaded some of them and meets conditions."""


Remove = Callable[[ReplacedOffsets], list[Removed]]


def replace_output(
    conn: Connection,
    tables: Tables,
    group_id: str,
    batch_id: int,
    target: str,
    remove: Remove,
    span: TimeSpan | None = None,
) -> None:
    """Delete the output of a group's batches for the offsets that a batch replaces, and record its amount.

    The offsets are `replaced_start_offset` to `replaced_end_offset` of the batch's ranges, which are written before
    this. Called within the transaction that closes the batch, under the group's lock: no output is added meanwhile.

    :param target: the name of the sink
    :param remove: removes rows from it, or returns which will be removed
    :param span: the span of time to which the removed records are limited, if any
    :raises ConfigurationError: rows cannot be identified by their origin, or the batches wrote into another target
    :raises OpenBatchError: an open replay may have written rows of these offsets, which are not recorded yet
    """
    batches, table = tables.offset_batches, tables.dead_letters
    replaced_by = partial(_replaced_by, tables, group_id, batch_id)
    is_here = _written_here(conn, tables, group_id, target, replaced_by)

    def remove_dead_letters(replaced: ReplacedOffsets) -> list[Removed]:
        origin = OriginColumns(table.c.batch_id, table.c.topic, table.c.partition, table.c.offset_value)
        return delete_rows(conn, table, origin, replaced, table.c.record_timestamp)

    rows = _remove(conn, replaced_by(is_here, _may_have_rows(batches)), span, remove)
    has_letters = (batches.c.state == "committed", batches.c.dead_letters > 0)
    dead_letters = _remove(conn, replaced_by(is_here, *has_letters), span, remove_dead_letters)
    if rows or dead_letters:
        conn.execute(
            tables.replaced_output.insert(),
            [
                {
                    "batch_id": batch_id,
                    "replaced_batch_id": replaced,
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "row_count": rows[replaced, tp],
                    "dead_letters": dead_letters[replaced, tp],
                }
                for replaced, tp in sorted(rows.keys() | dead_letters.keys())
            ],
        )


def _remove(
    conn: Connection, ranges: _Ranges, span: TimeSpan | None, remove: Remove
) -> Counter[tuple[int, TopicPartition]]:
    """Remove the output of ranges, and return the removed amount by batch and partition."""
    ids = sorted({row.batch_id for row in conn.execute(ranges)})
    if not ids:
        return Counter()
    return Counter({removed[:2]: removed.rows for removed in remove(_offsets(ids, ranges, span))})


def _offsets(ids: Sequence[int], ranges: _Ranges, span: TimeSpan | None) -> ReplacedOffsets:
    """Return the offsets of some ranges.

    :param ids: of the batches that the ranges are of, in order
    """
    query = sa.select(ranges.subquery("_kafka_overlapping").c.batch_id)
    return ReplacedOffsets(Batches(ids[0], ids[-1], ids if len(ids) <= _MOST_BOUND else query), ranges, span)


def refuse_compacted(conn: Connection, tables: Tables, batch: Batch, target: str, reads: Reads) -> None:
    """Raise if a batch would replace output of records that Kafka no longer has, although it has later ones.

    The history tells how many records were read of the offsets at least, not which.

    :param target: the name of the sink
    :param reads: of the batch
    :raises DataLossError: earlier batches have read more records
    """
    again, loaded, of_batch = tables.offset_ranges.alias(), tables.offset_ranges.alias(), tables.offset_batches.c
    names = names_of(conn, tables, target, of_batch.consumer_group == batch.group_id, shared=True)
    start, end = again.c.replaced_start_offset, again.c.replaced_end_offset
    query = (
        _replaced_ranges(tables, batch.group_id, batch.batch_id, again, loaded, of_batch.batch_id == loaded.c.batch_id)
        .where(of_batch.state == "committed", of_batch.kind.in_(("load", "replay")), of_batch.target_table.in_(names))
        .where(of_batch.records_since_ms.is_(None), of_batch.records_until_ms.is_(None))
        .with_only_columns(loaded, start.label("from_offset"), end.label("to_offset"))
        .order_by(loaded.c.batch_id.desc())
    )
    records: Counter[TopicPartition] = Counter()
    passed: dict[TopicPartition, list[Span]] = defaultdict(list)
    for row in conn.execute(query):
        tp, span = TopicPartition(row.topic, row.partition), (row.start_offset, row.end_offset)
        within = max(row.start_offset, row.from_offset), min(row.end_offset, row.to_offset)
        # What was loaded again had the records that Kafka had then.
        counted = sum(last - first for first, last in subtract([within], passed[tp]))
        records[tp] += max(0, (row.records or 0) - (span[1] - span[0] - counted))
        passed[tp].append(span)
    lost = [
        f"{tp}: at least {records[tp]:,} records were read before, {read.records:,} now"
        for tp, read in sorted(reads.items())
        if read.records is not None and read.records < records[tp]
    ]
    if lost:
        raise DataLossError(
            f"Batch {batch.batch_id}, a replay for group {batch.group_id!r}, would remove the output of records that "
            f"Kafka no longer has, as after compaction: {first_few(lost, between='; ')}. Nothing was changed. To "
            "remove it, set on_data_loss='skip'; to keep it, replay into another table"
        )


def offsets_to_replace(conn: Connection, tables: Tables, batch: Batch, target: str) -> ReplacedOffsets | None:
    """Return the offsets whose rows a batch that replaces output will remove from a target; None where it has none."""
    batches = tables.offset_batches
    names = names_of(conn, tables, target, batches.c.consumer_group == batch.group_id, shared=True)
    is_here = batches.c.target_table.in_(names)
    ranges = _replaced_by(tables, batch.group_id, batch.batch_id, is_here, _may_have_rows(batches))
    ids = sorted({row.batch_id for row in conn.execute(ranges)})
    return _offsets(ids, ranges, batch.span) if ids else None


def recorded_offsets(conn: Connection, tables: Tables, batch_id: int) -> ReplacedOffsets | None:
    """Return the offsets whose rows a batch removed, as recorded; None if it removed none."""
    again, removed = tables.offset_ranges, tables.replaced_output
    ranges = (
        sa.select(
            removed.c.replaced_batch_id.label("batch_id"),
            removed.c.topic,
            removed.c.partition,
            again.c.replaced_start_offset.label("start_offset"),
            again.c.replaced_end_offset.label("end_offset"),
        )
        .join(
            again,
            sa.and_(
                again.c.batch_id == removed.c.batch_id,
                again.c.topic == removed.c.topic,
                again.c.partition == removed.c.partition,
            ),
        )
        .where(removed.c.batch_id == batch_id, removed.c.row_count > 0)
    )
    ids = sorted({row.batch_id for row in conn.execute(ranges)})
    return _offsets(ids, ranges, None) if ids else None


def count_output(
    conn: Connection,
    tables: Tables,
    group_id: str,
    target: str,
    replaced: Mapping[TopicPartition, Span],
    topic_ids: Mapping[TopicPartition, str | None],
    count_rows: Callable[[ReplacedOffsets], int],
) -> tuple[int, int, int, int]:
    """Return how many rows and dead letters `replace_output` would delete now, how many of these were erased, and how
    many batches with rows replayed dead letters, without locks or writes; raise the errors that it would raise.

    :param target: the name of the sink
    :param replaced: the offsets whose output would be deleted
    :param topic_ids: of the topics of these offsets
    :param count_rows: counts the rows of the target
    """
    table = tables.dead_letters
    if replaced and (renamed := former_name(conn, tables, target)) is not None:
        old, new = renamed
        target = TargetNames(conn, tables.offset_batches).renamed(target, new, old)
    origin = OriginColumns(table.c.batch_id, table.c.topic, table.c.partition, table.c.offset_value)
    rows = dead_letters = erased = 0
    replayed: set[int] = set()
    of_batch, removed_rows = tables.offset_batches.c, tables.replaced_output.c
    of_letter = [
        column == table.c[column.name] for column in tables.erased_offsets.primary_key if column.name in table.c
    ]
    is_erased = sa.exists().where(*of_letter)
    ordered = sorted(replaced.items())
    for some in portions(ordered, _SPANS_AT_ONCE):
        spans = {tp: (span, topic_ids.get(tp)) for tp, span in some}
        loading = partial(_loading, tables, group_id, spans)
        has_output = sa.or_(of_batch.state == "committed", _may_have_rows(tables.offset_batches))
        ranges = loading(_written_here(conn, tables, group_id, target, loading), has_output)
        ids = sorted({row.batch_id for row in conn.execute(ranges)})
        if ids:
            offsets = _offsets(ids, ranges, None)
            rows += count_rows(offsets)
            # Of the ids, which are never null.
            counted = sa.select(sa.func.count(), sa.func.count(sa.case((is_erased, table.c.batch_id)))).select_from(
                table
            )
            found = conn.execute(counted.where(offsets.include(origin))).one()
            dead_letters, erased = dead_letters + found[0], erased + found[1]
            within = of_batch.batch_id.in_(sa.select(ranges.subquery("_kafka_replayed").c.batch_id))
            removed = sa.select(sum_of(removed_rows.row_count)).where(
                removed_rows.replaced_batch_id == of_batch.batch_id
            )
            has_rows = of_batch.row_count > sa.func.coalesce(removed.scalar_subquery(), 0)
            letters = sa.select(of_batch.batch_id).where(within, of_batch.kind == "dead_letters", has_rows)
            replayed.update(conn.scalars(letters))
    return rows, dead_letters, erased, len(replayed)


def _loading(
    tables: Tables,
    group_id: str,
    spans: Mapping[TopicPartition, tuple[Span, str | None]],
    *of_batch: sa.ColumnElement[bool],
) -> _Ranges:
    """Select the batches of a group that loaded some offsets, each with these offsets.

    :param spans: of partitions, with the ids of their topics
    :param of_batch: which batches
    """
    loaded = tables.offset_ranges.alias()
    of_partitions = []
    for tp, (span, topic_id) in spans.items():
        start, end = (sa.literal(offset, sa.BigInteger) for offset in span)
        of_partition = [loaded.c.topic == tp.topic, loaded.c.partition == tp.partition]
        if topic_id is not None:
            of_partition.append(sa.or_(loaded.c.topic_id == topic_id, loaded.c.topic_id.is_(None)))
        ranges = _overlapping(tables, group_id, loaded, start, end)
        of_partitions.append(ranges.where(*of_partition, *of_batch))
    return sa.select(sa.union_all(*of_partitions).subquery())


def _replaced_by(tables: Tables, group_id: str, batch_id: int, *of_batch: sa.ColumnElement[bool]) -> _Ranges:
    """Return the offsets that a batch replaces, once for each other batch of the group that loaded some of them.

    :param of_batch: which of these batches

    The offsets of an earlier topic of the same name are not replaced.
    """
    replacing, loaded = tables.offset_ranges.alias(), tables.offset_ranges.alias()
    return _replaced_ranges(tables, group_id, batch_id, replacing, loaded, *of_batch)


def _replaced_ranges(
    tables: Tables,
    group_id: str,
    batch_id: int,
    replacing: sa.FromClause,
    loaded: sa.FromClause,
    *of_batch: sa.ColumnElement[bool],
) -> _Ranges:
    start, end = replacing.c.replaced_start_offset, replacing.c.replaced_end_offset
    return _overlapping(tables, group_id, loaded, start, end).where(
        *of_batch,
        replacing.c.batch_id == batch_id,
        loaded.c.batch_id != batch_id,
        loaded.c.topic == replacing.c.topic,
        loaded.c.partition == replacing.c.partition,
        same_topic(loaded, replacing),
    )


def _overlapping(
    tables: Tables, group_id: str, loaded: sa.FromClause, start: sa.ColumnElement[int], end: sa.ColumnElement[int]
) -> _Ranges:
    """Select the batches of a group whose ranges overlap offsets, each with these offsets.

    Compacted batches, which share ranges, are all selected: each may have rows of any offset in them.
    """
    batches, last = tables.offset_batches, tables.offset_batches.alias()
    first = sa.func.coalesce(last.c.compacted_from, last.c.batch_id)
    is_compacted = sa.and_(batches.c.kind == "load", batches.c.state == "committed")
    is_meant = sa.or_(batches.c.batch_id == last.c.batch_id, is_compacted)
    return (
        sa.select(
            batches.c.batch_id, loaded.c.topic, loaded.c.partition, start.label("start_offset"), end.label("end_offset")
        )
        .join_from(loaded, last, last.c.batch_id == loaded.c.batch_id)
        .join(batches, sa.and_(batches.c.batch_id.between(first, last.c.batch_id), is_meant))
        .where(batches.c.consumer_group == group_id, last.c.consumer_group == group_id)
        .where(loaded.c.start_offset < end, loaded.c.end_offset > start)
    )


def refuse_published(conn: Connection, tables: Tables, group_id: str, batch_id: int) -> None:
    """Raise if another open batch may have published rows of the offsets that a batch replaces.

    :raises OpenBatchError: one may have; the message says what to do
    """
    _refuse_published(conn, tables, group_id, partial(_replaced_by, tables, group_id, batch_id))


def _refuse_published(conn: Connection, tables: Tables, group_id: str, replaced_by: _RangesOf) -> None:
    batches = tables.offset_batches.c
    ranges = replaced_by(batches.state.in_(OPEN_STATES), batches.publish_started_at.is_not(None)).subquery()
    other = conn.scalar(sa.select(sa.func.min(ranges.c.batch_id)))
    if other is not None:
        raise OpenBatchError(
            f"Batch {other}, an open replay of group {group_id!r}, may have published rows of the offsets to replace: "
            "the target would have them twice. Nothing was changed; finish that replay (clear its task, or outside of "
            "Airflow run the same replay again), or, if it does not replace rows, abandon it ("
            f"{command_line('abandon', group_id)} --batch {other} --conn-id CONN_ID --reason WHY)."
        )


def same_topic(loaded: sa.FromClause, again: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition that two ranges are of the same topic, not of a recreated one."""
    # A broker may have reported no id.
    return sa.or_(loaded.c.topic_id == again.c.topic_id, loaded.c.topic_id.is_(None), again.c.topic_id.is_(None))


def _written_here(
    conn: Connection, tables: Tables, group_id: str, target: str, replaced_by: _RangesOf
) -> sa.ColumnElement[bool]:
    """Return the condition for batches that write into a target, after a check that their output can be replaced.

    :raises ConfigurationError: batches wrote into another target
    :raises OpenBatchError: see `refuse_published`
    """
    _refuse_published(conn, tables, group_id, replaced_by)
    batches = tables.offset_batches.c
    is_own = batches.consumer_group == group_id
    same, shared = (names_of(conn, tables, target, is_own, shared=part) for part in (False, True))
    has_rows = (batches.state == "committed", batches.row_count > 0, batches.kind == "load")
    is_elsewhere = batches.target_table.not_in(same)
    elsewhere = sa.select(sa.func.min(replaced_by(is_elsewhere, *has_rows).subquery().c.batch_id))
    found = sa.select(batches.batch_id, batches.target_table).where(batches.batch_id == elsewhere.scalar_subquery())
    row = conn.execute(found).one_or_none()
    if row is not None:
        raise ConfigurationError(
            f"Batch {row.batch_id} of group {group_id!r} loaded offsets to replace into {row.target_table!r}, not into "
            f"{target!r}. Nothing was changed; name the target that the group loads into."
        )
    return batches.target_table.in_(shared)


def _may_have_rows(batches: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition that a target may have rows of a batch that is not open: a committed one, or an abandoned
    one, whose rows were removed, and come back with an older version of a lake table.
    """
    # None is that of what has no output. The number itself may be a stranger's, as a function's of the user.
    has_rows = sa.and_(batches.c.state == "committed", batches.c.row_count.is_not(None))
    # The number of rows is stored once `publications.run_pending_cleanups` has removed them.
    return sa.or_(has_rows, sa.and_(batches.c.state == "abandoned", batches.c.row_count == 0))
