"""Execute the preview of a rewind: all its partitions in one transaction, or nothing. An undo is executed like any
rewind.

`abandon_batch` abandons an open batch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, ProgrammingError

from airflow_kafka_offsets.core.history import REWIND_KINDS
from airflow_kafka_offsets.core.offsets import Gap, Position, Scope
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.core.text import count, first_few
from airflow_kafka_offsets.database.errors import is_outage, refusal, translated_errors
from airflow_kafka_offsets.database.transactions import database_now, transact
from airflow_kafka_offsets.exceptions import (
    ClusterChangedError,
    CommitUnknownError,
    OpenBatchError,
    RewindConflictError,
    TargetError,
)
from airflow_kafka_offsets.ledger.batch_rows import TaskRun, current_user, insert_batch, of_task_instance, open_batch_of
from airflow_kafka_offsets.ledger.batches import abandon_locked
from airflow_kafka_offsets.ledger.dead_letter_batches import settle_dead_letter_batches
from airflow_kafka_offsets.ledger.group_table import follow_rename
from airflow_kafka_offsets.ledger.groups import cluster_of, lock, lock_group, wait_for_group
from airflow_kafka_offsets.ledger.install import create_missing, installed_version
from airflow_kafka_offsets.ledger.positions import bound_partition, is_bound_partition, set_positions, stored_positions
from airflow_kafka_offsets.ledger.publications import Publication, run_pending_cleanups
from airflow_kafka_offsets.ledger.replaced_output import count_output, replace_output
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.rewinding.history import count_removed, executed_preview
from airflow_kafka_offsets.rewinding.preview import PartitionRewind, RewindPreview
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from airflow_kafka_offsets.sinks.fan_out import Sinks, as_sink
from airflow_kafka_offsets.sinks.sink import Connections, Sink
from airflow_kafka_offsets.sinks.sql.rows import count_replaced
from airflow_kafka_offsets.sinks.table import Output, Table
from airflow_kafka_offsets.sinks.target_names import TargetNames
from airflow_kafka_offsets.sinks.target_rows import ReplacedOffsets

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RewindResult:
    """What a rewind did.

    :param batch_id: its id in the history; None if there was nothing to change
    :param moved: the number of changed positions
    :param rows_removed: the number of rows deleted from the target
    :param dead_letters_removed: the number of records deleted from `dead_letters`
    """

    batch_id: int | None
    moved: int = 0
    rows_removed: int = 0
    dead_letters_removed: int = 0


def execute_rewind(
    preview: RewindPreview,
    *,
    engine: Engine,
    tables: Tables | None = None,
    run: TaskRun | None = None,
    who: str | None = None,
    reason: str | None = None,
    abandon: int | None = None,
    replace: Sinks | None = None,
    connections: Connections | None = None,
) -> RewindResult:
    """Execute a preview, for all partitions in one transaction, or not at all.

    :param preview: what `preview_rewind` returned
    :param engine: the database of the positions
    :param tables: where the state tables are; None is without a schema and a prefix
    :param run: the task instance that rewinds; a rewind that an earlier try executed is not repeated
    :param who: the author, for the history; None is the user of this process
    :param reason: a note for the history
    :param abandon: the id of the open batch to abandon in the same transaction, also if no position changes
    :param replace: the group's target: its rows of the offsets that will be read again, and their dead letters, are
        deleted in the same transaction; also where a position stays, and an earlier rewind left rows after it
    :param connections: the contents of the target's connections
    :raises RewindConflictError: positions have moved since the preview was made; nothing was changed
    :raises OpenBatchError: a batch is open, and not the one to abandon; nothing was changed
    :raises OlderLedgerError: the target has rows of batches that the state tables do not know; nothing was changed
    :raises ConfigurationError: the rows of the target have no origin, or positions of another cluster would stay;
        nothing was changed
    :raises DatabaseUnavailableError: the database failed; nothing was changed
    :raises CommitUnknownError: the connection broke, and the database could not be asked whether the rewind was
        committed
    :raises LedgerError: see `exceptions`
    """
    ledger = Ledger(engine, tables or Tables.of())
    sink = as_sink(replace)
    target = None if sink is None else ledger.qualified(sink).connect(engine, connections)
    rewind = _Rewind(ledger, preview, run or TaskRun.of_this_process(), who or current_user(), reason, abandon, target)
    group_id, scenario = preview.group_id, preview.scenario
    if not rewind.moves:
        log.info("Nothing to change: %s leaves the positions of group %r where they are", scenario, group_id)
        if abandon is not None:
            abandon_batch(group_id, abandon, engine=engine, tables=tables, who=rewind.author, reason=reason)
            log.info("Batch %d of group %r is abandoned", abandon, group_id)
        return RewindResult(None)
    if target is not None:
        preview.refuse_replace()
    if preview.generation is None:
        create_missing(ledger)
    if target is not None:
        follow_rename(ledger, target.sink.name)
        # Rows of dead letters whose replay was interrupted are in the history first.
        settle_dead_letter_batches(ledger, target, group_id)
    try:
        with translated_errors(
            f"The positions of group {group_id!r} were not moved, and nothing was changed",
            "Do it again when the database is available.",
        ):
            batch_id = _transact(rewind)
    except CommitUnknownError as unknown:
        raise CommitUnknownError(
            f"It is unknown whether the positions of group {group_id!r} were moved. {unknown}. Look at the history of "
            "the group: the rewind is there as a whole, or not at all."
        ) from unknown
    if target is not None:
        run_pending_cleanups(ledger, target, group_id)
    moved = len(preview.changed)
    log.info(
        "Moved %s of group %r (%s), number %d in the history", count(moved, "position"), group_id, scenario, batch_id
    )
    return RewindResult(batch_id, moved, *count_removed(ledger, batch_id))


class Removal(NamedTuple):
    """What a rewind with `replace` would remove now.

    :param rows: None where they cannot be counted before: the target is not a table of the database of the positions
    :param erased: how many of the dead letters `dead-letters drop` erased
    :param replayed: how many batches of the rows replayed dead letters
    """

    rows: int | None
    dead_letters: int
    erased: int = 0
    replayed: int = 0

    @property
    def text(self) -> str:
        rows = "the rows" if self.rows is None else count(self.rows, "row")
        return f"{rows} and {count(self.dead_letters, 'dead letter')}"

    @property
    def warning(self) -> str | None:
        """Return what becomes of dead letters that were erased or replayed; None if none was."""
        warnings = []
        if self.erased:
            warnings.append(
                f"{count(self.erased, 'dead letter was', 'dead letters were')} erased: the next dead letter of such a "
                "record has no contents either. But a record that becomes a row this time is in the target with its "
                "data. To prevent that, delete it from the topic first, or leave out its partition"
            )
        if self.replayed:
            warnings.append(
                f"{count(self.replayed, 'batch', 'batches')} of these rows replayed dead letters: their records are "
                "read again as Kafka has them, without corrections"
            )
        return ". ".join(warnings) or None


def check_removal(
    preview: RewindPreview, replace: Sinks, *, ledger: Ledger, connections: Connections | None = None
) -> Removal:
    """Check that a rewind can remove the rows of a target, and count them. Nothing is written.

    :raises KafkaOffsetsError: as `execute_rewind` with `replace`
    """
    preview.refuse_replace()
    if preview.generation is None:
        return Removal(0, 0)
    sink, tables, group_id = ledger.qualified(as_sink(replace)), ledger.tables, preview.group_id
    target = sink.connect(ledger.engine, connections)
    reread = {move.topic_partition: move.reread for move in preview.replacing if move.reread is not None}
    topic_ids = {move.topic_partition: move.new.topic_id for move in preview.replacing if move.new is not None}

    def count_rows(replaced: ReplacedOffsets) -> int:
        target.check_replaced(conn, replaced)
        return sum(count_replaced(conn, table, replaced) for table in sink.tables)

    with ledger.connect() as conn:
        number = (conn.scalar(sa.select(sa.func.max(tables.offset_batches.c.batch_id))) or 0) + 1
        target.refuse_unknown_rows(conn, tables.offset_batches, Output(number, group_id, preview.replaced_ranges, ""))
        rows, *letters = count_output(conn, tables, group_id, sink.name, reread, topic_ids, count_rows)
    return Removal(rows if sink.tables else None, *letters)


def _transact(rewind: _Rewind) -> int:
    """Execute a rewind, and return the id of its batch.

    :raises TargetError: the database refuses to remove rows of the target
    """
    try:
        return transact(rewind.ledger.engine, rewind.execute, outcome=rewind.look_up)
    except DBAPIError as error:
        # As for the commit of a batch.
        if rewind.target is None or is_outage(error) or isinstance(error, ProgrammingError):
            raise
        reason = refusal(error)
    # Outside of the handler: the details of the error quote rows.
    raise TargetError(
        f"The positions of group {rewind.preview.group_id!r} were not moved, and nothing was changed: the database "
        f"does not remove rows of table {rewind.target.sink.name!r}: {reason}"
    )


@dataclass(frozen=True, slots=True)
class _Rewind:
    """A preview that is executed in one transaction, for an author."""

    ledger: Ledger
    preview: RewindPreview
    run: TaskRun
    who: str
    reason: str | None
    abandon: int | None
    target: Table | None

    @property
    def moves(self) -> tuple[PartitionRewind, ...]:
        return self.preview.moves(replace=self.target is not None)

    @property
    def author(self) -> str:
        """Return who moves positions, and who triggered the DAG run."""
        triggered_by = self.run.triggered_by
        return self.who if triggered_by is None else f"{self.who}, triggered by {triggered_by}"

    def execute(self, conn: Connection) -> int:
        """Move the positions, and return the id of the batch that records it."""
        tables, preview, group_id = self.ledger.tables, self.preview, self.preview.group_id
        if preview.generation is None:
            lock_group(conn, tables, group_id, preview.cluster_id)
        else:
            lock(conn, tables, group_id)
        # An earlier try may have held the lock, and have committed.
        done = self._executed(conn)
        if done is not None:
            return done
        _check_unchanged(conn, tables, preview, self.abandon)
        if self.abandon is not None:
            moved = None if preview.moves_cluster else {move.topic_partition for move in preview.changed}
            abandon_locked(conn, tables, group_id, self.abandon, self.author, self.reason, moved=moved)
        return self._move(conn)

    def _move(self, conn: Connection) -> int:
        """Write the batch and the positions, and remove the output that is replaced."""
        tables, preview, group_id, target = self.ledger.tables, self.preview, self.preview.group_id, self.target
        now, generation = database_now(conn), (preview.generation or 0) + 1
        decision = f"moved forward by {self.author} ({preview.scenario})"
        gaps = (
            Gap(*move.topic_partition, *span, "passed over", decision) for move in self.moves for span in move.skipped
        )
        plan = Plan(tuple(move.as_range() for move in self.moves), tuple(gaps))
        values: dict[str, Any] = {"state": "committed", "planned_at": now, "committed_at": now}
        values |= {"scenario": preview.scenario, "reason": self.reason, "who": self.who}
        replaced = None
        if target is not None:
            replaced = {move.topic_partition: move.reread for move in self.moves if move.reread}
            values["target_table"] = target.sink.name
            values["publish_started_at"] = now if target.sink.commits_externally else None
        batch = insert_batch(conn, tables, group_id, self.run, preview.kind, generation, plan, replaced, **values)
        if target is not None:
            publication = Publication.of(self.ledger, target, batch, preview.kind, conn=conn)
            # Rows that are not known would stay, and in an Iceberg table only the last batch shows them.
            target.refuse_unknown_rows(conn, tables.offset_batches, publication.output)
            remove = partial(publication.remove_replaced, conn)
            replace_output(conn, tables, group_id, batch.batch_id, target.sink.name, remove)
        offsets, groups = tables.consumed_offsets, tables.consumer_groups
        stored = [bound_partition(move.topic_partition) for move in self.moves if move.old is not None]
        if stored:
            of_group = offsets.c.consumer_group == group_id
            conn.execute(offsets.delete().where(of_group, is_bound_partition(offsets)), stored)
        # Deleted and inserted: the timestamp of the last record loaded is not that of the one before the new position.
        positions = {move.topic_partition: move.new for move in self.moves if move.new is not None}
        set_positions(conn, tables, group_id, batch.batch_id, positions, now)
        moved = {"generation": generation, "cluster_id": preview.cluster_id}
        conn.execute(groups.update().where(groups.c.group_id == group_id).values(moved))
        return batch.batch_id

    def look_up(self, conn: Connection) -> int | None:
        """Return the id of the batch if the transaction was committed."""
        # The server may not have noticed that the connection broke, and still hold the lock of the transaction.
        wait_for_group(conn, self.ledger.tables, self.preview.group_id, self.preview.cluster_id)
        return self._executed(conn)

    def _executed(self, conn: Connection) -> int | None:
        sink, preview = None if self.target is None else self.target.sink, self.preview
        return _executed_by(conn, self.ledger.tables, preview.group_id, self.run, preview.scenario, sink)


def executed_by(
    ledger: Ledger, run: TaskRun, group_id: str, scenario: Scenario, scope: Scope, replace: Sink | None
) -> tuple[RewindPreview, RewindResult] | None:
    """Return what an earlier try of a task instance has rewound; None if none has.

    :param scenario: if the latest rewind had another scenario, scope or target, this is a new rewind
    """
    tables = ledger.tables
    with ledger.connect() as conn:
        if installed_version(conn, tables) is None:
            return None
        batch_id = _executed_by(conn, tables, group_id, run, scenario.describe(scope), replace)
    if batch_id is None:
        return None
    preview = executed_preview(ledger, batch_id)
    return preview, RewindResult(batch_id, len(preview.changed), *count_removed(ledger, batch_id))


def abandon_batch(
    group_id: str,
    batch_id: int,
    *,
    engine: Engine,
    tables: Tables | None = None,
    who: str | None = None,
    reason: str | None = None,
) -> None:
    """Abandon an open batch, a load or a replay: its attempt can never commit, and the positions stay where they are.

    A prefetched batch after it is abandoned, too. The next load plans again from the stored positions.

    :param group_id: the group
    :param batch_id: the id of the batch
    :param engine: the database of the positions
    :param tables: where the state tables are; None is without a schema and a prefix
    :param who: the author, for the history; None is the user of this process
    :param reason: a note for the history
    :raises OpenBatchError: the group has no such batch, or it is not open
    :raises ConfigurationError: the group does not exist
    """
    ledger, who = Ledger(engine, tables or Tables.of()), who or current_user()

    def work(conn: Connection) -> None:
        lock(conn, ledger.tables, group_id)
        abandon_locked(conn, ledger.tables, group_id, batch_id, who, reason)

    with ledger.connect() as conn:
        cluster_of(conn, ledger.tables, group_id)  # raises if there is no such group
    with translated_errors(f"Batch {batch_id} of group {group_id!r} was not abandoned", "Try again."):
        transact(engine, work)


def _check_unchanged(conn: Connection, tables: Tables, preview: RewindPreview, abandon: int | None) -> None:
    """Raise an error if the group has changed since the preview was made, or has an open batch."""
    group_id, groups = preview.group_id, tables.consumer_groups
    row = conn.execute(sa.select(groups).where(groups.c.group_id == group_id)).one_or_none()
    if row is None or row.generation != (preview.generation or 0):
        raise RewindConflictError(
            f"The positions of group {group_id!r} were rewound since this preview was made: the preview is of "
            f"generation {preview.generation or 0}, the group of {row.generation if row is not None else 'none'}. "
            "Nothing was changed; make a new preview."
        )
    if row.cluster_id not in (None, preview.cluster_id) and not preview.moves_cluster:
        raise ClusterChangedError(
            f"The positions of group {group_id!r} belong to Kafka cluster {row.cluster_id!r}, the preview to "
            f"{preview.cluster_id!r}. Nothing was changed."
        )
    stored = stored_positions(conn, tables, group_id)
    moved = [
        f"{partition.topic_partition}: {_text(partition.old)} in the preview, {_text(now)} now"
        for partition in preview.partitions
        if partition.old != (now := stored.get(partition.topic_partition))
    ]
    if moved:
        raise RewindConflictError(
            f"Positions of group {group_id!r} have moved since this preview was made: "
            f"{first_few(moved, between='; ')}. Nothing was changed; make a new preview."
        )
    preview.refuse_left_behind(stored)
    check_open_batch(group_id, open_batch_of(conn, tables, group_id), abandon)


def check_open_batch(group_id: str, open_batch: int | None, abandon: int | None) -> None:
    """Raise if a group has an open batch that is not the one to abandon, or the one to abandon is not open."""
    if open_batch == abandon:
        return
    if open_batch is None:
        raise OpenBatchError(f"Batch {abandon} of group {group_id!r} is not open. Nothing was changed.")
    also = f", which is not batch {abandon}" if abandon is not None else ""
    raise OpenBatchError(
        f"Group {group_id!r} has the open batch {open_batch}{also}, which starts at the positions to move. Nothing "
        f"was changed; let a load finish it first, or abandon batch {open_batch} together with the rewind."
    )


def _text(position: Position | None) -> str:
    return f"position {position.offset}" if position is not None else "no position"


def _executed_by(
    conn: Connection, tables: Tables, group_id: str, run: TaskRun, scenario: str, target: Sink | None
) -> int | None:
    """Return the id of the latest rewind of a task instance; None if it has none, or with another scenario or target.

    After a clear with other parameters, a task instance executes a new rewind.
    """
    batches = tables.offset_batches.c
    last = conn.execute(
        sa.select(batches.batch_id, batches.target_table, (batches.scenario == scenario).label("is_same"))
        .where(of_task_instance(tables, group_id, run), batches.kind.in_(REWIND_KINDS))
        .order_by(batches.batch_id.desc())
        .limit(1)
    ).one_or_none()
    if last is None or not last.is_same:
        return None
    if target is None or last.target_table is None:
        is_same = target is None and last.target_table is None
    else:
        name = target.qualified(conn, tables.offset_batches).name
        is_same = TargetNames(conn, tables.offset_batches).same(last.target_table, name)
    return last.batch_id if is_same else None
