"""Batches of replays in the state tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.core.spans import Span, intersect
from airflow_kafka_offsets.database.transactions import database_now, transact
from airflow_kafka_offsets.exceptions import ConfigurationError, FencedError
from airflow_kafka_offsets.ledger.batch_rows import (
    OPEN_STATES,
    Batch,
    as_batch,
    insert_batch,
    insert_gaps,
    insert_ranges,
    of_task_instance,
)
from airflow_kafka_offsets.ledger.claims import transact_claimed
from airflow_kafka_offsets.ledger.group_table import loads_into, same_table_names
from airflow_kafka_offsets.ledger.groups import lock, lock_group
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.ledger.task_run import TaskRun
from airflow_kafka_offsets.replaying.double_loads import refuse_double, refuse_overlap
from airflow_kafka_offsets.replaying.request import Replay


def missing_parts(planned: Iterable[Batch], given_up: Iterable[Batch]) -> list[Batch]:
    """The parts whose offsets are in no other one.

    A part that was planned anew, without what had expired, is among those that were given up, and so may its successor be.

    :param planned: the parts that are open or committed
    :param given_up: in the order of their ids
    :return: in the order of their ids
    """
    covered = [one for batch in planned for one in _offsets(batch)]
    missing: list[Batch] = []
    for batch in sorted(given_up, key=lambda batch: batch.batch_id, reverse=True):
        mine = list(_offsets(batch))
        if not any(tp == other and intersect(span, planned_for) for tp, span in mine for other, planned_for in covered):
            missing.append(batch)
            covered += mine
    return missing[::-1]


def _offsets(batch: Batch) -> Iterator[tuple[TopicPartition, Span]]:
    """What a part was planned for, gaps included."""
    yield from ((one.topic_partition, (one.start, one.end)) for one in batch.ranges)
    yield from ((TopicPartition(gap.topic, gap.partition), (gap.start, gap.end)) for gap in batch.gaps)


@dataclass(frozen=True, slots=True)
class ReplayClaim:
    """The right to write for a batch of a replay, until a later try takes the batch over."""

    replay: Replay
    batch_id: int
    epoch: int

    @property
    def group_id(self) -> str:
        return self.replay.group_id

    @property
    def owner(self) -> TaskRun:
        return self.replay.owner

    def lock(self, conn: Connection, tables: Tables) -> None:
        """Lock the batch's row, and make sure that nobody took it over since.

        :raises FencedError: somebody did
        """
        batches = tables.offset_batches
        mine = (batches.c.batch_id == self.batch_id) & (batches.c.epoch == self.epoch)
        if conn.execute(batches.update().where(mine).values(epoch=self.epoch)).rowcount != 1:
            raise self._fenced(conn, tables)

    def wait(self, conn: Connection, tables: Tables) -> None:
        """Lock the batch's row."""
        batches = tables.offset_batches
        conn.execute(batches.update().where(batches.c.batch_id == self.batch_id).values(epoch=batches.c.epoch))

    def check(self, engine: Engine, tables: Tables) -> None:
        """Make sure, without a lock, that nobody took the batch over since.

        :raises FencedError: somebody did
        """
        batches = tables.offset_batches.c
        with engine.connect() as conn:
            if conn.scalar(sa.select(batches.epoch).where(batches.batch_id == self.batch_id)) != self.epoch:
                raise self._fenced(conn, tables)

    def _fenced(self, conn: Connection, tables: Tables) -> FencedError:
        batches = tables.offset_batches.c
        row = conn.execute(
            sa.select(batches.epoch, batches.try_number).where(batches.batch_id == self.batch_id)
        ).one_or_none()
        found = f"try {row.try_number}, epoch {row.epoch}" if row is not None else "its row is gone"
        return FencedError(
            f"Batch {self.batch_id}, a replay of group {self.group_id!r}, was taken over by a later attempt of {self.owner} "
            f"({found}) while this one (try {self.owner.try_number}, epoch {self.epoch}) was at work. Nothing of this attempt "
            "was written; the other one carries on with the same batch."
        )


@dataclass(frozen=True, slots=True)
class ReplayBatch:
    """A batch of a replay.

    :param claim: None where the batch is committed
    :param records: of a committed batch, as are the other counts
    """

    batch: Batch
    claim: ReplayClaim | None
    records: int = 0
    rows: int = 0
    dead_letters: int = 0


def batch_of(engine: Engine, tables: Tables, group_id: str, batch_id: int) -> Batch:
    """A batch of a group's history that loaded something.

    :raises ConfigurationError: the group has none of that number
    """
    batches = tables.offset_batches
    with engine.connect() as conn:
        row = conn.execute(
            sa.select(batches).where(batches.c.batch_id == batch_id, batches.c.consumer_group == group_id)
        ).one_or_none()
        if row is None or row.kind not in ("load", "replay"):
            kind = f"batch {batch_id} is a {row.kind}" if row is not None else "the history knows none of that number"
            raise ConfigurationError(f"Group {group_id!r} has no batch {batch_id} that loaded something: {kind}")
        return as_batch(conn, tables, row)


def take_replay(engine: Engine, tables: Tables, replay: Replay, *, cluster_id: str) -> list[ReplayBatch]:
    """The batches that an earlier try of the same task instance planned for the same replay; the open ones are taken over.

    Those that it planned for another one and left open are given up. Parts of this one that were given up meanwhile are
    planned again.

    :return: all batches of the replay, or none where nobody planned it
    :raises ClusterChangedError: the group belongs to another cluster
    :raises DoubleLoadError: records of a part that was given up would be in the target twice by now
    """

    def work(conn: Connection) -> list[ReplayBatch]:
        generation = lock_group(conn, tables, replay.group_id, cluster_id)
        return _taken(conn, tables, replay, generation)

    return transact(engine, work)


def record_replay(
    engine: Engine, tables: Tables, replay: Replay, plans: Sequence[Plan], *, cluster_id: str
) -> list[ReplayBatch]:
    """Write all the batches of a replay ahead of any work; where another try was quicker, take over its own.

    The group's row is locked meanwhile, and not claimed: a load goes on undisturbed.

    :raises ClusterChangedError: the group belongs to another cluster
    :raises DoubleLoadError: records would be in the target twice
    :raises ConfigurationError: there is nothing that could be replaced
    """

    def work(conn: Connection) -> list[ReplayBatch]:
        generation = lock_group(conn, tables, replay.group_id, cluster_id)
        planned = _taken(conn, tables, replay, generation)
        if planned:
            return planned
        ranges = [one for plan in plans for one in plan.ranges]
        refuse_double(conn, tables, replay, ranges)
        refuse_overlap(conn, tables, replay, ranges)
        return [_insert(conn, tables, replay, plan, generation) for plan in plans]

    return transact(engine, work)


def plan_again(engine: Engine, tables: Tables, claim: ReplayClaim, plan: Plan, reason: str) -> ReplayBatch:
    """Abandon an open batch, and plan it anew, in one transaction: a replay never lacks a part.

    :param reason: for the history
    :raises FencedError: a later attempt took the batch over
    """
    batches = tables.offset_batches

    def work(conn: Connection) -> ReplayBatch:
        generation = conn.scalar(sa.select(batches.c.generation).where(batches.c.batch_id == claim.batch_id))
        conn.execute(
            batches.update()
            .where(batches.c.batch_id == claim.batch_id, batches.c.state.in_(OPEN_STATES))
            .values(state="abandoned", reason=reason)
        )
        return _insert(conn, tables, claim.replay, plan, generation or 0)

    return transact_claimed(engine, tables, claim, work)


def enter_commit(conn: Connection, tables: Tables, claim: ReplayClaim, batch: Batch) -> None:
    """Begin the transaction that commits a batch of a replay.

    Where it writes into the group's own table, the group's row is locked too: no position moves meanwhile, and nobody else
    adds to the offsets.

    :raises FencedError: a later attempt took the batch over
    :raises DoubleLoadError: a stored position was moved back since the plan
    """
    # Before the batch's row, as whoever abandons a batch does: two locks in two orders are a deadlock.
    if claim.replay.replace or loads_into(conn, tables, claim.group_id, claim.replay.target):
        lock(conn, tables, claim.group_id)
    claim.lock(conn, tables)
    refuse_double(conn, tables, claim.replay, batch.ranges)


def _taken(conn: Connection, tables: Tables, replay: Replay, generation: int) -> list[ReplayBatch]:
    """Raise the epochs of open batches first: whoever is committing one of them is waited for, and seen to be done."""
    batches = tables.offset_batches
    mine = of_task_instance(tables, replay.group_id, replay.owner) & (batches.c.kind == "replay")
    into = batches.c.target_table.in_(same_table_names(conn, replay.target))
    same = sa.and_(batches.c.scenario == replay.scenario, into)
    still_open = batches.c.state.in_(OPEN_STATES)
    raised = {"epoch": batches.c.epoch + 1, "try_number": replay.owner.try_number}
    conn.execute(batches.update().where(mine, same, still_open).values(raised))
    other = {"state": "abandoned", "reason": f"a later try replays something else: {replay.scenario}"}
    conn.execute(batches.update().where(mine, sa.not_(same), still_open).values(raised | other))
    rows = conn.execute(sa.select(batches).where(mine, same).order_by(batches.c.batch_id)).all()
    taken = [_replay_batch(conn, tables, replay, row) for row in rows if row.state != "abandoned"]
    if not taken:
        return []
    given_up = [as_batch(conn, tables, row) for row in rows if row.state == "abandoned"]
    for part in missing_parts([one.batch for one in taken], given_up):
        refuse_double(conn, tables, replay, part.ranges)
        refuse_overlap(conn, tables, replay, part.ranges)
        taken.append(_insert(conn, tables, replay, Plan(part.ranges, part.gaps), generation))
    return taken


def _replay_batch(conn: Connection, tables: Tables, replay: Replay, row: Any) -> ReplayBatch:
    batch = as_batch(conn, tables, row)
    if row.state in OPEN_STATES:
        return ReplayBatch(batch, ReplayClaim(replay, row.batch_id, row.epoch))
    return ReplayBatch(batch, None, row.records, row.row_count, row.dead_letters)


def _insert(conn: Connection, tables: Tables, replay: Replay, plan: Plan, generation: int) -> ReplayBatch:
    batch_id = insert_batch(
        conn,
        tables,
        replay.group_id,
        replay.owner,
        "replay",
        generation,
        state="planned",
        epoch=1,
        planned_at=database_now(conn),
        scenario=replay.scenario,
        reason=replay.reason,
        who=replay.who,
        **asdict(replay.recipe),
    )
    insert_ranges(conn, tables, batch_id, plan.ranges, _replaced(plan.ranges) if replay.replace else None)
    insert_gaps(conn, tables, batch_id, plan.gaps)
    batch = Batch(
        batch_id,
        replay.group_id,
        "planned",
        plan.ranges,
        plan.gaps,
        replay.target,
        fingerprint=replay.recipe.fingerprint,
    )
    return ReplayBatch(batch, ReplayClaim(replay, batch_id, 1))


def _replaced(ranges: Iterable[OffsetRange]) -> dict[Any, tuple[int, int]]:
    """What is read, and no more: rows of records that Kafka has lost stay."""
    return {one.topic_partition: (one.start, one.end) for one in ranges if one.end > one.start}
