"""Upserts into an Iceberg table in an external catalog: other writers between the search and the commit, deaths between
the two commits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.exceptions import DatabaseBusyError
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.sinks.iceberg.snapshot import IcebergSnapshot
from airflow_kafka_offsets.sinks.lake import attempts
from airflow_kafka_offsets.sinks.lake import target as lake_target
from airflow_kafka_offsets.sinks.lake.removal import rewrite
from tests.sinks.iceberg.test_iceberg_foreign_writers import compact, expire_all_but_the_current
from tests.support.clients import Kafka, produce
from tests.support.iceberg import IcebergGroup, iceberg_sink, scanned
from tests.support.lake import ProcessDiedError
from tests.support.loads import Loader, TopicFactory, positions
from tests.support.upserts import record

RUN = TaskRun("run", "dag", "task", -1, 1)
AGAIN = replace(RUN, try_number=2)


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_FIRST_PAUSE_SECONDS", 0.0)


@pytest.fixture
def group(inline_loader: Loader, topic: TopicFactory, tmp_path: Path, kafka: Kafka) -> IcebergGroup:
    """Two batches are loaded, into a file each; a third one is there to be loaded."""
    group = IcebergGroup(inline_loader, topic(), iceberg_sink("sql", tmp_path, upsert_key=("id",)))
    produce(kafka, group.orders, [record(1, "a"), record(2, "b"), record(3, "c"), record(4, "d")])
    group.load(limits=Limits(max_records=2))
    produce(kafka, group.orders, [record(2, "new"), record(5, "new")])
    return group


def held(group: IcebergGroup) -> list[tuple[Any, ...]]:
    return group.rows("id", "name", "_kafka_offset")


LOADED = [(1, "a", 0), (2, "new", 4), (3, "c", 2), (4, "d", 3), (5, "new", 5)]


def append(table: Table, condition: str) -> None:
    """Append rows again that were there, by a program that does not know where they are from."""
    table.append(table.scan(condition, selected_fields=("id", "name")).to_arrow())


@pytest.fixture
def before_commit(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Any]]:
    """What others do between the search and the commit, a step before each try."""
    steps: list[Callable[[], Any]] = []
    commit = IcebergSnapshot.commit

    def after_step(*args: Any, **options: Any) -> int:
        if steps:
            steps.pop(0)()
        return commit(*args, **options)

    monkeypatch.setattr(IcebergSnapshot, "commit", after_step)
    return steps


@pytest.mark.parametrize("change", [compact, expire_all_but_the_current], ids=["compacted", "expired"])
def test_the_rows_are_looked_for_again_in_what_others_left(
    group: IcebergGroup, before_commit: list[Any], change: Callable[[Table], None]
) -> None:
    before_commit.append(lambda: change(group.table))

    assert group.load().rows == 2

    assert held(group) == LOADED


def test_a_row_that_others_append_meanwhile_is_replaced(group: IcebergGroup, before_commit: list[Any]) -> None:
    before_commit.extend([lambda: append(group.table, "id = 2"), lambda: append(group.table, "id = 2")])

    assert group.load().rows == 2

    assert held(group) == LOADED


def test_foreign_appends_of_other_keys_write_nothing_again(
    group: IcebergGroup, before_commit: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rewritten: list[int] = []

    def count_files(*args: Any) -> Any:
        rewritten.append(len(args[-1]))
        return rewrite(*args)

    monkeypatch.setattr(lake_target, "rewrite", count_files)
    before_commit.extend([lambda: append(group.table, "id = 4")] * 3)

    assert group.load().rows == 2

    assert rewritten == [1]
    assert group.table.scan("id = 4").count() == 8
    assert [row for row in scanned(group.table, "id", "name") if row[0] != 4] == [
        row[:2] for row in LOADED if row[0] != 4
    ]


def test_a_newer_row_that_another_group_writes_meanwhile_stays(group: IcebergGroup, before_commit: list[Any]) -> None:
    newer = {"id": 5, "name": "newest", "_kafka_topic": group.orders, "_kafka_partition": 0, "_kafka_offset": 6}
    before_commit.append(lambda: group.table.append(rows_of(group.table, newer)))

    with pytest.raises(DatabaseBusyError, match="or wrote newer rows of the same keys"):
        group.load(run=RUN)
    done = group.load(run=AGAIN)

    assert (done.records, done.rows) == (2, 1)
    assert held(group) == [*LOADED[:-1], (5, "newest", 6)]


def rows_of(table: Table, *rows: dict[str, Any]) -> pa.Table:
    columns = table.schema().as_arrow()
    return pa.Table.from_pylist([{name: row.get(name) for name in columns.names} for row in rows], columns)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_next_try_finishes_a_load_that_died_between_the_commits(group: IcebergGroup, moment: str) -> None:
    died(group, moment)
    assert held(group)[1] == ((2, "new", 4) if moment == "after" else (2, "b", 1))

    done = group.load(run=AGAIN)

    assert (done.rows, done.records) == (2, 2)
    assert held(group) == LOADED
    assert positions(group.loader.engine) == {(group.orders, 0): 6}
    assert len(group.table.snapshots()) == 3


def test_a_batch_that_is_abandoned_after_it_was_published_keeps_its_rows_until_they_are_loaded_again(
    group: IcebergGroup,
) -> None:
    died(group, "after")
    abandon_batch("loader", 3, engine=group.loader.engine)

    assert group.load(run=AGAIN, limits=Limits(max_records=1)).rows == 2

    # What they replaced is gone: without them, key 2 would have no row for as long as nobody reads offset 4.
    assert held(group) == LOADED
    assert {batch for batch, offset in group.rows() if offset in (4, 5)} == {4, 5}


def died(group: IcebergGroup, moment: str) -> None:
    """Have a load die before or after the first of its commits."""
    commit = IcebergSnapshot.commit

    def dies(*args: Any, **options: Any) -> None:
        if moment == "after":
            commit(*args, **options)
        raise ProcessDiedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IcebergSnapshot, "commit", dies)
        with pytest.raises(ProcessDiedError):
            group.load(run=RUN)
