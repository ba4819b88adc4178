"""Values that SQLite takes, whatever the type of a column: they hide no other group, and fail no sum."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.ledger.batches import bytes_per_offset, record_plan
from airflow_kafka_offsets.ledger.commit_transaction import commit_batch
from airflow_kafka_offsets.ledger.install import create_missing
from airflow_kafka_offsets.ledger.overview import batch_parts, batches, group_summaries, history_points
from airflow_kafka_offsets.ledger.positions import RangeRead
from tests.support.ledgers import FIRST_LOAD, RECIPE, Database, written


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """State tables with a group that has loaded two partitions."""
    made = Database(tmp_path / "db")
    create_missing(made.ledger)
    claim = made.claim()
    batch = record_plan(claim, FIRST_LOAD, RECIPE, 0)
    assert batch is not None
    reads = {each.topic_partition: RangeRead(1, None, None) for each in batch.ranges}
    commit_batch(claim, batch, written(reads, lambda _: 1))
    return made


@pytest.mark.parametrize(
    "values",
    [
        "'hostile', CAST(x'ff' AS TEXT), 0, 1, 'x', NULL",
        "CAST(x'ff' AS TEXT), NULL, 0, 1, 'x', NULL",
        "'hostile', NULL, 0, 1, 'x', 'never'",
        "'hostile', NULL, 0, 1, 'x', '9999-99-99 00:00:00.000000'",
        "'hostile', NULL, 0, 1, 'x', 5",
        "'hostile', NULL, 'abc', 1, 'x', NULL",
    ],
)
def test_a_row_of_another_kind_hides_no_other_group(database: Database, values: str) -> None:
    with database.engine.begin() as conn:
        conn.execute(sa.text(f"INSERT INTO consumer_groups VALUES ({values})"))

    with database.ledger.connect() as conn:
        _, groups = group_summaries(conn, database.tables)

    names = [group.group_id for group in groups]
    assert len(names) == 2
    assert "orders_loader" in names


def test_sums_of_the_largest_numbers_are_none_that_fail(database: Database) -> None:
    with database.engine.begin() as conn:
        for table, columns in {"offset_ranges": ("records", "bytes"), "offset_batches": ("row_count",)}.items():
            for column in columns:
                conn.execute(sa.text(f"UPDATE {table} SET {column} = {2**63 - 1}"))
        for number in range(2):
            values = f"1, 'orders', {number}, 0, {2**63 - 1}, 'x', 'y'"
            conn.execute(sa.text(f"INSERT INTO offset_gaps VALUES ({values})"))

    with database.ledger.connect() as conn:
        _, (group,) = group_summaries(conn, database.tables)
        assert len(batches(conn, database.tables, group.group_id, 10)) == 1
        assert batch_parts(conn, database.tables, group.group_id, 1)
        assert history_points(conn, database.tables, group.group_id, 10)
    assert bytes_per_offset(database.ledger, group.group_id)
