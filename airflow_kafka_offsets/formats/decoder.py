"""What every decoder shares: bad records, and the columns that say where a row came from."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import RecordError


def decode_raw(batch: pa.RecordBatch, one: Slice, columns: pa.Schema) -> pa.RecordBatch:
    """Pass key, value and headers on as they are.

    :param batch: what `read` yields
    :param columns: the declared columns, then the audit columns
    :raises RecordError: naming the first record whose headers are asked for and cannot be read
    """
    if "headers" in columns.names and batch.column("headers").null_count:
        first = pc.index(batch.column("headers").is_null(), True).as_py()
        raise record_error("the key of a header is not UTF-8", batch, first, one)
    declared = [batch.column(name) for name in columns.names[:-4]]
    return pa.RecordBatch.from_arrays([*declared, *origin_arrays(batch, one)], schema=columns)


class BadRecord(NamedTuple):
    """A record that does not decode.

    :param row: its place in the batch, from 0
    :param reason: what is wrong with it, as in RecordError
    """

    row: int
    reason: str


def record_error(reason: str, batch: pa.RecordBatch, row: int, one: Slice) -> RecordError:
    """Return the error that names a record.

    :param row: its place in the batch
    """
    return RecordError(reason, topic=one.topic, partition=one.partition, offset=batch.column("offset")[row].as_py())


def origin_arrays(batch: pa.RecordBatch, one: Slice) -> list[pa.Array]:
    """Return the arrays of the columns that say where each record came from."""
    return [
        pa.repeat(pa.scalar(one.topic), batch.num_rows),
        pa.repeat(pa.scalar(one.partition, pa.int32()), batch.num_rows),
        batch.column("offset"),
        batch.column("timestamp"),
    ]
