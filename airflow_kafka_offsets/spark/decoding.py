"""Decode and transform the records of a slice in this process, for `tasks`.

`isolation` does the same in a child process, for records that may crash the process.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.bisection import Run, split_at_failures
from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import NewFieldError, RecordError, TransformError
from airflow_kafka_offsets.formats.columns import add_origin, format_columns
from airflow_kafka_offsets.formats.read_schemas import ReadSchema, schemas_read
from airflow_kafka_offsets.formats.record_format import BadRecord, Decoded, Decoder, RefusedSchemasError, decoder_of
from airflow_kafka_offsets.formats.room import RoomError, limited_room, most_bytes
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.transforms.columns import check_columns
from airflow_kafka_offsets.transforms.transform import BatchFunction

CRASH = "crash"
"""The part of a record that ends the process which decodes or transforms it, or takes too much of its memory."""

MOST_ROOM = 128 << 20
"""The bytes of rows that are decoded together, and that one record may become, unless it is large itself."""

# So many times the bytes of a large record its rows may have.
_GROWTH = 16


class Decoding(Protocol):
    """Decodes and transforms batches of records of a slice."""

    def __call__(self, records: pa.RecordBatch) -> Decoded:
        """Return the rows of a batch, with the columns of the job's transform if that runs here, and its bad records.

        :param records: what `kafka.reader.read` yields, never empty
        :raises RoomError: the rows take too much memory
        """

    def schemas_read(self) -> tuple[ReadSchema, ...]:
        """Return the schemas of a registry that the records were read with."""


class DecodingHere:
    """Decodes and transforms batches of records of a slice in this process.

    :param transform: the function of the job's transform, if that runs here
    """

    def __init__(self, job: StageJob, slice_: Slice, transform: BatchFunction | None) -> None:
        self._job, self._slice, self._transform = job, slice_, transform
        self._decode = decoder_of(job.record_format, format_columns(job.columns), job.connections)

    def __call__(self, records: pa.RecordBatch) -> Decoded:
        decoded = decode_rows(records, self._decode, self._slice)
        if self._transform is not None and (self._job.has_dead_letters or not decoded.bad):
            decoded = transform_rows(self._job, records, decoded, self._transform, self._slice)
        if decoded.rows.nbytes > room_of(records):
            raise RoomError
        return decoded

    def schemas_read(self) -> tuple[ReadSchema, ...]:
        return schemas_read(self._job.record_format, self._decode)


LARGE_BYTES = 1 << 20
"""The bytes of key and value from which a record is decoded alone, in a child process: a reader of single records may
make 200 bytes of Python's objects of each.
"""


def decode_portions(
    records: pa.RecordBatch, columns: pa.Schema, decode: Decoding
) -> Iterator[tuple[pa.RecordBatch, Decoded]]:
    """Decode records in batches whose rows take little memory, or of one record; yield each with its rows.

    A null in a list may be a byte in a record, and takes the room of all fields of an item in Arrow; so do names of an
    enum. Large records are alone. A record is bad if its rows alone take too much memory.

    :param columns: of the rows
    """

    def decode_portion(first: int, end: int) -> tuple[pa.RecordBatch, Decoded]:
        portion = records.slice(first, end - first)
        if portion.num_rows > 1 and may_grow(portion, columns):
            raise RoomError
        return portion, decode(portion)

    for found in split_at_failures(records.num_rows, decode_portion, RoomError):
        if isinstance(found, Run):
            yield found.result
        else:
            bad = BadRecord(0, f"it becomes rows of more than {MOST_ROOM >> 20} MiB", CRASH)
            yield records.slice(found.position, 1), Decoded(pa.RecordBatch.from_pylist([]), [bad])


def room_of(records: pa.RecordBatch) -> int:
    """Return how many bytes the rows of records may have."""
    return max(MOST_ROOM, _GROWTH * records.nbytes) if records.num_rows == 1 else MOST_ROOM


def may_grow(records: pa.RecordBatch, columns: pa.Schema) -> bool:
    """Return whether records may take much memory while they are decoded: their rows, or one that is large."""
    return most_room(records, columns) > MOST_ROOM or (
        records.nbytes > LARGE_BYTES and sum(_longest(records, name) for name in ("key", "value")) > LARGE_BYTES
    )


def _longest(records: pa.RecordBatch, name: str) -> int:
    return pc.max(pc.binary_length(records.column(name))).as_py() or 0


def most_room(records: pa.RecordBatch, columns: pa.Schema) -> int:
    """Return how many bytes the rows of records take at most, texts apart."""
    return most_bytes(pa.struct(list(columns)), records.num_rows, records.nbytes)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End this process by SIGALRM if the block takes longer, because native code that does not return cannot be
    stopped.
    """
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def decode_rows(records: pa.RecordBatch, decode: Decoder, slice_: Slice) -> Decoded:
    """Decode records to rows with origin columns.

    :param records: what `kafka.reader.read` yields
    :raises NewFieldError: records have fields without a column, which may not be left out
    :raises RecordError: too many schema ids are unusable; names the record with the next one
    :raises RoomError: the rows take too much memory
    """
    try:
        with limited_room(room_of(records)):
            rows, bad = decode(records)
    except NewFieldError as error:
        offsets = records.column("offset")
        within = f"{slice_.topic}[{slice_.partition}], offsets {offsets[0].as_py()}..{offsets[-1].as_py()}"
        raise type(error)(f"{within}: {error}") from None
    except RefusedSchemasError as error:
        raise record_error(records, BadRecord(error.row, str(error)), slice_) from None
    if bad:
        undecoded = {record.row for record in bad}
        records = records.filter(pa.array([row not in undecoded for row in range(records.num_rows)]))
    return Decoded(add_origin(rows, records, slice_.topic, slice_.partition), bad)


def transform_rows(
    job: StageJob, records: pa.RecordBatch, decoded: Decoded, transform: BatchFunction, slice_: Slice
) -> Decoded:
    """Transform decoded rows.

    :param records: the records of the rows, and the bad ones
    :return: the rows of the result, and the bad records of decoding and transforming, in the order of the records
    :raises TransformError: the transform failed, or records cannot be transformed and cannot be dead-lettered
    :raises TargetError: the target lacks columns of the result, or needs others
    """
    rows, refused = transform(decoded.rows)
    name = job.batch_transform.name if job.batch_transform else ""
    check_columns(rows.schema.names, job.target, name)
    if not refused:
        return Decoded(rows, decoded.bad)
    undecoded = {record.row for record in decoded.bad}
    places = [row for row in range(records.num_rows) if row not in undecoded]
    bad = [record._replace(row=places[record.row]) for record in refused]
    if not job.has_dead_letters:
        offsets = records.column("offset")
        raise TransformError(
            f"Record at topic {slice_.topic!r} partition {slice_.partition} offset {offsets[bad[0].row].as_py()}, of "
            f"the batch of offsets {offsets[0].as_py()} to {offsets[-1].as_py()}, cannot be transformed: "
            f"{bad[0].reason}. Nothing of this batch was written and no position moved; correct the transform, or let "
            "on_bad_record=DeadLetters() keep such records as dead letters."
        )
    return Decoded(rows, sorted([*decoded.bad, *bad], key=lambda record: record.row))


def record_error(records: pa.RecordBatch, bad: BadRecord, slice_: Slice) -> RecordError:
    """Return the error that names a bad record."""
    offset = records.column("offset")[bad.row].as_py()
    return RecordError(shortened(bad.reason), topic=slice_.topic, partition=slice_.partition, offset=offset)
