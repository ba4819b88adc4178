"""An Iceberg table with an upsert key holds the newest row of each key, whatever is loaded again, in either kind of
catalog.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import Limits, Staging
from airflow_kafka_offsets.exceptions import ConfigurationError, RecordError, StagingError, TargetError
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable
from airflow_kafka_offsets.sinks.table import Output
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.verification.verify import verify
from airflow_kafka_offsets.writers.table_rows import RefusedRows
from tests.support.clients import Kafka, produce
from tests.support.iceberg import IcebergGroup, iceberg_sink
from tests.support.loads import Loader, TopicFactory, rows
from tests.support.rewinds import Rewinder
from tests.support.upserts import Interrupted, produce_at, record


@pytest.fixture
def sink(where: str, tmp_path: Path) -> IcebergTable:
    return iceberg_sink(where, tmp_path, upsert_key=("id",))


@pytest.fixture
def group(inline_loader: Loader, topic: TopicFactory, sink: IcebergTable) -> IcebergGroup:
    return IcebergGroup(inline_loader, topic(), sink)


@pytest.fixture
def three(group: IcebergGroup, topic: TopicFactory) -> IcebergGroup:
    """A group whose topic has three partitions."""
    return replace(group, orders=topic(partitions=3, retention_ms="-1"))


@pytest.fixture
def values(group: IcebergGroup, kafka: Kafka) -> Any:
    def write(*records: tuple[object, str]) -> None:
        produce(kafka, group.orders, [record(*each) for each in records])

    return write


def held(group: IcebergGroup) -> list[tuple[Any, ...]]:
    return group.rows("id", "name", "_kafka_offset")


def test_the_highest_offset_of_a_key_is_what_a_batch_leaves(group: IcebergGroup, values: Any) -> None:
    values((1, "a"), (2, "b"), (1, "c"), (3, "d"), (1, "e"))

    result = group.load()

    assert held(group) == [(1, "e", 4), (2, "b", 1), (3, "d", 3)]
    assert (result.records, result.rows) == (5, 3)


def test_slices_that_are_staged_side_by_side_are_one_batch(group: IcebergGroup, values: Any) -> None:
    values(*((i % 3, f"n{i}") for i in range(30)))

    assert group.load(staging=Staging(slice_offsets=4)).rows == 3

    assert held(group) == [(0, "n27", 27), (1, "n28", 28), (2, "n29", 29)]


def test_a_later_batch_replaces_and_inserts_in_one_snapshot(group: IcebergGroup, values: Any) -> None:
    values((1, "a"), (2, "b"))
    group.load()
    values((2, "c"), (3, "d"))

    assert group.load().rows == 2

    assert held(group) == [(1, "a", 0), (2, "c", 2), (3, "d", 3)]
    assert [row[0] for row in group.rows("_batch_id", "id")] == [1, 2, 2]
    assert len(group.table.snapshots()) == 2


def test_an_old_range_that_is_loaded_again_overwrites_nothing_newer(group: IcebergGroup, values: Any) -> None:
    values((1, "old"), (2, "only"), (1, "new"))
    group.load()

    again = group.load(group_id="again", limits=Limits(max_records=1))

    # The second batch is the row that is there, and the third as well; the first is older.
    assert (len(again.batches), again.records, again.rows) == (3, 3, 2)
    assert held(group) == [(1, "new", 2), (2, "only", 1)]


def test_an_old_range_that_is_loaded_in_part_leaves_no_old_value(group: IcebergGroup, values: Any) -> None:
    values((1, "old"), (1, "new"))
    group.load()
    partly = Loader(group.loader.kafka, group.loader.engine, Interrupted(after=1))

    with pytest.raises(StagingError):
        partly(group.orders, group_id="again", limits=Limits(max_records=1), sink=group.sink)

    assert held(group) == [(1, "new", 1)]
    assert rows(group.loader.engine, "SELECT row_count FROM offset_batches WHERE state = 'committed'") == [(1,), (0,)]


def test_between_partitions_of_a_batch_the_newest_timestamp_wins(three: IcebergGroup, kafka: Kafka) -> None:
    name = three.orders
    produce_at(kafka, name, 0, [(record(1, "p0"), 2_000), (record(2, "p0"), 9_000), (record(3, "p0"), 5_000)])
    produce_at(kafka, name, 1, [(record(1, "p1"), 3_000), (record(2, "p1"), 1_000), (record(3, "p1"), 5_000)])
    # Within a partition the offset decides: 8,000 is no candidate.
    produce_at(kafka, name, 2, [(record(1, "p2 early"), 8_000), (record(1, "p2"), 1_000)])

    assert three.load().rows == 3

    assert held(three) == [(1, "p1", 0), (2, "p0", 1), (3, "p1", 2)]


def test_a_later_batch_of_another_partition_wins(three: IcebergGroup, kafka: Kafka) -> None:
    produce(kafka, three.orders, [record(2, "p0"), record(1, "p0")], 0)
    three.load()
    produce(kafka, three.orders, [record(1, "p1")], 1)
    three.load()

    assert held(three) == [(1, "p1", 0), (2, "p0", 0)]


def test_rows_of_other_writers_are_replaced_where_nobody_knows_where_they_are_from(
    group: IcebergGroup, values: Any
) -> None:
    values((1, "a"), (2, "b"))
    group.load()
    group.table.append(group.table.scan(selected_fields=("id", "name")).to_arrow())
    values((1, "c"))

    group.load()

    assert group.table.scan("id = 1").to_arrow()["name"].to_pylist() == ["c"]
    assert group.table.scan("id = 2").count() == 2


def test_files_without_a_key_of_the_batch_are_neither_read_nor_written(group: IcebergGroup, values: Any) -> None:
    for first in (0, 100, 200):
        values(*((first + i, "old") for i in range(5)))
        group.load()
    before = {task.file.file_path: task.file for task in group.table.scan().plan_files()}
    values((1, "new"), (203, "new"))
    untouched = next(path for path, file in before.items() if (file.lower_bounds or {})[1][:1] == bytes([100]))
    path = Path(untouched.removeprefix("file://"))
    away = path.rename(path.with_suffix(".away"))

    assert group.load().rows == 2

    away.rename(path)
    after = {task.file.file_path for task in group.table.scan().plan_files()}
    assert before.keys() & after == {untouched}
    assert len(held(group)) == 15


@pytest.mark.parametrize("with_replace", [False, True], ids=["add", "replace"])
def test_a_rewind_and_the_load_after_it_leave_the_same_rows(
    group: IcebergGroup, values: Any, with_replace: bool
) -> None:
    values((1, "a"), (2, "b"), (1, "c"), (3, "d"), (2, "e"))
    group.load(limits=Limits(max_records=2))
    before = held(group)
    assert before == [(1, "c", 2), (2, "e", 4), (3, "d", 3)]

    done = Rewinder(group.loader)("to-offset", 2, replace=group.sink if with_replace else None)

    assert held(group) == ([] if with_replace else before)
    assert done.rows_removed == (3 if with_replace else 0)
    group.load(limits=Limits(max_records=1))
    assert held(group) == before
    coverage = verify("loader", sink=group.sink, engine=group.loader.engine)
    assert coverage.output_checked is False


@pytest.mark.parametrize("options", [{}, {"replace": True}], ids=["alone", "replace"])
def test_a_replay_into_the_own_table(group: IcebergGroup, values: Any, options: dict[str, Any]) -> None:
    values((1, "a"), (2, "b"), (1, "c"), (3, "d"), (2, "e"))
    group.load(limits=Limits(max_records=3))
    before = held(group)

    # With `replace`, what is deleted is no row that anything could be older than.
    assert group.replay({group.orders: {0: (1, 4)}}, **options).rows == 2

    assert held(group) == before


def test_a_key_of_several_columns_in_a_partitioned_table(
    inline_loader: Loader, topic: TopicFactory, where: str, tmp_path: Path, kafka: Kafka
) -> None:
    name = topic()
    sink = iceberg_sink(where, tmp_path, upsert_key=("name", "id"), partition_by=("bucket(4, id)", "name"))
    group = IcebergGroup(inline_loader, name, sink)
    produce(kafka, name, [record(i % 7, "ab"[i % 2]) for i in range(28)])
    assert group.load(staging=Staging(slice_offsets=5)).rows == 14
    produce(kafka, name, [record(1, "a"), record(1, "b"), record(8, "a")])

    assert group.load().rows == 3

    newest = {(i % 7, "ab"[i % 2]): i for i in range(28)} | {(1, "a"): 28, (1, "b"): 29, (8, "a"): 30}
    assert held(group) == sorted((*key, offset) for key, offset in newest.items())


def test_a_null_in_the_key_is_an_error_or_a_dead_letter(group: IcebergGroup, values: Any) -> None:
    values((1, "a"), (None, "b"), (2, "c"))
    nullable = {"value_format": Json("id BIGINT, name STRING")}

    with pytest.raises(RecordError, match=r"offset 1 .*'id' is null, but upsert_key needs a value"):
        group.load(on_bad_record="fail", **nullable)
    result = group.load(**nullable)

    assert (result.rows, result.dead_letters) == (2, 1)
    assert held(group) == [(1, "a", 0), (2, "c", 2)]


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (("no",), ConfigurationError, "upsert_key names 'no', which the rows do not hold"),
        (("x",), TargetError, "upsert_key names x, whose values cannot be compared exactly"),
    ],
)
def test_a_key_that_identifies_nothing_is_refused_before_anything_is_read(
    inline_loader: Loader, topic: TopicFactory, tmp_path: Path, key: Any, error: type[Exception], message: str
) -> None:
    sink = iceberg_sink("positions", tmp_path, upsert_key=key)

    with pytest.raises(error, match=message):
        inline_loader(topic(), sink=sink, value_format=Json("id BIGINT, x DOUBLE"))
    assert inline_loader.launcher.jobs == []


def test_a_row_that_does_not_say_where_it_is_from_is_refused(tmp_path: Path) -> None:
    sink, engine = iceberg_sink("sql", tmp_path, upsert_key=("id",)), sa.create_engine("sqlite://")
    columns = pa.schema([("id", pa.int64()), *ORIGIN_COLUMNS])
    rows = pa.RecordBatch.from_pylist([{"id": 1, "_kafka_topic": "orders", "_kafka_partition": 0}], columns)
    sink.connect(engine).prepare(columns)
    staging = StagingDirectory(str(tmp_path))

    writer = sink.connect(engine).writer(columns, Output(1, "loader", (), "series", "batch-1-x"))
    with pytest.raises(TargetError, match=r"without its origin .*: the newest row of its key is unknown"):
        list(writer.write([rows], staging, {}, RefusedRows(staging)))
