"""A ledger in an SQLite file, and what its tests plan, load and ask."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.ledger.batch_rows import Batch, Recipe, TaskRun
from airflow_kafka_offsets.ledger.batches import record_plan
from airflow_kafka_offsets.ledger.claims import GroupClaim, claim_group
from airflow_kafka_offsets.ledger.commit_transaction import Written, commit_batch
from airflow_kafka_offsets.ledger.positions import RangeRead, Reads, read_positions
from airflow_kafka_offsets.ledger.tables import Ledger, Tables

GROUP, CLUSTER, TOPIC_ID = "orders_loader", "MkU3OEVBNTcwNTJENDM2Qg", "vVZ4aDWLQP2NkY0pxyHJYA"
MINUTE = timedelta(minutes=1)
T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
FIRST_TRY = TaskRun("run-1", "dag", "load", -1, 1)
SECOND_TRY = replace(FIRST_TRY, try_number=2)
OTHER_RUN = TaskRun("run-2", "dag", "load", -1, 1)
RECIPE = Recipe("shop.orders", None, "fingerprint")
OLD, NEW = datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC), datetime(2024, 5, 6, 8, 0, tzinfo=UTC)


def offset_range(tp: TopicPartition, start: int, end: int, *, target: int | None = None, how: str) -> OffsetRange:
    return OffsetRange(*tp, start, end, end if target is None else target, TOPIC_ID, how)


FIRST_LOAD = Plan((offset_range(T0, 0, 10, how="earliest"), offset_range(T1, 5, 7, how="earliest")))
NEXT_LOAD = Plan((offset_range(T0, 10, 15, how="stored"),))


def written(reads: Reads, write: Callable[[Connection], int]) -> Callable[[Connection], Written]:
    """Return what a commit calls to write rows of which it is known what was read."""
    return lambda conn: Written(write(conn), reads, "output")


class Database:
    """A ledger with the questions that tests ask of it, and a table that rows are written to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.engine = sa.create_engine(f"sqlite:///{path}")
        self.tables = Tables()
        self.ledger = Ledger(self.engine, self.tables)

    def claim(self, owner: TaskRun = FIRST_TRY, *, cluster_id: str = CLUSTER, lease: timedelta = MINUTE) -> GroupClaim:
        return claim_group(self.ledger, GROUP, owner, cluster_id=cluster_id, lease=lease)

    def plan(self, held: GroupClaim, plan: Plan = FIRST_LOAD) -> Batch:
        batch = record_plan(held, plan, RECIPE, 0)
        assert batch is not None
        return batch

    def commit(
        self,
        held: GroupClaim,
        batch: Batch,
        reads: dict[TopicPartition, RangeRead] | None = None,
        write: Callable[[Connection], int] | None = None,
    ) -> int:
        return commit_batch(held, batch, written(reads or {}, write or self.write_a_row)).rows

    def load(self, held: GroupClaim, plan: Plan = FIRST_LOAD) -> Batch:
        batch = self.plan(held, plan)
        self.commit(held, batch)
        return batch

    @staticmethod
    def write_a_row(conn: Connection) -> int:
        conn.exec_driver_sql("INSERT INTO output (id) VALUES (1)")
        return 1

    def output(self) -> list[int]:
        return [row["id"] for row in self.rows("SELECT id FROM output")]

    def rows(self, query: str, *values: object) -> list[dict[str, Any]]:
        """What another program sees."""
        with closing(sqlite3.connect(self.path)) as conn:
            conn.row_factory = sqlite3.Row
            return [dict(row) for row in conn.execute(query, values)]

    def change(self, statement: str, *values: object) -> None:
        """What another program does."""
        with closing(sqlite3.connect(self.path)) as conn, conn:
            conn.execute(statement, values)

    def batch(self, batch_id: int) -> dict[str, Any]:
        (row,) = self.rows("SELECT * FROM offset_batches WHERE batch_id = ?", batch_id)
        return row

    def positions(self) -> dict[TopicPartition, int]:
        return {tp: at.offset for tp, at in read_positions(self.ledger, GROUP).items()}

    def lease_ends(self) -> str | None:
        (row,) = self.rows("SELECT lease_expires_at FROM consumer_groups")
        ends: str | None = row["lease_expires_at"]
        return ends

    def dump(self) -> list[str]:
        with closing(sqlite3.connect(self.path)) as conn:
            return list(conn.iterdump())


def until(condition: Callable[[], bool], timeout: float = 30.0) -> None:
    """Wait for a condition that other threads, or the database's clock, bring about."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
