"""Other writers of the table: they append, compact, expire snapshots, change columns and partitions, and set the table
back.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import StringType

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.ledger.batches import mark_staged
from airflow_kafka_offsets.loading import stage as stage_module
from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable
from airflow_kafka_offsets.transforms.sql import Sql
from tests.support.clients import Kafka, produce
from tests.support.iceberg import IcebergGroup
from tests.support.loads import names, positions
from tests.support.rewinds import Rewinder

OFFSETS = [0, 1, 2, 4, 5, 6, 7, 8, 9]


def append(table: Table) -> None:
    rows = table.scan(limit=1).to_arrow()
    index = rows.schema.get_field_index("_batch_id")
    table.append(rows.set_column(index, "_batch_id", [[None]]).cast(rows.schema))


def compact(table: Table) -> None:
    """Write all rows into one file, as a compaction does."""
    table.overwrite(table.scan().to_arrow())


def compact_without_arrow(table: Table) -> None:
    """Write all rows into one file, as engines do that leave no word of Arrow's types in it."""
    rows, path = table.scan().to_arrow(), f"{table.location()}/data/{uuid.uuid4()}.parquet"
    table.delete("_batch_id >= 0 or _batch_id is null")
    pq.write_table(rows, path.removeprefix("file://"), store_schema=False)
    table.add_files([path])


def append_avro(table: Table) -> DataFile:
    """Append a file, as engines do with `write.format.default=avro`."""
    path = f"{table.location()}/data/{uuid.uuid4()}.avro"
    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long", "field-id": 1}]}
    with Path(path.removeprefix("file://")).open("wb") as stream:
        fastavro.writer(stream, schema, [{"id": -1}])
    return append_file(table, path, FileFormat.AVRO, 1)


def append_file(table: Table, path: str, file_format: FileFormat, rows: int) -> DataFile:
    """Append a file without reading it."""
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=file_format,
        partition=Record(),
        record_count=rows,
        file_size_in_bytes=len(table.io.new_input(path)),
    )
    file.spec_id = 0
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        update.append_data_file(file)
    return file


def remove(table: Table, file: DataFile) -> None:
    with table.transaction() as transaction:
        update = transaction.update_snapshot().overwrite()
        update.delete_by_predicate(AlwaysTrue())
        with update:
            update.delete_data_file(file)


def expire_all_but_the_current(table: Table) -> None:
    current = table.current_snapshot()
    assert current is not None
    others = [each.snapshot_id for each in table.snapshots() if each.snapshot_id != current.snapshot_id]
    if others:
        table.maintenance.expire_snapshots().by_ids(others).commit()


def test_foreign_appends_compaction_and_expiry_change_nothing(group: IcebergGroup, kafka: Kafka) -> None:
    group.load(limits=Limits(max_records=4))
    for number, change in enumerate((append, compact, expire_all_but_the_current, compact_without_arrow, append)):
        change(group.table)
        produce(kafka, group.orders, names(10 + number, 1))
        assert group.load().rows == 1

    ours = group.table.scan("_batch_id is not null").to_arrow()["_kafka_offset"].to_pylist()
    assert sorted(ours) == [*OFFSETS, *range(10, 15)]
    assert group.table.scan("_batch_id is null").count() == 2
    assert group.proved()[:2] == (14, 1)


@pytest.mark.parametrize("compact", [compact, compact_without_arrow])
def test_rows_in_compacted_files_are_replaced_and_the_others_stay(
    group: IcebergGroup, compact: Callable[[Table], None]
) -> None:
    group.load(limits=Limits(max_records=4))
    append(group.table)
    compact(group.table)

    assert group.replay({group.orders: {0: (2, 6)}}, replace=True).rows == 3
    compact(group.table)
    done = Rewinder(group.loader)("to-offset", 5, replace=group.sink)

    assert done.rows_removed == 5
    ours = group.table.scan("_batch_id is not null").to_arrow()["_kafka_offset"].to_pylist()
    assert sorted(ours) == [0, 1, 2, 4]
    assert group.table.scan("_batch_id is null").count() == 1
    assert group.proved() == (4, 1, 5)


def test_instants_of_files_that_spark_wrote_before_they_were_migrated_are_kept(group: IcebergGroup) -> None:
    """Spark's tables of Parquet have timestamps as INT96, which overflow as nanoseconds."""
    group.load()
    rows, path = group.table.scan().to_arrow(), f"{group.table.location()}/{uuid.uuid4()}.parquet"
    for_ever = pa.array([datetime(9999, 12, 31, tzinfo=UTC)] * rows.num_rows, pa.timestamp("us", "UTC"))
    rows = rows.set_column(rows.schema.get_field_index("_kafka_timestamp"), "_kafka_timestamp", for_ever)
    rows = rows.cast(schema_to_pyarrow(group.table.schema()))
    pq.write_table(rows, path.removeprefix("file://"), use_deprecated_int96_timestamps=True)
    group.table.delete("_batch_id >= 0")
    append_file(group.table, path, FileFormat.PARQUET, rows.num_rows)

    assert group.replay({group.orders: {0: (2, 9)}}, replace=True).rows == 6

    found = group.table.scan().to_arrow()
    instants = zip(found["_kafka_offset"].to_pylist(), found["_kafka_timestamp"].to_pylist(), strict=True)
    assert sorted(offset for offset, instant in instants if instant == for_ever[0].as_py()) == [0, 1, 9]
    assert group.proved()[:2] == (9, 1)


def test_a_file_in_avro_is_named_before_a_replay_is_staged_and_hinders_nothing_afterwards(
    group: IcebergGroup, kafka: Kafka
) -> None:
    group.load(limits=Limits(max_records=4))
    file = append_avro(group.table)
    jobs = len(group.loader.launcher.jobs)
    reason = re.escape(f"{group.sink.name} cannot be read: file {file.file_path} is no Parquet")

    with pytest.raises(TargetError, match=reason):
        group.proved()
    with pytest.raises(TargetError, match=reason):
        Rewinder(group.loader)("to-offset", 5, replace=group.sink)
    with pytest.raises(TargetError, match=reason):
        group.replay({group.orders: {0: (2, 6)}}, replace=True)
    assert len(group.loader.launcher.jobs) == jobs
    produce(kafka, group.orders, names(10, 1))
    assert group.load().rows == 1

    remove(group.table, file)
    assert group.replay({group.orders: {0: (4, 8)}}, replace=True).rows == 4
    assert group.proved()[:2] == (10, 1)


def test_a_table_that_was_set_back_is_named_before_anything_is_written(group: IcebergGroup, kafka: Kafka) -> None:
    group.load(limits=Limits(max_records=4))
    table = group.table
    first, last = table.snapshots()[0], table.current_snapshot()
    assert last is not None
    table.manage_snapshots().set_current_snapshot(first.snapshot_id).commit()
    produce(kafka, group.orders, names(10, 1))

    with pytest.raises(TargetError, match=re.escape(f"was rolled back, or replaced: snapshot {last.snapshot_id}")):
        group.load()
    assert len(group.rows()) == 3
    assert positions(group.loader.engine) == {(group.orders, 0): 10}

    group.table.manage_snapshots().set_current_snapshot(last.snapshot_id).commit()
    assert group.load().rows == 1
    assert group.proved()[:2] == (10, 1)


def test_an_expired_snapshot_is_no_rollback(group: IcebergGroup, kafka: Kafka) -> None:
    group.load()
    append(group.table)
    expire_all_but_the_current(group.table)
    produce(kafka, group.orders, names(10, 1))

    assert group.load().rows == 1


@pytest.fixture
def staged_once(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is done to the table between staging and commit, once."""
    changes: list[Any] = []

    def change_after(*args: Any) -> None:
        mark_staged(*args)
        if changes:
            changes.pop()()

    monkeypatch.setattr(stage_module, "mark_staged", change_after)
    return changes


def test_a_batch_is_staged_again_where_the_partitions_changed(group: IcebergGroup, staged_once: list[Any]) -> None:
    group.load(limits=Limits(max_records=4))
    produce(group.loader.kafka, group.orders, names(10, 1))

    def partition() -> None:
        with group.table.update_spec() as update:
            update.add_identity("name")

    staged_once.append(partition)
    assert group.load().rows == 1

    assert len(group.loader.launcher.jobs) == 5
    assert group.proved()[:2] == (10, 1)
    Rewinder(group.loader)("to-offset", 9, replace=group.sink)
    assert group.offsets() == OFFSETS[:-1]


def test_a_batch_is_staged_again_where_the_columns_changed(group: IcebergGroup, staged_once: list[Any]) -> None:
    group.load(limits=Limits(max_records=4))
    produce(group.loader.kafka, group.orders, names(10, 1))

    def add_column() -> None:
        with group.table.update_schema() as update:
            update.add_column("comment", StringType())

    staged_once.append(add_column)

    assert group.load().rows == 1
    assert len(group.loader.launcher.jobs) == 5
    assert group.proved()[:2] == (10, 1)


def test_a_batch_is_staged_again_where_a_file_is_missing(group: IcebergGroup, staged_once: list[Any]) -> None:
    def remove() -> None:
        for path in Path(group.table.location().removeprefix("file://")).rglob("*.parquet"):
            path.unlink()

    staged_once.append(remove)

    assert group.load().rows == 9
    assert len(group.loader.launcher.jobs) == 2
    assert group.proved() == (9, 1, 10)


def test_columns_that_do_not_fit_are_named_before_anything_is_read(group: IcebergGroup, sink: IcebergTable) -> None:
    group.load()
    produce(group.loader.kafka, group.orders, names(10, 1))

    with pytest.raises(TargetError, match="column 'id' is BIGINT, the rows hold STRING"):
        group.load(value_format=Json("id STRING, name STRING"))
    with pytest.raises(TargetError, match="it has no column 'twice'"):
        group.load(transform=Sql("SELECT *, id * 2 AS twice FROM records"))
    assert len(group.loader.launcher.jobs) == 1


def test_rows_without_offsets_cannot_be_removed_and_are_named(group: IcebergGroup) -> None:
    group.load()
    with group.table.update_schema() as update:
        update.delete_column("_kafka_offset")

    with pytest.raises(ConfigurationError, match="has no column _kafka_offset"):
        Rewinder(group.loader)("to-offset", 2, replace=group.sink)
