"""What a task instance loaded in all its tries, as the history has it: for XCom and asset events."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from airflow_kafka_offsets.core.offsets import Span, TopicPartition
from airflow_kafka_offsets.ledger.batch_rows import TaskRun, of_task_instance
from airflow_kafka_offsets.ledger.tables import Ledger

MOST = 1_000
"""How many batches, and how many partitions, a result names at most: XCom is kept in Airflow's database."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task instance loaded, or replayed, in all its tries.

    :param batches: the ids of the last committed batches
    :param ranges: from the first start to the last end of each partition; None where these are too many
    """

    batches: tuple[int, ...]
    records: int
    rows: int
    dead_letters: int
    ranges: dict[TopicPartition, Span] | None


def read_task_result(ledger: Ledger, group_id: str, run: TaskRun, kind: str, first: int | None) -> TaskResult:
    """Return what a task instance did.

    :param kind: `load` or `replay`
    :param first: the first batch that this try committed, which another run may have planned
    """
    table, ranges = ledger.tables.offset_batches, ledger.tables.offset_ranges
    # A try that died after its last commit could not return what it did.
    own = of_task_instance(ledger.tables, group_id, run) & (table.c.kind == kind) & (table.c.state == "committed")
    wanted = own if first is None else sa.or_(own, table.c.batch_id == first)
    counts = [sa.func.coalesce(sa.func.sum(table.c[name]), 0) for name in ("records", "row_count", "dead_letters")]
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
    with ledger.connect() as conn:
        records, rows, dead_letters = map(int, conn.execute(sa.select(*counts).where(wanted)).one())
        found = {TopicPartition(topic, number): (start, end) for topic, number, start, end in conn.execute(read)}
        last = tuple(sorted(conn.scalars(newest)))
    return TaskResult(last, records, rows, dead_letters, found if len(found) <= MOST else None)
