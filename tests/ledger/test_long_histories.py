"""What a load, a commit and the table of groups read of a long history of many groups, by the plans of a real Postgres:
no more than of a short one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.offsets import OffsetRange
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.ledger.batch_rows import Recipe
from airflow_kafka_offsets.ledger.batches import (
    begin_staging,
    bytes_per_offset,
    captured_targets,
    mark_staged,
    record_plan,
)
from airflow_kafka_offsets.ledger.claims import claim_group
from airflow_kafka_offsets.ledger.commit_transaction import Written, commit_batch
from airflow_kafka_offsets.ledger.dead_letters import drop_expired, unsent_batches
from airflow_kafka_offsets.ledger.double_loads import groups_into, loaded_by_others, refuse_loaded
from airflow_kafka_offsets.ledger.group_table import group_table, keep_to_table
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.overview import group_summaries
from airflow_kafka_offsets.ledger.positions import RangeRead
from airflow_kafka_offsets.ledger.tables import Ledger
from tests.support import fixtures
from tests.support.ledgers import CLUSTER, FIRST_TRY, MINUTE
from tests.support.loads import rows

pytestmark = pytest.mark.server

engine = fixtures.postgres_engine

_BATCHES, _GROUPS, _PARTITIONS = 20_000, 10, 2

_MOST_ROWS = 1_000

# A batch in fifty is a replay into another table. The last of the groups loaded at the beginning only.
_HISTORY = f"""
INSERT INTO consumer_groups (group_id, cluster_id, generation, epoch) SELECT 'g' || g, '{CLUSTER}', 0, 0
    FROM generate_series(0, {_GROUPS}) g;
INSERT INTO offset_batches (batch_id, consumer_group, generation, kind, state, attempt, run_id, target_table, records,
        row_count, dead_letters, planned_at, committed_at)
    SELECT n, 'g' || g, 0,
        CASE WHEN n / {_GROUPS} %% 50 = 30 THEN 'replay' ELSE 'load' END, 'committed', 1, 'run-' || n,
        CASE WHEN n / {_GROUPS} %% 50 = 30 THEN 'replayed' ELSE 'target' || g END, 1, 1, 0, now() - interval '1 day',
        now() - interval '1 day' FROM generate_series(1, {_BATCHES}) n,
        LATERAL (SELECT CASE WHEN n < 100 THEN {_GROUPS} ELSE n %% {_GROUPS} END AS g) groups;
INSERT INTO offset_ranges (batch_id, topic, partition, start_offset, end_offset, target_offset, records, bytes, how)
    SELECT n, 'orders', p, n, n + 1, n + 1, 1, 100, 'stored'
    FROM generate_series(1, {_BATCHES}) n, generate_series(0, {_PARTITIONS - 1}) p;
INSERT INTO consumed_offsets (consumer_group, topic, partition, offset_value, batch_id, updated_at)
    SELECT consumer_group, 'orders', p, max(batch_id) + 1, max(batch_id), now()
    FROM offset_batches, generate_series(0, {_PARTITIONS - 1}) p WHERE kind = 'load' GROUP BY consumer_group, p;
INSERT INTO dead_letters (batch_id, topic, partition, offset_value, consumer_group, error, error_class)
    SELECT 100 + n / 10 * 10, 'orders', n %% 10, n, 'g0', 'bad', 'value' FROM generate_series(1, {_BATCHES - 100}) n;
SELECT setval('offset_batches_batch_id_seq', {_BATCHES})
"""


@pytest.fixture
def ledger(engine: Engine) -> Ledger:
    made = Ledger(engine)
    initialize(made)
    with engine.begin() as conn:
        for statement in _HISTORY.split(";\n"):
            conn.exec_driver_sql(statement)
    with engine.connect() as conn:
        conn.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("VACUUM ANALYZE")
    return made


@pytest.fixture
def read(ledger: Ledger) -> Iterator[Callable[[], int]]:
    """The most rows that a node of the plan of a statement has read since the last call."""
    most = [0]

    @sa.event.listens_for(ledger.engine, "before_cursor_execute")
    def explain(conn: Connection, cursor: Any, statement: str, parameters: Any, _: object, many: bool) -> None:
        if not statement.startswith(("SELECT", "UPDATE", "DELETE")) or many:
            return
        with conn.connection.dbapi_connection.cursor() as other:  # type: ignore[union-attr]
            other.execute("SAVEPOINT explained")
            other.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
            most[0] = max(most[0], _rows_read(other.fetchone()[0][0]["Plan"]))
            other.execute("ROLLBACK TO SAVEPOINT explained")

    def since_the_last_call() -> int:
        found, most[0] = most[0], 0
        return found

    yield since_the_last_call
    sa.event.remove(ledger.engine, "before_cursor_execute", explain)


def _rows_read(node: dict[str, Any]) -> int:
    own = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return max(int(own), *map(_rows_read, node.get("Plans", [])), 0)


def ranges(group: str, ledger: Ledger, *more: OffsetRange) -> tuple[OffsetRange, ...]:
    stored = f"SELECT partition, offset_value FROM consumed_offsets WHERE consumer_group = '{group}' ORDER BY 1"
    return (*(OffsetRange("orders", p, at, at + 1, at + 1) for p, at in rows(ledger.engine, stored)), *more)


def test_a_statement_that_reads_a_whole_history_is_noticed(ledger: Ledger, read: Callable[[], int]) -> None:
    with ledger.connect() as conn:
        loaded_by_others(conn, ledger.tables, "g0", "target0")
    assert read() == _BATCHES * _PARTITIONS


@pytest.mark.parametrize("group", ["g0", f"g{_GROUPS}", "new"])
def test_a_load_reads_little_of_it(ledger: Ledger, read: Callable[[], int], group: str) -> None:
    tables, new = ledger.tables, OffsetRange("orders", 99, 0, 1, 1, how="earliest")
    target = f"target{group.removeprefix('g')}"
    plan = Plan(ranges(group, ledger, new))
    held = claim_group(ledger, group, FIRST_TRY, cluster_id=CLUSTER, lease=MINUTE)
    keep_to_table(held, ["orders"], target)
    captured_targets(held)
    bytes_per_offset(ledger, group)
    batch = record_plan(held, plan, Recipe(target, None, "fingerprint"), 0)
    assert batch is not None
    begin_staging(held, batch, "/staging/1", Recipe(target, None, "fingerprint"))
    mark_staged(held, batch, 3)
    reads = {range_.topic_partition: RangeRead(1) for range_ in batch.ranges}
    commit_batch(held, batch, lambda _: Written(3, reads, target))
    with ledger.engine.begin() as conn:
        assert unsent_batches(conn, tables, group) == []
        assert drop_expired(conn, tables, group, timedelta(hours=1)) == (1_000 if group == "g0" else 0)
    assert read() <= _MOST_ROWS


@pytest.mark.parametrize("target", ["target", "target0"])
def test_the_groups_of_a_topic_are_found_with_a_few_statements(
    ledger: Ledger, read: Callable[[], int], target: str
) -> None:
    statements: list[str] = []
    sa.event.listen(ledger.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with ledger.connect() as conn:
        found = groups_into(conn, ledger.tables, target, {"orders"}, besides="g1")
        refuse_loaded(conn, ledger.tables, "new", "target", ranges("g0", ledger))
    assert found == ({} if target == "target" else {"g0": "target0"})
    assert (len(statements) < 20, read() < _MOST_ROWS) == (True, True)


def test_the_table_of_groups_reads_dead_letters_once(ledger: Ledger, read: Callable[[], int]) -> None:
    with ledger.connect() as conn:
        _, (group, *_) = group_summaries(conn, ledger.tables)
        assert (group.group_id, group.dead_letters) == ("g0", _BATCHES - 100)
        assert read() <= _BATCHES
        assert group_table(conn, ledger.tables, f"g{_GROUPS}") is not None
        _, (one,) = group_summaries(conn, ledger.tables, [f"g{_GROUPS}"])
        assert one.last is not None
        assert one.last.batch_id == 99
    assert read() < _MOST_ROWS
