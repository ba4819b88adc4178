"""Records as a task of Spark decodes them, with the helpers of the tests that compare rows."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import RecordError
from airflow_kafka_offsets.formats.columns import format_columns, row_columns
from airflow_kafka_offsets.formats.record_format import BadRecord, Decoded, RecordFormat
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.spark.decoding import decode_rows, record_error

FIRST_OFFSET = 1000
# Offsets are not counts: every second one holds a record here, as after compaction or in transactions.
STEP = 2
BEGUN = datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)
Row = dict[str, Any]


def record_batch(values: Sequence[bytes | None], **columns: pa.Array) -> pa.RecordBatch:
    """Record batches as `read` yields them."""
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "offset": pa.array([FIRST_OFFSET + STEP * i for i in range(count)], pa.int64()),
            "timestamp": pa.array([BEGUN + timedelta(seconds=i) for i in range(count)], pa.timestamp("us", "UTC")),
            **columns,
        }
    )


def slice_of(values: Sequence[bytes | None]) -> Slice:
    return Slice(0, "orders", 3, FIRST_OFFSET, FIRST_OFFSET + STEP * len(values))


def decode(ddl: str, *values: bytes | None) -> list[Row]:
    """Rows with all their columns."""
    rows, bad = sifted(ddl, *values)
    if bad:
        raise record_error(record_batch(values), bad[0], slice_of(values))
    return rows


def declared(rows: list[Row]) -> list[Row]:
    """Rows without the columns that say where they came from."""
    return [{name: value for name, value in row.items() if not name.startswith("_kafka_")} for row in rows]


def decode_field(ddl_type: str, text: str) -> Any:
    """The value of a single field, given as JSON."""
    (row,) = decode(f"a {ddl_type}", b'{"a": %s}' % text.encode())
    return row["a"]


def refused_at(ddl: str, *values: bytes | None) -> int:
    """The place, from 0, of the record that is refused."""
    with pytest.raises(RecordError) as raised:
        decode(ddl, *values)
    error = raised.value
    assert (error.topic, error.partition) == ("orders", 3)
    place, odd = divmod(error.offset - FIRST_OFFSET, STEP)
    assert not odd
    return place


def sifted(ddl: str, *values: bytes | None) -> tuple[list[Row], list[BadRecord]]:
    """The rows with all their columns, and what was set aside."""
    rows, bad = decoded_as(Json(ddl), record_batch(values))
    return rows.to_pylist(), list(bad)


def decoded_as(record_format: RecordFormat, records: pa.RecordBatch) -> Decoded:
    """What a task makes of records."""
    columns = row_columns(record_format)
    decode = record_format.decoder(format_columns(columns))
    decoded = decode_rows(records, decode, slice_of([None] * records.num_rows))
    assert decoded.rows.schema == columns
    decoded.rows.validate(full=True)
    return decoded
