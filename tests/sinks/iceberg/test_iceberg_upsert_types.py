"""Keys of every type that may be one: files are looked at by their bounds and buckets, and no row of a key is
overlooked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS
from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable
from airflow_kafka_offsets.sinks.lake.newest import NewestRows
from airflow_kafka_offsets.sinks.lake.snapshot import LakeFile
from airflow_kafka_offsets.sinks.table import Output
from airflow_kafka_offsets.sinks.target_rows import LogOrder
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest
from airflow_kafka_offsets.staging.rows import StagedRows
from airflow_kafka_offsets.writers.table_rows import RefusedRows
from tests.support.iceberg import iceberg_sink, open_table, scanned

LONG = "a text of which the bounds of a file have the beginning only, "

VALUES: dict[str, tuple[pa.DataType, Sequence[Any], tuple[str, ...]]] = {
    "int": (pa.int32(), (-5, 3, 9), ("truncate(4, key)",)),
    "text": (pa.string(), (LONG + "a", LONG + "b", "é"), ("bucket(3, key)",)),
    # Parquet has no bounds of a row group with a longer one than 4096 bytes.
    "long_text": (pa.string(), ("a", "b", "b" * 5000, "c", "é" * 5000), ()),
    "about 64": (pa.string(), ("x" * 64, "x" * 65, "x" * 66, "x" * 64 + "."), ("bucket(3, key)",)),
    "bytes": (pa.binary(), (b"\x00", b"\xff\xff", b"", b"\xff" * 5000), ("truncate(2, key)",)),
    "boolean": (pa.bool_(), (False, True), ()),
    "decimal": (pa.decimal128(9, 2), (Decimal("-1.10"), Decimal("2.00"), Decimal("300.01")), ("bucket(3, key)",)),
    "date": (pa.date32(), (date(1969, 7, 20), date(2026, 1, 1), date(2026, 1, 2)), ("month(key)",)),
    "years": (pa.date32(), (date.min, date.max, date(2026, 1, 2)), ("year(key)",)),
    "months": (pa.timestamp("us"), (datetime.min, datetime.max, datetime(2026, 1, 2)), ("month(key)",)),
    "time": (pa.time64("us"), (time(0), time(23, 59, 59, 999999)), ()),
    "timestamp": (pa.timestamp("us"), (datetime(1969, 1, 1), datetime(2026, 1, 1, 1, 2, 3, 4)), ("day(key)",)),
    "instant": (
        pa.timestamp("us", "UTC"),
        (datetime(2026, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)),
        ("bucket(3, key)",),
    ),
}


def publish(
    sink: IcebergTable, engine: sa.Engine, number: int, kind: pa.DataType, keys: Sequence[Any], at: Path
) -> int:
    columns = pa.schema([("key", kind), *ORIGIN_COLUMNS])
    origin = {"_kafka_topic": "orders", "_kafka_partition": 0}
    rows = [{"key": key, "_kafka_offset": number * 10 + row, **origin} for row, key in enumerate(keys)]
    output, staging = Output(number, "loader", (), "series", f"batch-{number}-x"), StagingDirectory(str(at))
    sink.connect(engine).prepare(columns)
    writer = sink.connect(engine).writer(columns, output)
    files = tuple(writer.write([pa.RecordBatch.from_pylist(rows, columns)], staging, {}, RefusedRows(staging)))
    with engine.begin() as conn, sink.connect(engine).publish(conn, output) as target:
        return target.write(StagedRows(staging, Manifest(number, "", files, (), (), writer.columns)))


class Rows:
    """A file of two rows; see `RowSource`."""

    columns = pa.schema([("key", pa.string()), *ORIGIN_COLUMNS, (BATCH_ID, pa.int64())])

    def read(self, _: Any, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        origin = {"_kafka_topic": "orders", "_kafka_partition": 0}
        for offset, key in enumerate(["x" * 1_000_000, "x" * 1_000_000 + "y", "x" * 1_000_000, "é"]):
            row = pa.RecordBatch.from_pylist([{"key": key, "_kafka_offset": offset, **origin}], self.columns)
            yield row.select(list(names))


def test_long_keys_are_kept_as_their_digests() -> None:
    source: Any = Rows()
    rows = pa.Table.from_batches([*source.read(None, Rows.columns.names)])
    with sa.create_engine("sqlite://").connect() as conn:
        newest = NewestRows(source, [LakeFile("a", None, None)], ["key"], LogOrder(), conn)
        replaced = newest.replaced(rows, pa.array(range(4)))[0]
    assert len(newest) == 3
    assert pc.max(pc.binary_length(newest.index.values[0])).as_py() == 65
    assert newest.index.bounds() == {}
    assert replaced.to_pylist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", VALUES)
def test_a_row_is_found_by_its_key(tmp_path: Path, kind: str) -> None:
    of_type, keys, partition_by = VALUES[kind]
    engine = sa.create_engine(f"sqlite:///{tmp_path}/positions.db", poolclass=sa.NullPool)
    groups = {"write.parquet.row-group-limit": "2"}
    sink = iceberg_sink("positions", tmp_path, upsert_key=("key",), partition_by=partition_by, properties=groups)

    for number, some in enumerate((keys, keys[:1], keys[1:]), start=1):
        assert publish(sink, engine, number, of_type, some, tmp_path) == len(some)

    found = scanned(open_table(sink, engine), "key", "_kafka_offset")
    assert found == sorted([(keys[0], 20), *((key, 30 + row) for row, key in enumerate(keys[1:]))])
