"""Batches of every kind as rows of the state tables, and their owners: the queries and inserts that loads, replays and
rewinds share.

A group has at most one open load. After it there may be a prefetched load, in a separate state: the commit of the open
load opens it, and to abandon the open load is to abandon both. So a group never has two open loads, and batches that
move positions are committed in the order of their ids.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.history import DELETE, OPEN_STATES, PREFETCHED, REPLAY_KINDS, REWIND_KINDS
from airflow_kafka_offsets.core.instants import TimeSpan, from_milliseconds
from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, TopicPartition
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.exceptions import BatchClosedError, LedgerError
from airflow_kafka_offsets.ledger.tables import Ledger, Tables


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the rows of a batch are made, for the history.

    :param transform: the name of the transform, such as its import path or its SQL, or None
    :param fingerprint: a hash of everything that decides which rows a range becomes
    """

    target_table: str
    transform: str | None
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as the state tables have it.

    :param state: planned, staged, committed or abandoned
    :param kind: load, replay, rewind and so on
    :param target_table: the table that it was planned for
    :param staging_uri: the directory of the latest attempt's files; None before the first attempt
    :param fingerprint: of the recipe of the latest attempt
    :param span: the span of time to which the records of the ranges are limited, if any
    :param is_publishing: whether the target may have its rows already; see `ledger.publications`
    """

    batch_id: int
    group_id: str
    state: str
    ranges: tuple[OffsetRange, ...]
    gaps: tuple[Gap, ...] = ()
    target_table: str | None = None
    staging_uri: str | None = None
    fingerprint: str | None = None
    span: TimeSpan | None = None
    is_publishing: bool = False
    kind: str = "load"

    @property
    def offsets(self) -> int:
        """The number of offsets in the ranges."""
        return sum(map(len, self.ranges))

    @property
    def starts(self) -> dict[TopicPartition, int]:
        """The offset at which the batch starts each partition: its gap comes before its range."""
        starts = {range_.topic_partition: range_.start for range_ in self.ranges}
        return starts | {gap.topic_partition: gap.start for gap in self.gaps}


_DATABASE_USERS = {
    "postgresql": "session_user",
    "mysql": "session_user()",
    "mariadb": "session_user()",
    "mssql": "original_login()",
}
"""How databases call the user who logged in, whichever role is set."""


def current_user() -> str:
    """Return the operating system's user of this process, with the machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # containers run with any uid: it need not have a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def database_user(conn: Connection) -> sa.ColumnElement[str | None]:
    """Return the expression for the user who is logged in to the database.

    It is null if the database has no users, or none that can be queried.
    """
    return sa.literal_column(_DATABASE_USERS.get(conn.dialect.name, "NULL"), sa.Text)


def of_task(tables: Tables, group_id: str, owner: TaskRun) -> sa.ColumnElement[bool]:
    """Return the condition for batches of the same task and run, in any of its mapped task instances."""
    batches = tables.offset_batches.c
    return sa.and_(
        batches.consumer_group == group_id,
        batches.run_id == owner.run_id,
        batches.task_id.is_not_distinct_from(owner.task_id),
        batches.dag_id.is_not_distinct_from(owner.dag_id),
    )


def of_task_instance(tables: Tables, group_id: str, owner: TaskRun) -> sa.ColumnElement[bool]:
    """Return the condition for batches of the same task instance, in any try."""
    return of_task(tables, group_id, owner) & tables.offset_batches.c.map_index.is_not_distinct_from(owner.map_index)


def latest_try(tables: Tables, group_id: str, owner: TaskRun) -> sa.ColumnElement[int | None]:
    """Return the try of a batch that an owner writes: its own, unless another task instance planned the batch. The log
    of this try says what became of it.
    """
    own = (of_task_instance(tables, group_id, owner), sa.literal(owner.try_number, sa.Integer))
    return sa.case(own, else_=tables.offset_batches.c.try_number)


_COLUMNS = {"start": "start_offset", "end": "end_offset", "target": "target_offset"}
"""The columns of attributes of `OffsetRange` and `Gap` that are not named as these."""


def _as_columns(part: OffsetRange | Gap) -> dict[str, Any]:
    return {_COLUMNS.get(name, name): value for name, value in asdict(part).items()}


def _attributes(part: type[OffsetRange | Gap], row: Any) -> dict[str, Any]:
    return {each.name: getattr(row, _COLUMNS.get(each.name, each.name)) for each in fields(part)}


def insert_batch(
    conn: Connection,
    tables: Tables,
    group_id: str,
    owner: TaskRun,
    kind: str,
    generation: int,
    plan: Plan,
    replaced: Mapping[TopicPartition, tuple[int, int]] | None = None,
    span: TimeSpan | None = None,
    **values: Any,
) -> Batch:
    """Insert a batch with its ranges and gaps, and return it.

    :param plan: the ranges, and as gaps the offsets that it skips
    :param replaced: the offsets whose earlier output it replaces
    :param span: the span of time to which loaded and replaced records are limited, if any
    :param values: the values of the other columns
    """
    since_ms, until_ms = span.milliseconds if span is not None else (None, None)
    result = conn.execute(
        tables.offset_batches.insert().values(
            consumer_group=group_id,
            generation=generation,
            kind=kind,
            attempt=0,
            os_user=current_user(),
            database_user=database_user(conn),
            records_since_ms=since_ms,
            records_until_ms=until_ms,
            **asdict(owner),
            **values,
        )
    )
    key = result.inserted_primary_key
    assert key is not None  # every supported database returns the generated number
    of_batch = {"batch_id": int(key[0])}
    range_rows = []
    for range_ in plan.ranges:
        start, end = (replaced or {}).get(range_.topic_partition, (None, None))
        of_range = of_batch | {"replaced_start_offset": start, "replaced_end_offset": end}
        range_rows.append(of_range | _as_columns(range_))
    if range_rows:
        conn.execute(tables.offset_ranges.insert(), range_rows)
    if plan.gaps:
        conn.execute(tables.offset_gaps.insert(), [of_batch | _as_columns(gap) for gap in plan.gaps])
    made = (values.get("target_table"), None, values.get("fingerprint"), span, False, kind)
    return Batch(key[0], group_id, values["state"], plan.ranges, plan.gaps, *made)


def update_batch(conn: Connection, tables: Tables, batch_id: int, **values: object) -> None:
    """Update a batch, whatever its state."""
    batches = tables.offset_batches
    conn.execute(batches.update().where(batches.c.batch_id == batch_id).values(**values))


def update_open(
    conn: Connection, tables: Tables, batch_id: int, *, states: Sequence[str] = OPEN_STATES, **values: object
) -> bool:
    """Update a batch that is open; return False where it was committed or abandoned meanwhile."""
    batches = tables.offset_batches
    still_open = batches.update().where(batches.c.batch_id == batch_id, batches.c.state.in_(states))
    return conn.execute(still_open.values(**values)).rowcount == 1


def change_open(
    conn: Connection, tables: Tables, batch: Batch, *, states: Sequence[str] = OPEN_STATES, **values: object
) -> None:
    """Update a batch that is open.

    :raises BatchClosedError: it was committed or abandoned meanwhile
    """
    if not update_open(conn, tables, batch.batch_id, states=states, **values):
        raise BatchClosedError(
            f"Batch {batch.batch_id} of group {batch.group_id!r} is not open any more: it was committed or abandoned "
            "by another attempt or user. Nothing was written."
        )


def as_batch(conn: Connection, tables: Tables, row: Any) -> Batch:
    """Return a row of `offset_batches` as a batch, with its ranges and gaps.

    :raises LedgerError: no program of this package writes such rows
    """

    def parts(table: sa.Table) -> sa.CursorResult[Any]:
        of_batch = sa.select(table).where(table.c.batch_id == row.batch_id)
        return conn.execute(of_batch.order_by(table.c.topic, table.c.partition))

    ranges, gaps = map(as_range, parts(tables.offset_ranges)), map(as_gap, parts(tables.offset_gaps))
    is_publishing = row.publish_started_at is not None
    with possible_rows(tables.offset_batches, row.batch_id):
        stored = (row.target_table, row.staging_uri, row.fingerprint, as_span(row), is_publishing, row.kind)
    with possible_rows(tables.offset_ranges, row.batch_id):
        batch = Batch(row.batch_id, row.consumer_group, row.state, tuple(ranges), tuple(gaps), *stored)
        for range_ in batch.ranges:
            # A rewind may move a position back.
            if range_.start > range_.end and row.kind not in REWIND_KINDS:
                raise ValueError(f"{range_} ends before it starts")
    return batch


@contextmanager
def possible_rows(table: sa.Table, batch_id: int) -> Iterator[None]:
    """Raise a LedgerError where the rows of a batch cannot be understood, because another program wrote them."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise LedgerError(
            f"Table {table.fullname!r} has a row of batch {batch_id} that no load can have written: {error}. Find out "
            "which program changed it, and correct the row, or restore state tables and target from a backup"
        ) from error


def as_span(row: Any) -> TimeSpan | None:
    """Return the span of time of a row of `offset_batches`; None if it takes all records."""
    since_ms, until_ms = row.records_since_ms, row.records_until_ms
    if since_ms is None:
        return None
    return TimeSpan(from_milliseconds(since_ms), from_milliseconds(until_ms) if until_ms is not None else None)


def as_range(row: Any) -> OffsetRange:
    """Return a row of `offset_ranges` as a range."""
    return OffsetRange(**_attributes(OffsetRange, row))


def as_gap(row: Any) -> Gap:
    """Return a row of `offset_gaps` as a gap."""
    return Gap(**_attributes(Gap, row))


@dataclass(frozen=True, slots=True)
class TaskRun:
    """An Airflow task instance in one of its tries, or a process outside of Airflow.

    The tries of a task instance are the same owner: a later try takes over from an earlier one at once.

    :param triggered_by: the user of Airflow who triggered the DAG run; None if a schedule or an asset did
    """

    run_id: str
    dag_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None
    try_number: int | None = None
    triggered_by: str | None = None

    @classmethod
    def of_this_process(cls) -> TaskRun:
        """Return an identity that no other process has, for scripts and notebooks."""
        return cls(run_id=f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}")

    def __str__(self) -> str:
        if self.dag_id is None:
            return f"process {self.run_id}"
        mapped = f" map index {self.map_index}" if self.map_index is not None and self.map_index >= 0 else ""
        return f"dag {self.dag_id!r} task {self.task_id!r} run {self.run_id!r}{mapped}"


def is_load(tables: Tables, group_id: str, *states: str) -> sa.ColumnElement[bool]:
    """Return the condition for loads of a group in some states."""
    batches = tables.offset_batches.c
    return sa.and_(batches.consumer_group == group_id, batches.kind == "load", batches.state.in_(states))


def latest_batch(
    tables: Tables, group: str | sa.ColumnElement[str], *conditions: sa.ColumnElement[bool]
) -> sa.Select[Any]:
    """Select the id of the latest batch of a group that meets conditions.

    :param group: its name, or the column of the statement around it that has the name
    """
    batches = tables.offset_batches.c
    # A range of one name, and in the order of the index: for an equality, planners may read the batches of all groups
    # backwards, which they take for equally busy, to the last one of a group that loads no more.
    of_group = batches.consumer_group.between(group, group)
    latest = sa.select(batches.batch_id).where(of_group, *conditions)
    return latest.order_by(batches.consumer_group.desc(), batches.batch_id.desc()).limit(1)


def deletion_of(conn: Connection, tables: Tables, group_id: str) -> int:
    """Return the id of the batch that deleted a group last, if that was not undone; 0 if there is none. Batches before
    it are those of another group of the same name.
    """
    deleted = last_deletion(conn, tables, group_id)
    return 0 if deleted and next_move(conn, tables, group_id, deleted) == "undo" else deleted


def next_move(conn: Connection, tables: Tables, group_id: str, batch_id: int) -> str | None:
    """Return the kind of the first batch of a group after another one that may have moved positions; None where there
    is none. Replays, and what was abandoned, have moved none.
    """
    batches = tables.offset_batches.c
    later = sa.select(batches.kind).where(
        batches.consumer_group == group_id,
        batches.batch_id > batch_id,
        batches.kind.not_in(REPLAY_KINDS),
        batches.state != "abandoned",
    )
    return conn.scalar(later.order_by(batches.batch_id).limit(1))


def last_deletion(conn: Connection, tables: Tables, group_id: str) -> int:
    """Return the id of the batch that deleted a group last, even if that was undone; 0 if there is none."""
    batches = tables.offset_batches.c
    # Not a parameter: the index of replays and deletions is known to hold all of them.
    of_group = batches.consumer_group == group_id, batches.kind == sa.literal_column(f"'{DELETE}'")
    return max(conn.scalars(sa.select(batches.batch_id).where(*of_group)), default=0)


def renamed_keys(
    outputs: sa.ColumnElement[str | None], old: Sequence[str], new: Sequence[str]
) -> sa.ColumnElement[str | None]:
    """Return the JSON of `batch_notes.note_outputs` with other names of targets."""
    for before, after in zip(old, new, strict=True):
        for sign in ("{", ", ") if before != after else ():
            outputs = sa.func.replace(outputs, f"{sign}{json.dumps(before)}: {{", f"{sign}{json.dumps(after)}: {{")
    return outputs


def open_batch_of(conn: Connection, tables: Tables, group_id: str) -> int | None:
    """Return the id of the group's planned or staged load, within a transaction."""
    return conn.scalar(sa.select(tables.offset_batches.c.batch_id).where(is_load(tables, group_id, *OPEN_STATES)))


def has_prefetched_batch(ledger: Ledger, group_id: str) -> bool:
    """Return whether a group has a prefetched batch, of any attempt."""
    with ledger.connect() as conn:
        prefetched = is_load(ledger.tables, group_id, PREFETCHED)
        return conn.scalar(sa.select(ledger.tables.offset_batches.c.batch_id).where(prefetched)) is not None


def open_prefetched_batch(conn: Connection, tables: Tables, committed: Batch) -> None:
    """Make the prefetched batch the group's open one, in the transaction that commits the batch before it."""
    batches = tables.offset_batches
    # With the id, so that an index leads to it.
    following = is_load(tables, committed.group_id, PREFETCHED) & (batches.c.batch_id > committed.batch_id)
    conn.execute(batches.update().where(following).values(state="planned"))


def abandon_prefetched_batch(
    conn: Connection, tables: Tables, group_id: str, batch_id: int, abandoned: str
) -> dict[int, str]:
    """Abandon the prefetched batch in the transaction that abandons the open one: positions will not reach its start.

    It began no partition, so no first position has to be stored.

    :param batch_id: the id of the open batch
    :param abandoned: the author and the reason, for the history
    :return: the staging URI of the latest attempt, by batch id
    """
    batches = tables.offset_batches.c
    prefetched = sa.select(batches.batch_id, batches.staging_uri).where(is_load(tables, group_id, PREFETCHED))
    found = conn.execute(prefetched).one_or_none()
    if found is None:
        return {}
    reason = f"prefetched after batch {batch_id}, which was {abandoned}"
    update_batch(conn, tables, found.batch_id, state="abandoned", reason=reason)
    return {found.batch_id: found.staging_uri} if found.staging_uri is not None else {}
