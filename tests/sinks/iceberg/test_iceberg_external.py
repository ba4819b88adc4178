"""A catalog elsewhere: whatever dies or interferes between the two commits, every row is there once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.types import LongType

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.exceptions import (
    CommitUnknownError,
    ConfigurationError,
    DatabaseBusyError,
    OlderLedgerError,
    TargetError,
)
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.sinks.iceberg.format import open_catalog
from airflow_kafka_offsets.sinks.iceberg.snapshot import IcebergSnapshot
from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable
from airflow_kafka_offsets.sinks.lake import attempts
from airflow_kafka_offsets.sinks.table import Output
from tests.sinks.iceberg.conftest import REST
from tests.support.clients import Kafka, produce
from tests.support.iceberg import IcebergGroup, iceberg_sink
from tests.support.loads import names, positions, rows
from tests.support.rewinds import Rewinder

RUN = TaskRun("run", "dag", "task", -1, 1)
AGAIN = replace(RUN, try_number=2)
OFFSETS = [0, 1, 2, 4, 5, 6, 7, 8, 9]


class ProcessDiedError(BaseException):
    """The process is gone: nothing catches it."""


@pytest.fixture(params=["sql", REST])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_FIRST_PAUSE_SECONDS", 0.0)


def wrap_commit(monkeypatch: pytest.MonkeyPatch, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    for catalog in (SqlCatalog, RestCatalog):
        monkeypatch.setattr(catalog, "commit_table", wrapper(catalog.commit_table))


def dying(before: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrapper(commit: Callable[..., Any]) -> Callable[..., Any]:
        def die(*args: Any) -> Any:
            if not before:
                commit(*args)
            raise ProcessDiedError

        return die

    return wrapper


@pytest.fixture(params=["before", "after"])
def died(request: pytest.FixtureRequest, group: IcebergGroup, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A load that died before its first commit, or after it: whether the rows are there."""
    with monkeypatch.context() as patched:
        wrap_commit(patched, dying(request.param == "before"))
        with pytest.raises(ProcessDiedError):
            group.load(run=RUN)
    assert group.offsets() == ([] if request.param == "before" else OFFSETS)
    assert positions(group.loader.engine) == {}
    return bool(request.param == "after")


def test_the_next_try_finishes_a_load_that_died_between_the_commits(group: IcebergGroup, died: bool) -> None:
    done = group.load(run=AGAIN)

    assert (done.rows, done.dead_letters) == (9, 1)
    assert group.offsets() == OFFSETS
    assert group.proved() == (9, 1, 10)
    assert len(group.table.snapshots()) == 1


def test_rows_of_an_abandoned_batch_are_taken_back_and_no_zombie_publishes_it(group: IcebergGroup, died: bool) -> None:
    zombie = group.table
    zombie.metadata.properties["commit.retry.num-retries"] = "0"
    abandon_batch("loader", 1, engine=group.loader.engine)

    assert group.load(run=AGAIN).rows == 9

    assert [batch for batch, _ in group.rows()] == [3] * 9
    assert group.proved() == (9, 1, 10)
    with pytest.raises(CommitFailedException), zombie.transaction() as transaction:
        transaction.update_snapshot().fast_append().commit()


def test_a_table_whose_rows_could_not_be_taken_back_is_refused(group: IcebergGroup) -> None:
    catalog = load_catalog("default", **group.sink.catalog)  # type: ignore[arg-type]
    catalog.create_namespace(group.sink.identifier.partition(".")[0])
    catalog.create_table(group.sink.identifier, pa.schema([("id", pa.int64()), ("name", pa.string())]))

    with pytest.raises(
        TargetError, match="no column '_batch_id', which is needed to remove the rows of an abandoned batch"
    ):
        group.load(run=RUN)

    assert group.loader.launcher.jobs == []
    with group.table.update_schema() as update:
        update.add_column("_batch_id", LongType())
    assert group.load(run=RUN).rows == 9


def test_a_catalog_in_the_file_of_the_positions_is_refused(group: IcebergGroup, tmp_path: Path) -> None:
    uri = group.loader.engine.url.render_as_string(hide_password=False)
    sink = IcebergTable("shop.orders", {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/lake"})

    with pytest.raises(ConfigurationError, match="leave out catalog="):
        group.load(run=RUN, sink=sink)


def test_a_commit_whose_outcome_is_not_known_is_looked_up(group: IcebergGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_the_answer(commit: Callable[..., Any]) -> Callable[..., Any]:
        def lost(*args: Any) -> Any:
            commit(*args)
            raise CommitStateUnknownException("502")

        return lost

    wrap_commit(monkeypatch, lose_the_answer)

    assert group.load(run=RUN).rows == 9

    assert group.proved() == (9, 1, 10)


def test_a_commit_that_the_table_does_not_show_is_never_repeated_by_the_same_try(
    group: IcebergGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def lose_the_request(_: Callable[..., Any]) -> Callable[..., Any]:
        def lost(*args: Any) -> Any:
            asked.append(args)
            raise CommitStateUnknownException("502")

        return lost

    with monkeypatch.context() as patched:
        wrap_commit(patched, lose_the_request)
        with pytest.raises(CommitUnknownError, match="The outcome of a commit to"):
            group.load(run=RUN)

    assert len(asked) == 1
    assert group.load(run=AGAIN).rows == 9
    assert group.proved() == (9, 1, 10)


def test_a_late_request_of_an_earlier_try_is_refused(group: IcebergGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[Callable[[], Any]] = []

    def delay(commit: Callable[..., Any]) -> Callable[..., Any]:
        def delayed(*args: Any) -> Any:
            late.append(lambda: commit(*args))
            raise CommitStateUnknownException("the proxy gave up")

        return delayed

    with monkeypatch.context() as patched:
        wrap_commit(patched, delay)
        with pytest.raises(CommitUnknownError):
            group.load(run=RUN)
    group.load(run=AGAIN)

    with pytest.raises(CommitFailedException):
        late[0]()

    assert group.proved() == (9, 1, 10)
    assert group.offsets() == OFFSETS


def test_another_writer_that_is_first_is_rebased_upon(
    group: IcebergGroup, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.load(limits=Limits(max_records=4))
    foreign = group.table.scan("_kafka_offset = 0").to_arrow()
    foreign = foreign.set_column(foreign.schema.get_field_index("_batch_id"), "_batch_id", [[None]]).cast(
        foreign.schema
    )
    produce(kafka, group.orders, names(10, 1))
    commit, appended = IcebergSnapshot.commit, list[int]()

    def append_first(snapshot: IcebergSnapshot, change: Any) -> bool:
        if len(appended) < 3:
            group.table.append(foreign)
            appended.append(1)
        return commit(snapshot, change)

    monkeypatch.setattr(IcebergSnapshot, "commit", append_first)

    assert group.load(run=RUN).rows == 1

    assert len(appended) == 3
    table = group.table
    assert table.scan("_batch_id is null").count() == 3
    assert sorted(table.scan("_batch_id is not null").to_arrow()["_kafka_offset"].to_pylist()) == [*OFFSETS, 10]
    assert group.proved()[:2] == (10, 1)


def test_rows_that_another_writer_removes_at_the_same_moment_are_not_reported_as_replaced(
    group: IcebergGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.load(limits=Limits(max_records=4))
    commit, deleted = IcebergSnapshot.commit, list[int]()

    def delete_first(snapshot: IcebergSnapshot, change: Any) -> bool:
        if not deleted:
            group.table.delete("_kafka_offset = 5")
            deleted.append(1)
        return commit(snapshot, change)

    with monkeypatch.context() as patched:
        patched.setattr(IcebergSnapshot, "commit", delete_first)
        with pytest.raises(DatabaseBusyError, match="another writer"):
            group.replay({group.orders: {0: (4, 8)}}, replace=True, run=RUN)

    assert group.offsets() == [each for each in OFFSETS if each != 5]
    assert group.replay({group.orders: {0: (4, 8)}}, replace=True, run=AGAIN).rows == 4
    assert group.proved() == (9, 1, 10)


def test_state_tables_of_an_older_backup_are_noticed_by_the_number_of_the_series(
    group: IcebergGroup, kafka: Kafka
) -> None:
    group.load()
    with group.loader.engine.begin() as conn:
        for table in ("dead_letters", "offset_ranges", "offset_batches", "consumed_offsets"):
            conn.exec_driver_sql(f"DELETE FROM {table}")
    group.table.delete("_batch_id = 1")

    with pytest.raises(OlderLedgerError, match="rows of batch 1"):
        group.load()

    assert group.rows() == []


def test_a_replay_that_died_after_its_first_commit_reports_what_it_removed(
    group: IcebergGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.load(limits=Limits(max_records=4))
    with monkeypatch.context() as patched:
        wrap_commit(patched, dying(before=False))
        with pytest.raises(ProcessDiedError):
            group.replay({group.orders: {0: (2, 6)}}, replace=True, run=RUN)

    assert group.replay({group.orders: {0: (2, 6)}}, replace=True, run=AGAIN).rows == 3

    removed = "SELECT replaced_batch_id, row_count FROM replaced_output WHERE row_count > 0 ORDER BY 1"
    assert rows(group.loader.engine, removed) == [(1, 1), (2, 2)]
    assert group.proved() == (9, 1, 10)


def test_a_rewind_whose_removal_died_is_finished_by_the_next_load(
    group: IcebergGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.load(limits=Limits(max_records=4))
    with monkeypatch.context() as patched:
        wrap_commit(patched, dying(before=True))
        with pytest.raises(ProcessDiedError):
            Rewinder(group.loader)("to-offset", 2, replace=group.sink)

    group.load()

    assert group.offsets() == OFFSETS
    assert group.proved() == (9, 1, 10)


def test_a_retired_batch_without_rows_moves_the_current_snapshot(group: IcebergGroup) -> None:
    group.load()
    zombie, engine = group.table, group.loader.engine

    assert group.sink.connect(engine).retire(Output(7, "loader", (), "series")) == []

    assert zombie.metadata.current_snapshot_id != group.table.metadata.current_snapshot_id
    assert group.sink.connect(engine).last_number(Output(7, "loader", (), "series")) == 7


def test_several_processes_create_catalog_namespace_and_table_at_once(tmp_path: Path) -> None:
    """Threads here: each opens the catalog, which creates its tables."""
    threads = 6
    here = sa.create_engine("sqlite://")
    for number in range(5):
        directory = tmp_path / str(number)
        directory.mkdir()
        sink = iceberg_sink("sql", directory)
        ready = Barrier(threads)

        def prepare(sink: IcebergTable = sink, ready: Barrier = ready) -> tuple[str, ...] | None:
            open_catalog.cache_clear()
            ready.wait(60)
            return sink.connect(here).prepare(pa.schema([("id", pa.int64())])).known

        with ThreadPoolExecutor(threads) as pool:
            found = [each.result(60) for each in [pool.submit(prepare) for _ in range(threads)]]
        assert found == [("id", "_batch_id")] * threads
