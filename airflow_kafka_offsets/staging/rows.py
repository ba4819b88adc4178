"""The staged rows as the commit reads them: record batches of the target's columns, in a stable order."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.exceptions import RecordError, StagingError, TargetError
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest

ORIGIN = ("_kafka_topic", "_kafka_partition", "_kafka_offset")
"""The columns that name the record which a row came from."""


class StagedRows:
    """The rows that a manifest names.

    :param staging: the directory of the attempt that the ledger accepted
    """

    def __init__(self, staging: StagingDirectory, manifest: Manifest) -> None:
        self._staging = staging
        self._manifest = manifest

    def __len__(self) -> int:
        return self._manifest.rows

    def schema(self) -> pa.Schema | None:
        """The columns, without the batch's id; None where there are no rows."""
        for batch in self._batches():
            return batch.schema
        return None

    def batches(self, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
        """The rows, cast to the types of the target.

        :param columns: the columns to write, and their types
        :raises RecordError: a value is outside the range of its column; names the record
        """
        schema = pa.schema([(column.name, column.type) for column in columns])
        for batch in self._batches():
            arrays = [
                _repeated(self._manifest.batch_id, batch.num_rows).cast(column.type)
                if column.name == BATCH_ID
                else self._cast(batch, column)
                for column in columns
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def rejected(self, row: int, reason: str) -> RecordError | TargetError:
        """The error for a row that the database refuses, naming the record that it came from where the rows tell.

        :param row: its place among all rows, from 0
        """
        for batch in self._batches():
            if row < batch.num_rows:
                return _rejected(batch, row, reason)
            row -= batch.num_rows
        return TargetError(f"The database refuses a row: {reason}")

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for file in self._manifest.files:
            rows = 0
            for batch in self._staging.record_batches(file.name):
                rows += batch.num_rows
                yield batch
            if rows != file.rows:
                path = self._staging.file(file.name)
                raise StagingError(f"Staged file {path} holds {rows} rows, its manifest says {file.rows}")

    def _cast(self, batch: pa.RecordBatch, column: Column) -> pa.Array:
        values = batch.column(column.name)
        if values.type == column.type:
            return values
        try:
            cast = values.cast(column.type)
        except pa.ArrowInvalid as error:
            for row in range(len(values)):
                try:
                    values.slice(row, 1).cast(column.type)
                except pa.ArrowInvalid as at_row:
                    raise _rejected(batch, row, f"column {column.name!r}: {at_row}") from None
            raise TargetError(f"Column {column.name!r} cannot be written as {column.type}: {error}") from error
        if pa.types.is_float32(column.type) and pa.types.is_float64(values.type):
            # Arrow makes infinity of what is too large, and says nothing.
            for row in pc.indices_nonzero(pc.and_not(pc.is_inf(cast), pc.is_inf(values))).to_pylist():
                raise _rejected(batch, row, f"column {column.name!r}: {values[row]} is too large for {column.type}")
        return cast


class Column(NamedTuple):
    """A column to write, with the type in which the writer wants it."""

    name: str
    type: pa.DataType


def _repeated(number: int, count: int) -> pa.Array:
    """The same number `count` times.

    From bytes: when pyarrow makes an array or a scalar of Python's values for the first time in a process, it imports pandas to know
    them by. That takes most of a second, and here it would be inside of the commit's transaction.
    """
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(array("q", [number]) * count)])


def _rejected(batch: pa.RecordBatch, row: int, reason: str) -> RecordError | TargetError:
    if not set(ORIGIN) <= set(batch.schema.names):
        return TargetError(
            f"The database refuses a row: {reason}. The transform drops the columns that say which record"
        )
    topic, partition, offset = (batch.column(name)[row].as_py() for name in ORIGIN)
    return RecordError(reason, topic=topic, partition=partition, offset=offset)
