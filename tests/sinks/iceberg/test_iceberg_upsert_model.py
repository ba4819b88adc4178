"""An Iceberg table with an upsert key has, after any loads, replays and compactions, the rows that a plain dict has."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS
from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable
from airflow_kafka_offsets.sinks.lake import newest
from airflow_kafka_offsets.sinks.table import Output
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest, StagedFile
from airflow_kafka_offsets.staging.rows import StagedRows
from airflow_kafka_offsets.writers.table_rows import RefusedRows
from tests.sinks.iceberg.test_iceberg_foreign_writers import compact
from tests.support.iceberg import iceberg_sink, open_table, scanned

COLUMNS = pa.schema([("id", pa.int64()), ("region", pa.string()), *ORIGIN_COLUMNS])
PARTITIONS, RECORDS = 2, 12


class Event(NamedTuple):
    """A record: its key, and its timestamp."""

    id: int
    region: str
    at: int


class Slices(NamedTuple):
    """A batch: of each partition a range, cut into slices."""

    ranges: tuple[tuple[int, int], ...]
    slice: int
    compacted: bool


EVENTS = st.builds(Event, st.integers(0, 3), st.sampled_from("ab"), st.integers(0, 2))
LOGS = st.lists(st.lists(EVENTS, min_size=RECORDS, max_size=RECORDS), min_size=PARTITIONS, max_size=PARTITIONS)
RANGE = st.tuples(st.integers(0, RECORDS), st.integers(0, RECORDS)).map(lambda ends: (min(ends), max(ends)))
BATCHES = st.lists(
    st.builds(
        Slices,
        st.tuples(*[RANGE] * PARTITIONS).filter(lambda ranges: any(start < end for start, end in ranges)),
        st.sampled_from([2, 5, RECORDS]),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)
TABLES = st.sampled_from(
    [{}, {"partition_by": ("bucket(2, id)",)}, {"partition_by": ("region",), "sort_by": ("id DESC",)}]
)

Log = Sequence[Sequence[Event]]
Key = tuple[Any, ...]


def expected(logs: Log, batches: Sequence[Slices], key: Sequence[str]) -> dict[Key, tuple[int, int]]:
    """Return partition and offset of the row of each key."""
    held: dict[Key, tuple[int, int]] = {}
    for batch in batches:
        last: dict[tuple[Key, int], int] = {}
        for partition, (start, end) in enumerate(batch.ranges):
            for offset in range(start, end):
                last[tuple(getattr(logs[partition][offset], name) for name in key), partition] = offset
        newest_of: dict[Key, tuple[int, int, int]] = {}
        for (of_key, partition), offset in last.items():
            candidate = (logs[partition][offset].at, partition, offset)
            newest_of[of_key] = max(newest_of.get(of_key, candidate), candidate)
        for of_key, (_, partition, offset) in newest_of.items():
            there = held.get(of_key)
            if there is None or there[0] != partition or there[1] <= offset:
                held[of_key] = (partition, offset)
    return held


def publish(sink: IcebergTable, engine: sa.Engine, number: int, logs: Log, batch: Slices, at: Path) -> int:
    output = Output(number, "loader", (), "series", f"batch-{number}-x")
    staging = StagingDirectory(str(at))
    sink.connect(engine).prepare(COLUMNS)
    writer = sink.connect(engine).writer(COLUMNS, output)
    files: list[StagedFile] = []
    for partition, (start, end) in enumerate(batch.ranges):
        for first in range(start, end, batch.slice):
            offsets = range(first, min(first + batch.slice, end))
            events = [logs[partition][offset] for offset in offsets]
            rows = [
                (each.id, each.region, "orders", partition, offset, datetime.fromtimestamp(each.at, UTC))
                for each, offset in zip(events, offsets, strict=True)
            ]
            columns = [
                pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), COLUMNS, strict=True)
            ]
            part = pa.RecordBatch.from_arrays(columns, schema=COLUMNS)
            files += writer.write([part], staging, sink.connect(engine).storage_options(), RefusedRows(staging))
    with engine.begin() as conn, sink.connect(engine).publish(conn, output) as target:
        return target.write(StagedRows(staging, Manifest(number, "", tuple(files), (), (), writer.columns)))


def check(where: str, logs: Log, batches: Sequence[Slices], key: tuple[str, ...], options: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as directory, patch.object(newest, "_ROWS_AT_ONCE", 3):
        engine = sa.create_engine(f"sqlite:///{directory}/positions.db", poolclass=sa.NullPool)
        sink = iceberg_sink(where, Path(directory), upsert_key=key, **options)
        for number, batch in enumerate(batches, start=1):
            count = publish(sink, engine, number, logs, batch, Path(directory))
            table = open_table(sink, engine)
            found = scanned(table, *key, "_kafka_partition", "_kafka_offset", "_batch_id")
            after = expected(logs, batches[:number], key)
            assert [row[:-1] for row in found] == sorted((*of_key, *place) for of_key, place in after.items())
            assert count == sum(row[-1] == number for row in found)
            if batch.compacted and found:
                compact(table)


@settings(max_examples=4, deadline=None)
@given(logs=LOGS, batches=BATCHES, options=TABLES)
def test_the_rows_are_those_of_a_dict(logs: Log, batches: Sequence[Slices], options: dict[str, Any]) -> None:
    check("positions", logs, batches, ("region", "id"), options)


@pytest.mark.long
@pytest.mark.parametrize("key", [("id",), ("region", "id")], ids=["one", "two"])
@pytest.mark.parametrize("where", ["positions", "sql"])
@settings(max_examples=150, deadline=None)
@given(logs=LOGS, batches=BATCHES, options=TABLES)
def test_the_rows_are_those_of_a_dict_many_times(
    where: str, key: tuple[str, ...], logs: Log, batches: Sequence[Slices], options: dict[str, Any]
) -> None:
    check(where, logs, batches, key, options)
