"""A stale attempt and its successor meet in the commit outside of the database: every row is there once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeltaTable, IcebergTable
from airflow_kafka_offsets.core.attempts import attempt_name
from airflow_kafka_offsets.core.offsets import OffsetRange
from airflow_kafka_offsets.exceptions import DatabaseBusyError, KafkaOffsetsError
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS
from airflow_kafka_offsets.sinks.delta.format import DeltaSnapshot
from airflow_kafka_offsets.sinks.lake.table import LakeTable
from airflow_kafka_offsets.sinks.table import Output, Table
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest
from airflow_kafka_offsets.staging.rows import StagedRows
from airflow_kafka_offsets.writers.table_rows import RefusedRows
from tests.support.iceberg import iceberg_sink
from tests.support.lake import LIVING_SESSION

COLUMNS = pa.schema([("id", pa.int64()), *ORIGIN_COLUMNS])
ROWS = 40
NO_DATABASE: Any = LIVING_SESSION
"""What is published here removes no rows that the state tables name."""


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LakeTable]:
    engine = sa.create_engine("sqlite://")
    sink: DeltaTable | IcebergTable = DeltaTable(f"{tmp_path}/lake/orders")
    yield (iceberg_sink("sql", tmp_path) if request.param == "iceberg" else sink).connect(engine)
    engine.dispose()


def output(batch_id: int, attempt: str) -> Output:
    end = (batch_id + 1) * ROWS
    ranges = (OffsetRange("orders", 0, batch_id * ROWS, end, end),)
    return Output(batch_id, "loader", ranges, "installation.loader", f"batch-{batch_id}-{attempt}")


def staged(table: Table, of: Output, staging: Path, *, may_grow: bool = False, topic: str = "orders") -> StagedRows:
    """Write the files of an attempt."""
    first = of.ranges[0].start
    numbers = pa.array(range(first, first + ROWS), pa.int64())
    columns = [numbers, pa.array([topic] * ROWS), pa.array([0] * ROWS, pa.int32()), numbers]
    rows = pa.RecordBatch.from_arrays([*columns, pa.nulls(ROWS, ORIGIN_COLUMNS.field(3).type)], schema=COLUMNS)
    table.prepare(COLUMNS, may_grow=may_grow)
    writer: Any = table.writer(COLUMNS, of)
    directory = StagingDirectory(str(staging))
    files = tuple(writer.write([rows], directory, {}, RefusedRows(directory)))
    return StagedRows(directory, Manifest(of.batch_id, "", files, (), (), writer.columns))


def publish(table: Table, of: Output, rows: StagedRows, barrier: threading.Barrier | None = None) -> int:
    with table.publish(NO_DATABASE, of) as target:
        count = target.write(rows)
        if barrier is not None:
            barrier.wait()
    return count


def race(table: LakeTable, batch_id: int, staging: Path, *, retires: bool) -> None:
    """Have a stale attempt commit while its successor commits, too, or takes the batch back."""
    stale, successor = (output(batch_id, attempt) for attempt in ("stale", "successor"))
    rows = {of: staged(table, of, staging) for of in (stale, successor)}
    barrier, errors = threading.Barrier(2), list[BaseException]()

    def run(of: Output) -> None:
        try:
            if retires and of is successor:
                barrier.wait()
                table.retire(of)
            else:
                assert publish(table, of, rows[of], barrier) == ROWS
        except BaseException as error:
            # A stale attempt finds that the batch was taken back.
            if not (isinstance(error, DatabaseBusyError) and retires and of is stale):
                errors.append(error)

    threads = [threading.Thread(target=run, args=[of]) for of in (stale, successor)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def offsets(table: LakeTable) -> list[int]:
    snapshot = table.snapshot()
    assert snapshot is not None
    return sorted(offset for rows in snapshot.scan(["_kafka_offset"]) for offset in rows.column(0).to_pylist())


def races(table: LakeTable, staging: Path, times: int) -> None:
    expected: list[int] = []
    for batch_id in range(times):
        retires = batch_id % 3 == 2
        race(table, batch_id, staging, retires=retires)
        if not retires:
            expected += range(batch_id * ROWS, (batch_id + 1) * ROWS)
    assert offsets(table) == expected


def test_each_row_is_there_once(table: LakeTable, tmp_path: Path) -> None:
    races(table, tmp_path, 6)


@pytest.mark.long
def test_each_row_is_there_once_two_hundred_times(table: LakeTable, tmp_path: Path) -> None:
    races(table, tmp_path, int(os.environ.get("RACES", "200")))


def test_first_commit_of_two_open_attempts_counts(table: LakeTable, tmp_path: Path) -> None:
    first, second = (output(1, attempt) for attempt in ("first", "second"))
    rows = {of: staged(table, of, tmp_path) for of in (first, second)}
    with table.publish(NO_DATABASE, second) as target:
        target.write(rows[second])
        publish(table, first, rows[first])

    snapshot = table.snapshot()
    assert snapshot is not None
    assert [first.attempt in str(file.key) for file in snapshot.files()] == [True]


@pytest.mark.parametrize("table", ["delta"], indirect=True)
def test_one_of_two_attempts_that_add_columns_counts(
    table: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns are added by a commit of their own: another attempt may publish between it and that of the rows."""
    table.prepare(COLUMNS.remove(0))
    first, second = (output(1, attempt) for attempt in ("first", "second"))
    rows = {of: staged(table, of, tmp_path, may_grow=True) for of in (first, second)}

    add_columns = DeltaSnapshot._add_columns

    def grown(snapshot: DeltaSnapshot, *args: Any) -> None:
        add_columns(snapshot, *args)
        publish(table, first, rows[first])

    with table.publish(NO_DATABASE, second) as target:
        assert target.add_columns(COLUMNS) == ["id"]
        target.write(rows[second])
        monkeypatch.setattr(DeltaSnapshot, "_add_columns", grown)

    assert offsets(table) == list(range(ROWS, 2 * ROWS))


def test_a_zombie_cannot_publish_what_was_retired(table: LakeTable, tmp_path: Path) -> None:
    zombie = output(1, "zombie")
    rows = staged(table, zombie, tmp_path)
    for _ in range(2):
        assert table.retire(zombie._replace(attempt="")) == []

    assert table.last_number(zombie) == 1
    with table.publish(NO_DATABASE, zombie) as target:
        assert target.write(rows) == 0
    assert offsets(table) == []


def test_a_zombie_cannot_publish_after_a_batch_without_rows(table: LakeTable, tmp_path: Path) -> None:
    """The successor has another transform, which leaves nothing of the records."""
    zombie, successor = output(1, "zombie"), output(1, "successor")
    rows = staged(table, zombie, tmp_path)

    def publish_late() -> None:
        with table.publish(NO_DATABASE, zombie) as late:
            assert late.write(rows) == ROWS
            assert publish(table, successor, StagedRows.none(1)) == 0

    with pytest.raises(DatabaseBusyError, match="another attempt published batch 1"):
        publish_late()
    assert publish(table, zombie, rows) == 0
    assert offsets(table) == []


def test_publication_is_retired_once(table: LakeTable, tmp_path: Path) -> None:
    for batch_id in (1, 2):
        of = output(batch_id, "a")
        publish(table, of, staged(table, of, tmp_path))

    removed = table.retire(output(2, ""))
    assert [(part.batch_id, *part.topic_partition, part.rows) for part in removed] == [(2, "orders", 0, ROWS)]
    assert table.retire(output(2, "")) == []
    assert offsets(table) == list(range(ROWS, 2 * ROWS))


def test_files_of_failed_attempts_are_removed_and_no_others(table: LakeTable, tmp_path: Path) -> None:
    names = [attempt_name(each, 1) for each in ("installation", "installation", "other")]
    taken, failed, foreign = (output(1, "")._replace(attempt=name) for name in names)
    publish(table, taken, staged(table, taken, tmp_path))
    for of in (failed, foreign):
        staged(table, of, tmp_path)
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    (left,) = [path for path in map(str, tmp_path.rglob("*.parquet")) if failed.attempt in path]

    assert table.remove_leftovers(1, long_ago, "installation") == 0
    os.utime(left, (long_ago.timestamp(), long_ago.timestamp()))
    assert table.remove_leftovers(2, datetime.now(UTC), "installation") == 0
    assert table.remove_leftovers(1, datetime.now(UTC), "installation") == 1

    assert not Path(left).exists()
    assert offsets(table) == list(range(ROWS, 2 * ROWS))
    table.retire(taken)
    assert (
        table.remove_leftovers(1, datetime.now(UTC), "installation") == 0
    )  # earlier versions, and other readers, have them


def test_a_batch_of_an_earlier_number_is_refused(table: LakeTable, tmp_path: Path) -> None:
    for batch_id in (2, 1):
        of = output(batch_id, "a")
        rows = staged(table, of, tmp_path)
        if batch_id == 2:
            publish(table, of, rows)
        else:
            with pytest.raises(KafkaOffsetsError, match="older backup"):
                publish(table, of, rows)
