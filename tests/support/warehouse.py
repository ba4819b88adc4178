"""A database that loads and rewinds go into without Kafka or Spark, for the tests of what a rewind writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import OffsetRange, PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.ledger.batch_rows import Batch, Recipe, TaskRun
from airflow_kafka_offsets.ledger.batches import record_plan
from airflow_kafka_offsets.ledger.claims import GroupClaim, claim_group
from airflow_kafka_offsets.ledger.commit_transaction import commit_batch
from airflow_kafka_offsets.ledger.groups import read_generation
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.positions import RangeRead, read_positions
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.rewinding.execution import execute_rewind
from airflow_kafka_offsets.rewinding.history import (
    state_before,
    state_before_last_rewind,
    with_loaded_ranges,
)
from airflow_kafka_offsets.rewinding.preview import RewindPreview, decide
from airflow_kafka_offsets.rewinding.previewing import current_state
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.verify import verify
from tests.support.ledgers import written

GROUP, CLUSTER = "orders_loader", "MkU3OEVBNTcwNTJENDM2Qg"


ID, OTHER_ID = "vVZ4aDWLQP2NkY0pxyHJYA", "Xw-aDWLQP2NkY0pxyHJYBQ"


T0, T1, U0 = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("returns", 0)


MINUTE = timedelta(minutes=1)


LOADER, OTHER_RUN = TaskRun("run-1", "dag", "load", -1, 1), TaskRun("run-2", "dag", "load", -1, 1)


REWINDER = TaskRun("manual-1", "dag", "rewind", -1, 1)


TARGET = SqlTable("output")


Ends = Mapping[TopicPartition, int]


class Warehouse:
    """A database that loads and rewinds go into. Every offset holds a record."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.engine = sa.create_engine(f"sqlite:///{path}")
        self.tables = Tables()
        self.ledger = Ledger(self.engine, self.tables)
        self.topic_id = ID
        initialize(self.ledger)
        self.create_target("output")

    def create_target(
        self, name: str, columns: str = "_kafka_topic TEXT, _kafka_partition INT, _kafka_offset INT,"
    ) -> None:
        self.change(f'CREATE TABLE "{name}" (id INTEGER, {columns} _batch_id INT)')

    # What a load does.

    def claim(self, group: str = GROUP, owner: TaskRun = LOADER) -> GroupClaim:
        return claim_group(self.ledger, group, owner, cluster_id=CLUSTER, lease=MINUTE)

    def plan(self, ends: Ends, group: str = GROUP, target: str = "output", **of_range: Any) -> tuple[GroupClaim, Batch]:
        stored = read_positions(self.ledger, group)
        ranges = tuple(
            OffsetRange(
                *tp,
                stored[tp].offset if tp in stored else 0,
                end,
                end,
                self.topic_id,
                **({"how": "stored" if tp in stored else "earliest"} | of_range),
            )
            for tp, end in ends.items()
        )
        held = self.claim(group)
        recipe = Recipe(target, None, "fingerprint")
        batch = record_plan(held, Plan(ranges), recipe, read_generation(self.ledger, group), beside_others=True)
        assert batch is not None
        return held, batch

    def commit(self, held: GroupClaim, batch: Batch, aside: Iterable[int] = (), columns: bool = True) -> int:
        reads: dict[TopicPartition, RangeRead] = {}
        rows: list[tuple[TopicPartition, int]] = []
        dead_letters: list[tuple[TopicPartition, int]] = []
        for one in batch.ranges:
            records = list(range(one.start, one.end))
            bad = [offset for offset in records if offset in aside]
            rows += [(one.topic_partition, offset) for offset in records if offset not in bad]
            dead_letters += [(one.topic_partition, offset) for offset in bad]
            reads[one.topic_partition] = RangeRead(len(records), dead_letters=len(bad))

        def write(conn: Connection) -> int:
            for tp, offset in rows:
                names, values = (
                    ("_kafka_topic, _kafka_partition, _kafka_offset,", (*tp, offset)) if columns else ("", ())
                )
                conn.exec_driver_sql(
                    f'INSERT INTO "{batch.target_table}" ({names} _batch_id) VALUES ({"?, " * len(values)}?)',
                    (*values, batch.batch_id),
                )
            for tp, offset in dead_letters:
                conn.execute(
                    self.tables.dead_letters.insert().values(
                        batch_id=batch.batch_id,
                        topic=tp.topic,
                        partition=tp.partition,
                        offset_value=offset,
                        consumer_group=batch.group_id,
                        error="bad",
                    )
                )
            return len(rows)

        return commit_batch(held, batch, written(reads, write)).rows

    def load(
        self,
        ends: Ends,
        group: str = GROUP,
        target: str = "output",
        aside: Iterable[int] = (),
        columns: bool = True,
        **of_range: Any,
    ) -> int:
        held, batch = self.plan(ends, group, target, **of_range)
        self.commit(held, batch, aside, columns)
        held.release()
        return batch.batch_id

    # What a rewind does.

    def preview(
        self,
        name: str,
        value: object = None,
        *,
        of: Iterable[TopicPartition] = (),
        logs: Mapping[TopicPartition, PartitionLog] | None = None,
        group: str = GROUP,
    ) -> RewindPreview:
        """As `preview_rewind` makes it, of logs with the offsets 0 to 1000."""
        scenario = Scenario.of(name, value)
        stand = current_state(self.ledger, group, may_be_new=True)
        stored = stand.positions
        found: Mapping[TopicPartition, Position | None] = {}
        if name == "to-batch":
            assert isinstance(scenario.value, int)
            found = state_before(self.ledger, group, scenario.value)
        if isinstance(scenario.value, Mapping):
            found = {tp: Position(offset) for tp, offset in scenario.value.items()}
        if name == "undo":
            found = state_before_last_rewind(self.ledger, group, {})
        partitions = sorted(of or found or stored)
        logs = logs if logs is not None else {tp: PartitionLog(0, 1000, self.topic_id) for tp in partitions}
        decided = decide(scenario, partitions, stored, logs, found)
        return RewindPreview(
            group,
            CLUSTER,
            stand.generation,
            scenario.text,
            name if name in ("undo", "import") else "rewind",
            with_loaded_ranges(self.ledger, group, decided, logs),
            open_batch=stand.open_batch,
        )

    def execute(self, preview: RewindPreview, **options: Any) -> int:
        done = execute_rewind(preview, engine=self.engine, tables=self.tables, **({"who": "ana@host"} | options))
        assert done.batch_id is not None
        return done.batch_id

    def rewind(
        self, name: str, value: object = None, *, replace: SqlTable | None = None, of: Iterable[TopicPartition] = ()
    ) -> int:
        return self.execute(self.preview(name, value, of=of), replace=replace)

    # What another program sees, and does.

    def rows(self, query: str, *values: object) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self.path)) as conn:
            conn.row_factory = sqlite3.Row
            return [dict(row) for row in conn.execute(query, values)]

    def change(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(self.path)) as conn, conn:
            conn.execute(statement, values)

    def dump(self) -> list[str]:
        with closing(sqlite3.connect(self.path)) as conn:
            return list(conn.iterdump())

    def batch(self, batch_id: int) -> dict[str, Any]:
        (row,) = self.rows("SELECT * FROM offset_batches WHERE batch_id = ?", batch_id)
        return row

    def ranges(self, batch_id: int) -> list[dict[str, Any]]:
        return self.rows("SELECT * FROM offset_ranges WHERE batch_id = ? ORDER BY topic, partition", batch_id)

    def positions(self, group: str = GROUP) -> dict[TopicPartition, int]:
        return {tp: at.offset for tp, at in read_positions(self.ledger, group).items()}

    def output(self, tp: TopicPartition = T0, target: str = "output") -> list[int]:
        query = (
            f'SELECT _kafka_offset AS at FROM "{target}" WHERE _kafka_topic = ? AND _kafka_partition = ? ORDER BY at'
        )
        return [row["at"] for row in self.rows(query, *tp)]

    def verify(self, target: str = "output", group: str = GROUP) -> None:
        verify(group, sink=SqlTable(target), engine=self.engine, tables=self.tables)


def offsets_of(found: Mapping[TopicPartition, Position | None]) -> dict[TopicPartition, int | None]:
    return {tp: position.offset if position is not None else None for tp, position in found.items()}
