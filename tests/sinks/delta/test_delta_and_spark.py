"""Spark's own connector of Delta reads what loads wrote, and writes into the table between and during batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from airflow_kafka_offsets import DeltaTable, Limits
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from devstack.spark_jars import spark_with_delta
from tests.sinks.delta.test_foreign_commits import before_commits
from tests.support.clients import produce
from tests.support.lake import NEXT, LakeGroup
from tests.support.loads import names
from tests.support.rewinds import Rewinder
from tests.support.spark_sql import SparkSql, inserting

pytestmark = [pytest.mark.server, pytest.mark.long]


@pytest.fixture(scope="module")
def sql() -> Iterator[SparkSql]:
    conf = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        # The tables have few files: 50 tasks for each snapshot, and 10,000 for each VACUUM, would take minutes.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }
    with SparkSql(spark_with_delta(), conf) as sql:
        yield sql


@pytest.fixture
def table(uri: str) -> str:
    return f"delta.`{uri}`"


def ours(sql: SparkSql, table: str) -> list[int]:
    """The offsets of our rows, as Spark reads them."""
    return [offset for (offset,) in sql(f"SELECT _kafka_offset FROM {table} WHERE _batch_id IS NOT NULL ORDER BY 1")]


def run(number: int) -> TaskRun:
    """A run of its own: another try of an earlier one would go no further than that did."""
    return replace(NEXT, run_id=f"run-{number}")


def maintain(sql: SparkSql, table: str) -> None:
    """Compact all files, and remove those that are not named any more."""
    write(sql, f"OPTIMIZE {table}")
    sql(f"VACUUM {table} RETAIN 0 HOURS")


def write(sql: SparkSql, statement: str) -> None:
    """Write as users of Delta do: a writer that finds another one's commit is asked to try again."""
    for _ in range(10):
        try:
            sql(statement)
            return
        except RuntimeError as error:
            if "Please retry the operation" not in str(error):
                raise
    raise AssertionError(f"{statement} was refused ten times")


def insert(sql: SparkSql, table: str, id_: int) -> None:
    write(sql, f"INSERT INTO {table} (id, name) VALUES ({id_}, 'foreign')")


def test_spark_counts_what_was_loaded_replaced_and_compacted(group: LakeGroup, sql: SparkSql, table: str) -> None:
    group.load(limits=Limits(max_records=2))
    assert ours(sql, table) == list(range(6))
    maintain(sql, table)
    sql(f"ALTER TABLE {table} ADD COLUMN price DOUBLE")
    produce(group.loader.kafka, group.topic, names(6, 2))
    assert group.load(NEXT).rows == 2

    assert Rewinder(group.loader)("to-offset", 3, replace=group.sink).rows_removed == 5
    assert ours(sql, table) == list(range(3))
    assert group.load(run(1)).rows == 5
    maintain(sql, table)

    assert sql(f"SELECT count(*), count(DISTINCT id), sum(id), count(price) FROM {table}") == [(8, 8, 28, 0)]
    assert ours(sql, table) == group.offsets() == list(range(8))
    assert group.proved() == (8, 0)


def test_inserts_and_merges_by_spark_change_no_other_row(group: LakeGroup, sql: SparkSql, table: str) -> None:
    group.load(limits=Limits(max_records=2))
    for number in range(3):
        insert(sql, table, -1 - number)
        merged = f"SELECT {number} AS id, 'merged' AS name UNION ALL SELECT -1, 'merged'"
        write(
            sql,
            f"MERGE INTO {table} t USING ({merged}) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name "
            "WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, s.name)",
        )
        produce(group.loader.kafka, group.topic, names(6 + number, 1))
        assert group.load(run(number)).rows == 1
    write(sql, f"DELETE FROM {table} WHERE id = -2")

    theirs = f"SELECT id, name FROM {table} WHERE _batch_id IS NULL OR name = 'merged' ORDER BY id"
    assert ours(sql, table) == list(range(9))
    assert sql(theirs) == [(-3, "foreign"), (-1, "merged"), *((id_, "merged") for id_ in range(3))]
    assert group.proved() == (9, 0)
    assert group.replay({group.topic: {0: (2, 7)}}, replace=True).rows == 5
    assert ours(sql, table) == list(range(9))
    assert sql(theirs) == [(-3, "foreign"), (-1, "merged"), *((id_, "merged") for id_ in range(2))]
    assert group.proved() == (9, 0)


def test_commit_is_rebased_on_changes_by_spark(
    group: LakeGroup, sql: SparkSql, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.load(limits=Limits(max_records=2))
    produce(group.loader.kafka, group.topic, names(6, 2))

    def interfere() -> None:
        insert(sql, table, -1)
        maintain(sql, table)

    with monkeypatch.context() as patched:
        before_commits(patched, interfere)
        assert group.load(NEXT).rows == 2

    assert ours(sql, table) == list(range(8))
    assert sql(f"SELECT id FROM {table} WHERE _batch_id IS NULL") == [(-1,)]
    assert group.proved() == (8, 0)


def test_spark_that_inserts_all_the_time_loses_nothing_and_costs_nothing(
    group: LakeGroup, sql: SparkSql, table: str
) -> None:
    group.load()
    assert isinstance(group.sink, DeltaTable)
    with inserting(partial(insert, sql, table)) as inserted:
        for number in range(6):
            produce(group.loader.kafka, group.topic, names(6 + number, 1))
            assert group.load(run(number)).rows == 1

    assert inserted
    assert ours(sql, table) == list(range(12))
    assert sql(f"SELECT id FROM {table} WHERE _batch_id IS NULL ORDER BY id DESC") == [(id_,) for id_ in inserted]
    assert group.proved() == (12, 0)
