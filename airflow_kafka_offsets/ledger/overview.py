"""Groups, the history of a group, and the results of a task instance, as the command line, pages, XCom and asset events
show them. The number of queries does not depend on the number of groups. Reads only. `lag.measure` has the positions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.chunks import portions
from airflow_kafka_offsets.core.history import DELETE, OPEN_STATES, RENAMED, REWIND_KINDS
from airflow_kafka_offsets.core.offsets import Span, TopicPartition
from airflow_kafka_offsets.database.transactions import database_now
from airflow_kafka_offsets.escaping import command_line
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.ledger.batch_rows import TaskRun, latest_batch, of_task_instance
from airflow_kafka_offsets.ledger.compaction import Compacted, is_compacted
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.install import check_installed
from airflow_kafka_offsets.ledger.tables import Ledger, Tables, sum_of

Row = dict[str, Any]
"""Columns by name, with values of Python's types: numbers, text, instants with a time zone, None."""

_BATCH_COLUMNS = (
    "batch_id", "kind", "state", "scenario", "records", "row_count", "dead_letters", "generation", "attempt",
    "target_table", "transform", "who", "triggered_by", "os_user", "database_user", "dag_id", "task_id", "run_id",
    "map_index", "try_number", "planned_at", "staged_at", "committed_at", "reason", "records_since_ms",
    "records_until_ms", "added_columns", "outputs", "dead_letter_topic", "dead_letters_sent_at", "publish_started_at",
)  # fmt: skip
_SUMMARY_COLUMNS = (
    "batch_id", "state", "attempt", "row_count", "dead_letters", "planned_at", "committed_at", "dag_id", "task_id",
    "kind", "scenario",
)  # fmt: skip
_POINT_COLUMNS = (
    "batch_id", "kind", "planned_at", "staged_at", "committed_at", "records", "row_count", "dead_letters",
)  # fmt: skip
_RANGE_COLUMNS = (
    "topic", "partition", "start_offset", "end_offset", "target_offset", "records", "dead_letters", "bytes",
    "first_timestamp", "last_timestamp", "how", "replaced_start_offset", "replaced_end_offset",
)  # fmt: skip
_GAP_COLUMNS = ("topic", "partition", "start_offset", "end_offset", "cause", "decision")
_REPLACED_COLUMNS = ("topic", "partition", "replaced_batch_id", "row_count", "dead_letters")
_SCHEMA_COLUMNS = ("of", "schema_id", "type", "schema")


def batches(conn: Connection, tables: Tables, group_id: str, limit: int) -> list[Row]:
    """Return the latest batches of a group, the newest first.

    :raises ConfigurationError: there is no such group; names those that exist
    """
    cluster_of(conn, tables, group_id)
    columns = tables.offset_batches.c
    query = _select(tables.offset_batches, *_BATCH_COLUMNS).where(columns.consumer_group == group_id)
    return _rows(conn, query.order_by(columns.batch_id.desc()).limit(limit))


def batch(conn: Connection, tables: Tables, group_id: str, batch_id: int) -> Row | None:
    """Return a batch of a group; None where it has no such batch."""
    columns = tables.offset_batches.c
    query = _select(tables.offset_batches, *_BATCH_COLUMNS)
    rows = _rows(conn, query.where(columns.consumer_group == group_id, columns.batch_id == batch_id))
    return rows[0] if rows else None


def compacted_with(conn: Connection, tables: Tables, group_id: str, batch_id: int) -> tuple[int, int] | None:
    """Return the first and the last of the batches that were compacted with a batch; the last one has all ranges."""
    return Compacted.of(conn, tables, group_id).span_of(batch_id)


def batch_parts(
    conn: Connection, tables: Tables, group_id: str, batch_id: int, *, with_texts: bool = True
) -> list[Row]:
    """Return the parts of a batch: `part` is range, gap, replaced or schema, with the columns of all four.

    :param with_texts: whether to read what the schemas are, which may be megabytes
    :raises ConfigurationError: the group, or a batch of it with that id, does not exist
    """
    cluster_of(conn, tables, group_id)
    owner = conn.scalar(
        sa.select(tables.offset_batches.c.consumer_group).where(tables.offset_batches.c.batch_id == batch_id)
    )
    if owner != group_id:
        known = f": it is one of group {owner!r}" if owner is not None else ""
        raise ConfigurationError(
            f"Group {group_id!r} has no batch {batch_id}{known}. '{command_line('history', group_id)}' lists its "
            "batches"
        )
    parts = {
        "range": (tables.offset_ranges, _RANGE_COLUMNS),
        "gap": (tables.offset_gaps, _GAP_COLUMNS),
        "replaced": (tables.replaced_output, _REPLACED_COLUMNS),
    }
    names = dict.fromkeys([*(_label(name) for _, columns in parts.values() for name in columns), *_SCHEMA_COLUMNS])
    rows: list[Row] = []
    for part, (table, columns) in parts.items():
        query = (
            _select(table, *columns)
            .where(table.c.batch_id == batch_id)
            .order_by(*(table.c[name] for name in columns[:3]))
        )
        rows += [{"part": part} | names | row for row in _rows(conn, query)]
    read, texts = tables.batch_schemas.c, tables.schema_texts.c
    schemas = (
        sa.select(
            read.part.label("of"),
            read.schema_id,
            texts.type,
            (texts.texts if with_texts else sa.null()).label("schema"),
        )
        .join(tables.schema_texts, texts.digest == read.digest)
        .where(read.batch_id == batch_id)
        .order_by(read.part, read.schema_id)
    )
    read_schemas = _rows(conn, schemas)
    for row in read_schemas:
        # Without the digest of where its id means something.
        row["type"] = row["type"].partition(":")[0]
    return rows + [{"part": "schema"} | names | row for row in read_schemas]


def _select(table: sa.Table, *names: str) -> sa.Select[Any]:
    return sa.select(*(table.c[name].label(_label(name)) for name in names))


def _label(name: str) -> str:
    return "rows" if name == "row_count" else name


def _rows(conn: Connection, query: sa.Select[Any]) -> list[Row]:
    # SQLAlchemy's names are of a subclass of str, which YAML cannot represent.
    return [{str(name): value for name, value in row.items()} for row in conn.execute(query).mappings()]


_MOST_BETWEEN, _MOST_OF_TARGET = 10, 2_000


class BetweenCommits(NamedTuple):
    """A batch whose external target may differ from the state tables; see `ledger.publications`.

    :param state: `staged` (or `planned` again), `abandoned`, or the kind of a rewind
    :param since: when it began to be published, or was executed
    """

    batch_id: int
    state: str
    target: str
    since: datetime


def between_commits(
    conn: Connection, tables: Tables, group_ids: Collection[str] | None = None
) -> dict[str, list[BetweenCommits]]:
    """Return the batches that may be between two commits, by group, in order: of each group the first ones, which has
    two at most, unless another program wrote others.

    :param group_ids: of some groups; None is all
    """
    batches = tables.offset_batches.c
    state = sa.case((batches.kind.in_(REWIND_KINDS), batches.kind), else_=batches.state)
    is_between = [batches.publish_started_at.is_not(None)]
    if group_ids is not None:
        is_between.append(batches.consumer_group.in_(group_ids))
    place = sa.func.row_number().over(partition_by=batches.consumer_group, order_by=batches.batch_id)
    placed = sa.select(batches.batch_id, place.label("place")).where(*is_between).subquery("placed")
    target = sa.func.substr(batches.target_table, 1, _MOST_OF_TARGET, type_=sa.Text())
    query = sa.select(batches.consumer_group, batches.batch_id, state, target, batches.publish_started_at)
    query = query.join(placed, placed.c.batch_id == batches.batch_id).where(placed.c.place <= _MOST_BETWEEN)
    found: dict[str, list[BetweenCommits]] = defaultdict(list)
    for group_id, *batch in conn.execute(query.order_by(batches.batch_id)):
        found[group_id].append(BetweenCommits(*batch))
    return found


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """A batch of a group: one that was committed last, or the open one. The fields are `_SUMMARY_COLUMNS`."""

    batch_id: int
    state: str
    attempt: int
    rows: int | None
    dead_letters: int | None
    planned_at: datetime
    committed_at: datetime | None
    dag_id: str | None
    task_id: str | None
    kind: str = "load"
    scenario: str | None = None


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group as its state tables have it.

    :param last_commit: the last committed batch
    :param last: the last committed load
    :param open: the load that is planned or staged
    :param held_by: the run that holds the lease, by the database's clock
    :param dead_letters: the number of dead letters whose contents are stored
    :param between: batches whose target may differ from the state tables
    """

    group_id: str
    cluster_id: str | None
    generation: int
    partitions: int
    last_commit: BatchSummary | None
    last: BatchSummary | None
    open: BatchSummary | None
    held_by: str | None
    held_until: datetime | None
    dead_letters: int
    between: tuple[BetweenCommits, ...]

    @property
    def is_deleted(self) -> bool:
        """Return whether the group was deleted or renamed, and nothing has loaded it since."""
        is_last = self.last_commit is not None and self.last_commit.kind in (DELETE, RENAMED)
        return is_last and self.open is None and self.held_by is None

    @property
    def dag_ids(self) -> frozenset[str]:
        """Return the DAGs of the last load and of the open one."""
        return frozenset(load.dag_id for load in (self.last, self.open) if load is not None and load.dag_id is not None)


def group_summaries(
    conn: Connection, tables: Tables, group_ids: Sequence[str] | None = None, *, with_deleted: bool = False
) -> tuple[datetime, list[GroupSummary]]:
    """Return the database's time, and groups in the order of their names.

    :param group_ids: some groups; None is all
    :param with_deleted: of all, also those that were deleted or renamed
    :raises ConfigurationError: there are no state tables
    :raises LedgerError: they are of another version
    """
    check_installed(conn, tables)
    now = database_now(conn)
    groups, batches = tables.consumer_groups, tables.offset_batches.c
    is_load = batches.kind == "load"

    def of_group(table: sa.Table, selected: sa.ColumnElement[int], *conditions: Any) -> sa.Select[int]:
        is_of_group = table.c.consumer_group == groups.c.group_id
        return sa.select(selected).select_from(table).where(is_of_group, *conditions).correlate(groups)

    # By the index of groups and batches, which a GROUP BY over all batches would read whole.
    last = latest_batch(tables, groups.c.group_id, batches.state == "committed").correlate(groups)
    opened = of_group(tables.offset_batches, batches.batch_id, is_load, batches.state.in_(OPEN_STATES))
    partitions = of_group(tables.consumed_offsets, sa.func.count())
    # Read once for all groups: for each, planners would read all of them.
    of_letter = tables.dead_letters.c.consumer_group
    with_contents = sa.select(of_letter, sa.func.count()).where(tables.with_contents).group_by(of_letter)
    query = sa.select(
        groups,
        last.scalar_subquery().label("last_commit"),
        last.where(is_load).scalar_subquery().label("last_load"),
        opened.scalar_subquery().label("open_load"),
        partitions.scalar_subquery().label("partitions"),
    )
    if group_ids is not None:
        query = query.where(groups.c.group_id.in_(group_ids))
        with_contents = with_contents.where(of_letter.in_(group_ids))
    found = sorted(conn.execute(query).all(), key=lambda row: str(row.group_id))
    ids = {batch_id for row in found for batch_id in (row.last_commit, row.last_load, row.open_load)} - {None}
    shown = _batches(conn, tables, sorted(ids))
    dead_letters: dict[str, int] = dict(conn.execute(with_contents).all())
    between = between_commits(conn, tables, group_ids)
    summaries = []
    for row in found:
        held = row.lease_owner is not None and (row.lease_expires_at or now) > now
        summaries.append(
            GroupSummary(
                row.group_id,
                row.cluster_id,
                row.generation,
                row.partitions,
                shown.get(row.last_commit),
                shown.get(row.last_load),
                shown.get(row.open_load),
                row.lease_owner if held else None,
                row.lease_expires_at if held else None,
                dead_letters.get(row.group_id, 0),
                tuple(between.get(row.group_id, ())),
            )
        )
    return now, [each for each in summaries if group_ids is not None or with_deleted or not each.is_deleted]


# Databases limit the bound values of a statement.
_AT_ONCE = 500


def _batches(conn: Connection, tables: Tables, batch_ids: Sequence[int]) -> dict[int, BatchSummary]:
    table = tables.offset_batches
    query = _select(table, *_SUMMARY_COLUMNS)
    found: dict[int, BatchSummary] = {}
    for some in portions(batch_ids, _AT_ONCE):
        rows = conn.execute(query.where(table.c.batch_id.in_(some)))
        found |= {row.batch_id: BatchSummary(*row) for row in rows}
    return found


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """A batch on the time line of a group. Durations are what the state tables store: the instants between which a
    batch was planned, staged and committed.

    :param newest_record: the newest timestamp of its records
    :param skipped: offsets of its gaps
    """

    batch_id: int
    kind: str
    planned_at: datetime
    staged_at: datetime | None
    committed_at: datetime
    records: int | None
    rows: int | None
    dead_letters: int | None
    newest_record: datetime | None
    skipped: int


def history_points(conn: Connection, tables: Tables, group_id: str, limit: int) -> list[HistoryPoint]:
    """Return the latest committed loads and rewinds of a group, the oldest first."""
    batches, ranges, gaps = tables.offset_batches.c, tables.offset_ranges.c, tables.offset_gaps.c
    newest = sa.select(sa.func.max(ranges.last_timestamp)).where(ranges.batch_id == batches.batch_id)
    # Databases have larger sums than offsets.
    skipped = sa.select(sum_of(gaps.end_offset) - sum_of(gaps.start_offset)).where(gaps.batch_id == batches.batch_id)
    query = (
        _select(tables.offset_batches, *_POINT_COLUMNS)
        .add_columns(newest.scalar_subquery(), skipped.scalar_subquery())
        .where(
            batches.consumer_group == group_id,
            batches.kind.in_(("load", *REWIND_KINDS)),
            batches.state == "committed",
            batches.committed_at.is_not(None),
        )
        .order_by(batches.batch_id.desc())
        .limit(limit)
    )
    return [HistoryPoint(*row[:-1], int(row[-1] or 0)) for row in conn.execute(query).all()[::-1]]  # type: ignore[call-arg]


MOST = 1_000
"""How many batches, and how many partitions, a result names at most: XCom is kept in Airflow's database."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The offsets that a task instance loaded, or replayed, in all its tries.

    :param batches: the ids of the last committed batches
    :param ranges: from the first start to the last end of each partition; None for too many partitions, and where
        batches were compacted with those of others
    """

    batches: tuple[int, ...]
    records: int
    rows: int
    dead_letters: int
    ranges: dict[TopicPartition, Span] | None


def read_task_result(ledger: Ledger, group_id: str, run: TaskRun, kind: str, first: int | None) -> TaskResult:
    """Return the result of a task instance.

    :param kind: `load` or `replay`
    :param first: the first batch that this try committed, which another run may have planned
    """
    table, ranges = ledger.tables.offset_batches, ledger.tables.offset_ranges
    # A try that died after its last commit could not return what it did.
    own = of_task_instance(ledger.tables, group_id, run) & (table.c.kind == kind) & (table.c.state == "committed")
    wanted = own if first is None else sa.or_(own, table.c.batch_id == first)
    counts = [sa.func.coalesce(sum_of(table.c[name]), 0) for name in ("records", "row_count", "dead_letters")]
    bounds = (sa.func.min(ranges.c.start_offset), sa.func.max(ranges.c.end_offset))
    partition = (ranges.c.topic, ranges.c.partition)
    read = (
        sa.select(*partition, *bounds)
        .join(table, table.c.batch_id == ranges.c.batch_id)
        .where(wanted, ranges.c.start_offset < ranges.c.end_offset)
        .group_by(*partition)
        .order_by(*partition)
        .limit(MOST + 1)
    )
    newest = sa.select(table.c.batch_id).where(wanted).order_by(table.c.batch_id.desc()).limit(MOST)
    # Those of compacted batches are the ranges of other task instances, too.
    compacted = sa.select(table.c.batch_id).where(wanted, is_compacted(ledger.tables, group_id)).limit(1)
    with ledger.connect() as conn:
        records, rows, dead_letters = map(int, conn.execute(sa.select(*counts).where(wanted)).one())
        found = {TopicPartition(topic, number): (start, end) for topic, number, start, end in conn.execute(read)}
        last = tuple(sorted(conn.scalars(newest)))
        is_known = len(found) <= MOST and conn.scalar(compacted) is None
    return TaskResult(last, records, rows, dead_letters, found if is_known else None)


class TopicTotals(NamedTuple):
    """What batches read of a topic.

    :param bytes: of keys and values
    """

    records: int
    bytes: int


def read_topic_totals(ledger: Ledger, batches: Sequence[int]) -> dict[str, TopicTotals]:
    """Return what committed batches read, by topic; a topic of which they read nothing is left out."""
    ranges = ledger.tables.offset_ranges.c
    sums = [sa.func.coalesce(sum_of(column), 0) for column in (ranges.records, ranges.bytes)]
    query = sa.select(ranges.topic, *sums).where(ranges.batch_id.in_(batches)).group_by(ranges.topic)
    with ledger.connect() as conn:
        return {topic: TopicTotals(int(records), int(size)) for topic, records, size in conn.execute(query) if records}
