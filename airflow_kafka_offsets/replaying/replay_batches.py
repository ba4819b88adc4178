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
from airflow_kafka_offsets.exceptions import ConfigurationError
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
from airflow_kafka_offsets.ledger.group_table import same_table_names
from airflow_kafka_offsets.ledger.groups import lock_group
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.replaying.double_loads import refuse_double, refuse_overlap
from airflow_kafka_offsets.replaying.replay_claim import ReplayClaim
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
