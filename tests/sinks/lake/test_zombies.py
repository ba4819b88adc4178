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
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import DeltaTable, ParquetDataset
from airflow_kafka_offsets.core.offsets import OffsetRange
from airflow_kafka_offsets.exceptions import DatabaseBusyError, KafkaOffsetsError
from airflow_kafka_offsets.formats.row_columns import ORIGIN_COLUMNS
from airflow_kafka_offsets.sinks.lake.table_sink import FileTableSink
from airflow_kafka_offsets.sinks.table import Output
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest
from airflow_kafka_offsets.staging.rows import StagedRows
from airflow_kafka_offsets.writers.refused_rows import RefusedRows

COLUMNS = pa.schema([("id", pa.int64()), *ORIGIN_COLUMNS])
ROWS = 40


@pytest.fixture(params=[DeltaTable, ParquetDataset])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> FileTableSink:
    made: FileTableSink = request.param(f"{tmp_path}/lake/orders")
    return made


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = sa.create_engine("sqlite://")
    yield engine
    engine.dispose()


def output(batch_id: int, attempt: str) -> Output:
    end = (batch_id + 1) * ROWS
    ranges = (OffsetRange("orders", 0, batch_id * ROWS, end, end),)
    return Output(batch_id, "loader", ranges, "installation.loader", f"batch-{batch_id}-{attempt}")


def staged(sink: FileTableSink, engine: Engine, of: Output, staging: Path, *, may_grow: bool = False) -> StagedRows:
    """Write the files of an attempt."""
    first = of.ranges[0].start
    numbers = pa.array(range(first, first + ROWS), pa.int64())
    columns = [numbers, pa.array(["orders"] * ROWS), pa.array([0] * ROWS, pa.int32()), numbers]
    rows = pa.RecordBatch.from_arrays([*columns, pa.nulls(ROWS, ORIGIN_COLUMNS.field(3).type)], schema=COLUMNS)
    sink.prepare(engine, COLUMNS, may_grow=may_grow)
    writer = sink.writer(engine, COLUMNS, of)
    directory = StagingDirectory(str(staging))
    files = tuple(writer.write([rows], directory, {}, RefusedRows(directory)))
    return StagedRows(directory, Manifest(of.batch_id, "", files, (), (), writer.columns))


def publish(
    sink: FileTableSink, conn: Any, of: Output, rows: StagedRows, barrier: threading.Barrier | None = None
) -> int:
    with sink.open(conn, of) as target:
        count = target.write(rows)
        if barrier is not None:
            barrier.wait()
    return count


def race(sink: FileTableSink, engine: Engine, batch_id: int, staging: Path, *, retires: bool) -> None:
    """Have a stale attempt commit while its successor commits, too, or takes the batch back."""
    stale, successor = (output(batch_id, attempt) for attempt in ("stale", "successor"))
    rows = {of: staged(sink, engine, of, staging) for of in (stale, successor)}
    barrier, errors = threading.Barrier(2), list[BaseException]()

    def run(of: Output) -> None:
        try:
            if retires and of is successor:
                barrier.wait()
                sink.retire(engine, of)
            else:
                assert publish(sink, None, of, rows[of], barrier) == ROWS
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


def offsets(sink: FileTableSink) -> list[int]:
    snapshot = sink.snapshot()
    assert snapshot is not None
    return sorted(offset for rows in snapshot.scan(["_kafka_offset"]) for offset in rows.column(0).to_pylist())


def races(sink: FileTableSink, engine: Engine, staging: Path, times: int) -> None:
    expected: list[int] = []
    for batch_id in range(times):
        retires = batch_id % 3 == 2
        race(sink, engine, batch_id, staging, retires=retires)
        if not retires:
            expected += range(batch_id * ROWS, (batch_id + 1) * ROWS)
    assert offsets(sink) == expected


def test_each_row_is_there_once(sink: FileTableSink, engine: Engine, tmp_path: Path) -> None:
    races(sink, engine, tmp_path, 6)


@pytest.mark.long
def test_each_row_is_there_once_two_hundred_times(sink: FileTableSink, engine: Engine, tmp_path: Path) -> None:
    races(sink, engine, tmp_path, int(os.environ.get("RACES", "200")))


def test_of_two_attempts_that_are_open_the_first_commit_counts(
    sink: FileTableSink, engine: Engine, tmp_path: Path
) -> None:
    first, second = (output(1, attempt) for attempt in ("first", "second"))
    rows = {of: staged(sink, engine, of, tmp_path) for of in (first, second)}
    with sink.open(None, second) as target:  # type: ignore[arg-type]
        target.write(rows[second])
        publish(sink, None, first, rows[first])

    snapshot = sink.snapshot()
    assert snapshot is not None
    assert [first.attempt in file.path for file in snapshot.active()] == [True]


def test_of_two_attempts_that_add_columns_one_counts(
    sink: FileTableSink, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns are added by a commit of their own: another attempt may publish between it and that of the rows."""
    sink.prepare(engine, COLUMNS.remove(0))
    first, second = (output(1, attempt) for attempt in ("first", "second"))
    rows = {of: staged(sink, engine, of, tmp_path, may_grow=True) for of in (first, second)}

    with sink.open(None, second) as target:  # type: ignore[arg-type]
        assert target.add_columns(COLUMNS) == ["id"]
        target.write(rows[second])
        grow = target.grow

        def grown(*args: Any) -> Any:
            snapshot = grow(*args)
            publish(sink, None, first, rows[first])
            return snapshot and snapshot.again()

        monkeypatch.setattr(target, "grow", grown)

    assert offsets(sink) == list(range(ROWS, 2 * ROWS))


def test_a_zombie_cannot_publish_what_was_retired(sink: FileTableSink, engine: Engine, tmp_path: Path) -> None:
    zombie = output(1, "zombie")
    rows = staged(sink, engine, zombie, tmp_path)
    for _ in range(2):
        assert sink.retire(engine, zombie._replace(attempt="")) == []

    assert sink.is_published(engine, zombie)
    with sink.open(None, zombie) as target:  # type: ignore[arg-type]
        assert target.write(rows) == 0
    assert offsets(sink) == []


def test_a_zombie_cannot_publish_after_a_batch_without_rows(
    sink: FileTableSink, engine: Engine, tmp_path: Path
) -> None:
    """The successor has another transform, which leaves nothing of the records."""
    zombie, successor = output(1, "zombie"), output(1, "successor")
    rows = staged(sink, engine, zombie, tmp_path)

    def publish_late() -> None:
        with sink.open(None, zombie) as late:  # type: ignore[arg-type]
            assert late.write(rows) == ROWS
            assert publish(sink, None, successor, StagedRows.none(1)) == 0

    with pytest.raises(DatabaseBusyError, match="Another attempt published batch 1"):
        publish_late()
    assert publish(sink, None, zombie, rows) == 0
    assert offsets(sink) == []


def test_what_was_published_is_taken_back_once(sink: FileTableSink, engine: Engine, tmp_path: Path) -> None:
    for batch_id in (1, 2):
        of = output(batch_id, "a")
        publish(sink, None, of, staged(sink, engine, of, tmp_path))

    removed = sink.retire(engine, output(2, ""))
    assert [(part.batch_id, *part.topic_partition, part.rows) for part in removed] == [(2, "orders", 0, ROWS)]
    assert sink.retire(engine, output(2, "")) == []
    assert offsets(sink) == list(range(ROWS, 2 * ROWS))


def test_files_of_failed_attempts_are_removed_and_no_others(
    sink: FileTableSink, engine: Engine, tmp_path: Path
) -> None:
    taken, failed = (output(1, number * 32)._replace(attempt=f"batch-1-{number * 32}") for number in "ab")
    publish(sink, None, taken, staged(sink, engine, taken, tmp_path))
    staged(sink, engine, failed, tmp_path)
    snapshot = sink.snapshot()
    assert snapshot is not None
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    (left,) = [path for path in map(str, Path(sink.uri).rglob("*.parquet")) if "b" * 32 in path]

    assert sink.remove_leftovers(engine, 1, long_ago) == 0
    os.utime(left, (long_ago.timestamp(), long_ago.timestamp()))
    assert sink.remove_leftovers(engine, 2, datetime.now(UTC)) == 0
    assert sink.remove_leftovers(engine, 1, datetime.now(UTC)) == 1

    assert not Path(left).exists()
    assert offsets(sink) == list(range(ROWS, 2 * ROWS))
    sink.retire(engine, taken)
    assert sink.remove_leftovers(engine, 1, datetime.now(UTC)) == 0  # earlier versions, and other readers, have them


def test_a_batch_of_an_earlier_number_is_refused(sink: FileTableSink, engine: Engine, tmp_path: Path) -> None:
    for batch_id in (2, 1):
        of = output(batch_id, "a")
        rows = staged(sink, engine, of, tmp_path)
        if batch_id == 2:
            publish(sink, None, of, rows)
        else:
            with pytest.raises(KafkaOffsetsError, match="older backup"):
                publish(sink, None, of, rows)
