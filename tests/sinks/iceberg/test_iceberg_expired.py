"""A snapshot that other writers expire, with its files, while an attempt reads it or goes on from it: the table is
loaded anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.sinks.iceberg.snapshot import IcebergSnapshot
from airflow_kafka_offsets.sinks.lake import attempts
from tests.sinks.iceberg.conftest import REST
from tests.sinks.iceberg.test_iceberg_foreign_writers import compact, expire_all_but_the_current
from tests.support.clients import Kafka, produce
from tests.support.iceberg import IcebergGroup
from tests.support.loads import names

RUN = TaskRun("run", "dag", "task", -1, 1)
AGAIN = replace(RUN, try_number=2)


@pytest.fixture(params=["sql", REST])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_FIRST_PAUSE_SECONDS", 0.0)


def files_of(table: Table) -> Iterator[Path]:
    """Yield the files of the current snapshot, which a compaction writes anew."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    paths = [snapshot.manifest_list, *(task.file.file_path for task in table.scan().plan_files())]
    yield from (Path(path.removeprefix("file://")) for path in paths)


def expire(group: IcebergGroup) -> None:
    """Compact the table, expire what was current, and remove its files."""
    files = list(files_of(group.table))
    compact(group.table)
    expire_all_but_the_current(group.table)
    for file in files:
        file.unlink(missing_ok=True)


@pytest.fixture
def expire_before(group: IcebergGroup, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], list[int]]:
    """Expire the snapshot before the first call of a function."""

    def expire_before(owner: Any, name: str) -> list[int]:
        original, calls = getattr(owner, name), list[int]()

        def call(*args: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == 1:
                expire(group)
            return original(*args, **options)

        monkeypatch.setattr(owner, name, call)
        return calls

    return expire_before


def test_while_a_batch_goes_on_from_it(
    group: IcebergGroup, kafka: Kafka, expire_before: Callable[[Any, str], list[int]]
) -> None:
    group.load(limits=Limits(max_records=4))
    produce(kafka, group.orders, names(10, 1))
    commits = expire_before(IcebergSnapshot, "commit")

    assert group.load(run=RUN).rows == 1

    assert len(commits) == 2
    assert group.proved()[:2] == (10, 1)


@pytest.mark.parametrize("reads", ["files", "read"])
def test_while_replaced_rows_are_looked_for(
    group: IcebergGroup, expire_before: Callable[[Any, str], list[int]], reads: str
) -> None:
    group.load(limits=Limits(max_records=4))
    calls = expire_before(IcebergSnapshot, reads)

    assert group.replay({group.orders: {0: (2, 6)}}, replace=True, run=RUN).rows == 3

    assert len(calls) > 1
    assert group.proved() == (9, 1, 10)


def test_while_the_rows_of_an_abandoned_batch_are_looked_for(
    group: IcebergGroup,
    kafka: Kafka,
    expire_before: Callable[[Any, str], list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group.load()
    produce(kafka, group.orders, names(10, 2))
    commit = IcebergSnapshot.commit

    def dies(snapshot: IcebergSnapshot, change: Any) -> bool:
        commit(snapshot, change)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(IcebergSnapshot, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            group.load(run=RUN)
    abandon_batch("loader", 2, engine=group.loader.engine)
    calls = expire_before(IcebergSnapshot, "files")

    assert group.load(run=AGAIN).rows == 2

    assert len(calls) > 1
    assert group.proved()[:2] == (11, 1)
