"""Batches of replays in the state tables: planned all at once, taken over by later tries, planned again where records
expired.

A replay claims single batches, not the group, whose loads continue. It is refused if it would duplicate records: those
that the target has, or that a load will write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.history import OPEN_STATES
from airflow_kafka_offsets.core.instants import TimeSpan
from airflow_kafka_offsets.core.log_identity import is_other_topic
from airflow_kafka_offsets.core.offsets import OffsetRange, Span, TopicPartition, first_common, intersect
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.database.transactions import database_now, transact
from airflow_kafka_offsets.exceptions import ConfigurationError, DoubleLoadError, FencedError, OpenBatchError
from airflow_kafka_offsets.ledger.batch_rows import (
    Batch,
    Recipe,
    TaskRun,
    as_batch,
    as_span,
    insert_batch,
    of_task,
    of_task_instance,
    update_open,
)
from airflow_kafka_offsets.ledger.claims import BatchClaim
from airflow_kafka_offsets.ledger.compaction import Compacted, describe_compacted
from airflow_kafka_offsets.ledger.double_loads import groups_into, lock_plans, refuse_loaded_by_others, written_output
from airflow_kafka_offsets.ledger.group_table import follow_rename, group_table, loads_into, names_of
from airflow_kafka_offsets.ledger.groups import lock, lock_group
from airflow_kafka_offsets.ledger.positions import stored_positions
from airflow_kafka_offsets.ledger.publications import may_have_replaced
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.loading.context import LoadResult
from airflow_kafka_offsets.sinks.target_names import TargetNames


def refuse_double(conn: Connection, tables: Tables, replay: Replay, ranges: Sequence[OffsetRange]) -> None:
    """Check that no record will be duplicated in the target, by earlier or later loads of the group.

    :raises DoubleLoadError: a record would be
    :raises ConfigurationError: the rows to replace are in another table, or there are none yet
    """
    group_id, target = replay.group_id, replay.target
    if not loads_into(conn, tables, group_id, target):
        _check_other_target(conn, tables, replay, ranges)
        return
    if not (replay.replace or replay.upsert):
        raise DoubleLoadError(
            f"Group {group_id!r} loads into table {target!r}: a replay into it would duplicate records. Nothing was "
            "written. Replay with replace=True, which removes the rows of these offsets in the same transaction, or "
            "into a sink with an upsert_key, or into another table."
        )
    stored = stored_positions(conn, tables, group_id)
    after: list[str] = []
    for range_ in ranges:
        position = stored.get(range_.topic_partition)
        if position is None:
            after.append(f"{range_}: no position is stored")
        elif is_other_topic(position.topic_id, range_.topic_id):
            after.append(f"{range_}: position {position.offset} is stored of an earlier topic, {position.topic_id}")
        elif range_.end > position.offset:
            after.append(f"{range_}: position {position.offset} is stored")
    if after:
        end = "End the replay at or before the stored positions, run" if stored else "Run"
        raise DoubleLoadError(
            f"Group {group_id!r} loads into table {target!r}, and will load these offsets itself, so that their "
            f"records would be duplicated: {'; '.join(after)}. Nothing was written. {end} the load first, or replay "
            "into another table."
        )


def _check_plan(conn: Connection, tables: Tables, replay: Replay, ranges: Sequence[OffsetRange]) -> None:
    """Check that a new batch duplicates no record.

    :raises DoubleLoadError: a record would be
    :raises ConfigurationError: the rows to replace are in another table, or there are none yet
    """
    refuse_double(conn, tables, replay, ranges)
    refuse_overlap(conn, tables, replay, ranges)
    if replay.replace and not replay.upsert:
        refuse_loaded_by_others(conn, tables, replay.group_id, replay.target, ranges)


def _check_other_target(conn: Connection, tables: Tables, replay: Replay, ranges: Sequence[OffsetRange]) -> None:
    known = group_table(conn, tables, replay.group_id)
    if replay.replace:
        if known is None:
            raise ConfigurationError(
                f"replace=True removes what group {replay.group_id!r} loaded, and it has loaded nothing yet. Nothing "
                "was written. Run the load first, or replay without replace into a table that the group will not "
                "load into."
            )
        raise ConfigurationError(
            f"replace=True removes what group {replay.group_id!r} loaded, and that is in table {known.name!r}; this "
            f"replay is into {replay.target!r}. Replay into {known.name!r}, or without replace."
        )
    if replay.upsert:
        return
    names = TargetNames(conn, tables.offset_batches)
    shared = names.shared(known.name, replay.target) if known is not None else None
    if known is not None and shared is not None:
        raise DoubleLoadError(
            f"Group {replay.group_id!r} loads into {known.name!r}: a replay into {replay.target!r} would duplicate "
            f"records in {shared!r}. Nothing was written. Replay into all sinks of the group with replace=True, or "
            "into another table."
        )
    batches = tables.offset_batches.c
    loads = (batches.consumer_group == replay.group_id, batches.kind == "load")
    # Of a deleted group the rows are there, and no name of its table.
    has_loaded = names_of(conn, tables, replay.target, *loads, shared=True)
    own = written_output(conn, tables, {replay.group_id}, replay.target, ranges) if has_loaded else ()
    for row, range_, (start, end) in own:
        if row.kind == "load":
            raise DoubleLoadError(
                f"Group {replay.group_id!r} has loaded {range_.topic_partition} {start}..{end} into table "
                f"{replay.target!r} with batch {row.batch_id}, before it was deleted: a replay would duplicate records "
                "there. Nothing was written. Replay into another table, or into a sink with an upsert_key; or, if the "
                "group has not loaded since, take the deletion back ('kafka-offsets rewind --undo'), and replay with "
                "replace=True."
            )
    topics = {range_.topic for range_ in ranges}
    for other, table in groups_into(conn, tables, replay.target, topics, besides=replay.group_id).items():
        raise DoubleLoadError(
            f"Group {other!r} loads {', '.join(sorted(topics))} into table {table!r}: a replay of group "
            f"{replay.group_id!r} would duplicate records there. Nothing was written. Replay for group_id={other!r} "
            "with replace=True, or into another table."
        )


def refuse_overlap(conn: Connection, tables: Tables, replay: Replay, ranges: Sequence[OffsetRange]) -> None:
    """Check that a run appends no offset twice, in another mapped task instance or after a clear.

    :raises DoubleLoadError: an offset would be appended twice
    """
    if replay.replace or replay.upsert:
        return
    batches, range_rows = tables.offset_batches.c, tables.offset_ranges
    earlier = conn.execute(
        sa.select(range_rows, batches.records_since_ms, batches.records_until_ms, batches.target_table)
        .join(tables.offset_batches, range_rows.c.batch_id == batches.batch_id)
        .where(of_task(tables, replay.group_id, replay.owner), batches.kind == "replay", batches.state != "abandoned")
    ).all()
    names = TargetNames(conn, tables.offset_batches)
    requested: dict[TopicPartition, list[Span]] = defaultdict(list)
    for range_ in ranges:
        requested[range_.topic_partition].append((range_.start, range_.end))
    replayed: dict[TopicPartition, dict[Span, int]] = defaultdict(dict)
    for row in earlier:
        span = as_span(row)
        if replay.span is not None and span is not None and not replay.span.overlaps(span):
            continue
        if names.shared(row.target_table, replay.target) is None:
            continue
        replayed[TopicPartition(row.topic, row.partition)][row.start_offset, row.end_offset] = row.batch_id
    for tp, spans in sorted(requested.items()):
        common = first_common(spans, replayed[tp])
        if common is None:
            continue
        start, end = next(span for span in spans if intersect(span, common))
        before = next(span for span in replayed[tp] if intersect(span, common))
        raise DoubleLoadError(
            f"{tp} {start}..{end} would be replayed into table {replay.target!r}, but batch {replayed[tp][before]} of "
            f"the same run replayed {before[0]}..{before[1]} into it: records would be duplicated. Nothing was "
            "written. For changed bounds, start a new run, and load into a table without these rows."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A replay, as a task instance asks for it.

    :param scenario: the bounds that the user gave, as text: tries with the same text carry on with the same batches
    :param span: the span of time to which loaded and replaced records are limited, if any
    :param replace: remove the output of the group's batches for the offsets, in the same transaction
    :param upsert: whether the sink identifies a row by a key, so that loading it again does not duplicate it
    :param reason: for the history
    :param who: for the history
    """

    group_id: str
    owner: TaskRun
    scenario: str
    recipe: Recipe
    span: TimeSpan | None = None
    replace: bool = False
    upsert: bool = False
    reason: str | None = None
    who: str | None = None

    @property
    def target(self) -> str:
        return self.recipe.target_table

    def record(self, ledger: Ledger, plans: Sequence[Plan] = (), *, cluster_id: str) -> list[ReplayBatch]:
        """Take over the batches that an earlier try of the same task instance planned for the same replay, or store all
        planned batches.

        Open batches of other replays of the task instance are abandoned. Parts of this replay that were abandoned
        meanwhile are planned again. The group's row is locked, and not claimed: a running load continues.

        :param plans: the plans of the batches; empty only takes over
        :return: all batches of the replay; none where no try has planned it
        :raises ClusterChangedError: the group belongs to another cluster
        :raises DoubleLoadError: records would be duplicated
        :raises ConfigurationError: no rows can be replaced
        :raises OpenBatchError: another replay of the task instance may have replaced rows already
        """
        tables = ledger.tables

        def work(conn: Connection) -> list[ReplayBatch]:
            generation = lock_group(conn, tables, self.group_id, cluster_id)
            # From here on the plan counts as written: no load is planned that would have the records again.
            lock_plans(conn, tables)
            taken = _take_over(conn, ledger, self, generation)
            if taken or not plans:
                return taken
            ranges = [range_ for plan in plans for range_ in plan.ranges]
            _check_plan(conn, tables, self, ranges)
            return [_insert(conn, ledger, self, plan, generation) for plan in plans]

        if plans:
            follow_rename(ledger, self.target)
        return transact(ledger.engine, work)


def unfinished_owner(ledger: Ledger, group_id: str, scenario: str, target: str) -> TaskRun | None:
    """Return the process that did not finish a replay, and may have published it: the same replay takes it over, since
    its rows cannot be taken back.

    Task instances are left out: a try of theirs finishes it.
    """
    batches = ledger.tables.offset_batches.c
    query = sa.select(batches.run_id, batches.target_table).where(
        batches.consumer_group == group_id,
        batches.kind == "replay",
        batches.dag_id.is_(None),
        batches.scenario == scenario,
        batches.state.in_(OPEN_STATES),
        batches.publish_started_at.is_not(None),
    )
    with ledger.connect() as conn:
        names = TargetNames(conn, ledger.tables.offset_batches)
        rows = conn.execute(query.order_by(batches.batch_id)).all()
        return next((TaskRun(row.run_id) for row in rows if names.same(row.target_table, target)), None)


@dataclass(frozen=True, slots=True)
class ReplayClaim(BatchClaim):
    """An open batch of a replay, and the right to write it until a later try takes it over with a higher epoch."""

    kind: ClassVar[str] = "replay"
    title: ClassVar[str] = "replay"

    replay: Replay

    def begin_commit(self, conn: Connection, batch: Batch) -> None:
        """Lock the batch, and check that its records will not be duplicated.

        Where it writes into the group's own table, the group's row is locked too: no position moves meanwhile, and no
        load writes to the same offsets.

        :raises FencedError: a later try has taken the batch over
        :raises DoubleLoadError: a stored position was moved back since the batch was planned
        """
        tables = self.ledger.tables
        # The group before the batch, as `rewinding.execution.abandon_batch` locks them: two locks in two orders are a
        # deadlock.
        if self.replay.replace or loads_into(conn, tables, self.group_id, self.replay.target):
            lock(conn, tables, self.group_id)
        self.lock(conn)
        self.refuse_double(conn)

    def refuse_double(self, conn: Connection) -> None:
        """Check that no record of the batch will be duplicated.

        :raises DoubleLoadError: a record would be
        """
        refuse_double(conn, self.ledger.tables, self.replay, self.batch.ranges)

    def plan_again(self, plan: Plan, reason: str) -> ReplayClaim:
        """Abandon the batch and plan another one for its offsets, in one transaction: a replay never lacks a part.

        :param reason: for the history
        :raises FencedError: a later attempt took the batch over
        """
        tables, batch_id = self.ledger.tables, self.batch.batch_id
        batches = tables.offset_batches.c

        def work(conn: Connection) -> ReplayClaim:
            generation = conn.scalar(sa.select(batches.generation).where(batches.batch_id == batch_id))
            update_open(conn, tables, batch_id, state="abandoned", reason=reason)
            return _insert(conn, self.ledger, self.replay, plan, generation or 0)

        return self.transact(work)

    def fenced(self, conn: Connection) -> FencedError:
        """Return the error that names the current owner of the batch."""
        batches = self.ledger.tables.offset_batches.c
        row = conn.execute(
            sa.select(batches.epoch, batches.try_number).where(batches.batch_id == self.batch.batch_id)
        ).one_or_none()
        current = f"try {row.try_number}, epoch {row.epoch}" if row is not None else "its row is gone"
        return FencedError(
            f"Batch {self.batch.batch_id}, a replay of group {self.group_id!r}, was taken over by a later attempt of "
            f"{self.owner} ({current}) while this one (try {self.owner.try_number}, epoch {self.epoch}) was running. "
            "Nothing of the batch was written; the later attempt continues with the same batch."
        )


class ReplayedBatch(NamedTuple):
    """A committed batch of a replay, and its results."""

    batch: Batch
    result: LoadResult


ReplayBatch = ReplayClaim | ReplayedBatch
"""A batch of a replay that is open, or committed."""


def missing_parts(planned: Iterable[Batch], abandoned: Iterable[Batch]) -> list[Batch]:
    """Return the abandoned parts whose offsets no other part has.

    A part that was planned again without expired records is abandoned, and its successor may be abandoned, too.

    :param planned: the parts that are open or committed
    :param abandoned: in the order of their ids
    :return: in the order of their ids
    """
    covered = [part for batch in planned for part in _spans(batch)]
    missing: list[Batch] = []
    for batch in sorted(abandoned, key=lambda batch: batch.batch_id, reverse=True):
        spans = list(_spans(batch))
        if not any(tp == other and intersect(span, known) for tp, span in spans for other, known in covered):
            missing.append(batch)
            covered += spans
    return missing[::-1]


def _spans(batch: Batch) -> Iterator[tuple[TopicPartition, Span]]:
    """Yield the offsets that a part was planned for, gaps included."""
    for range_ in batch.ranges:
        yield range_.topic_partition, (range_.start, range_.end)
    for gap in batch.gaps:
        yield gap.topic_partition, (gap.start, gap.end)


def batch_of(ledger: Ledger, group_id: str, batch_id: int) -> Batch:
    """Return a load or a replay from a group's history.

    :raises ConfigurationError: the group has none with that id, or its ranges are not known any more
    """
    batches = ledger.tables.offset_batches
    with ledger.connect() as conn:
        row = conn.execute(
            sa.select(batches).where(batches.c.batch_id == batch_id, batches.c.consumer_group == group_id)
        ).one_or_none()
        if row is None or row.kind not in ("load", "replay"):
            why = "the history knows none of that number"
            if row is not None:
                why = f"batch {batch_id} is of kind {row.kind!r}"
            raise ConfigurationError(f"Group {group_id!r} has no batch {batch_id} that loaded something: {why}")
        if (compacted := Compacted.of(conn, ledger.tables, group_id).span_of(batch_id)) is not None:
            raise ConfigurationError(f"{describe_compacted(group_id, compacted)}. Name offsets or a span of time")
        return as_batch(conn, ledger.tables, row)


def _take_over(conn: Connection, ledger: Ledger, replay: Replay, generation: int) -> list[ReplayBatch]:
    tables = ledger.tables
    batches = tables.offset_batches
    of_owner = of_task_instance(tables, replay.group_id, replay.owner) & (batches.c.kind == "replay")
    into_target = batches.c.target_table.in_(names_of(conn, tables, replay.target, of_owner))
    same = sa.and_(batches.c.scenario == replay.scenario, into_target)
    still_open = batches.c.state.in_(OPEN_STATES)
    # Before anything is read: the update waits for a try that is committing, so that its batch is read as committed.
    raised = {"epoch": batches.c.epoch + 1, "try_number": replay.owner.try_number}
    conn.execute(batches.update().where(of_owner, same, still_open).values(raised))
    _refuse_published(conn, tables, of_owner & sa.not_(same) & still_open)
    other = {"state": "abandoned", "reason": f"a later try replays something else: {replay.scenario}"}
    conn.execute(batches.update().where(of_owner, sa.not_(same), still_open).values(raised | other))
    rows = conn.execute(sa.select(batches).where(of_owner, same).order_by(batches.c.batch_id)).all()
    taken = [_replay_batch(conn, ledger, replay, row) for row in rows if row.state != "abandoned"]
    if not taken:
        return []
    abandoned = [as_batch(conn, tables, row) for row in rows if row.state == "abandoned"]
    for part in missing_parts([planned.batch for planned in taken], abandoned):
        _check_plan(conn, tables, replay, part.ranges)
        taken.append(_insert(conn, ledger, replay, Plan(part.ranges, part.gaps), generation))
    return taken


def _refuse_published(conn: Connection, tables: Tables, others: sa.ColumnElement[bool]) -> None:
    """Raise if one of several batches may have been published, with a removal that cannot be undone."""
    batches = tables.offset_batches.c
    found = sa.select(batches.batch_id, batches.scenario).where(others, may_have_replaced(tables))
    row = conn.execute(found.order_by(batches.batch_id).limit(1)).one_or_none()
    if row is not None:
        raise OpenBatchError(
            f"Batch {row.batch_id} of the same task instance is a replay of {row.scenario}, and its rows may be in "
            "the target already: if it were abandoned, the rows that it replaced would be lost. Nothing was changed; "
            "finish it before another replay."
        )


def _replay_batch(conn: Connection, ledger: Ledger, replay: Replay, row: Any) -> ReplayBatch:
    batch = as_batch(conn, ledger.tables, row)
    if row.state in OPEN_STATES:
        return ReplayClaim(ledger, replay.group_id, row.epoch, replay.owner, batch, replay)
    return ReplayedBatch(batch, LoadResult((row.batch_id,), row.records, row.row_count, row.dead_letters))


def _insert(conn: Connection, ledger: Ledger, replay: Replay, plan: Plan, generation: int) -> ReplayClaim:
    values = {"state": "planned", "epoch": 1, "planned_at": database_now(conn), "scenario": replay.scenario}
    values |= {"reason": replay.reason, "who": replay.who} | asdict(replay.recipe)
    # Only offsets that are read are replaced: rows of records that expired in Kafka stay.
    read = {range_.topic_partition: (range_.start, range_.end) for range_ in plan.ranges if len(range_)}
    replaced = read if replay.replace else None
    made = insert_batch(
        conn, ledger.tables, replay.group_id, replay.owner, "replay", generation, plan, replaced, replay.span, **values
    )
    return ReplayClaim(ledger, replay.group_id, 1, replay.owner, made, replay)
