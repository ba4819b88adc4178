"""The staged rows as a sink reads them in the commit, and the columns of its target.

Rows are record batches with the types of the target, always in the same order.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD
from airflow_kafka_offsets.exceptions import RecordError, TargetError
from airflow_kafka_offsets.formats.years import OUT_OF_YEARS, out_of_years
from airflow_kafka_offsets.staging.arrow_files import record_batches
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest


class TargetColumns(NamedTuple):
    """The columns that a transform may return, and those that it must return.

    :param table: the target's name, for messages
    :param known: every column of the target, or None if the target does not exist yet
    :param required: columns that the target cannot fill by itself
    """

    table: str
    known: tuple[str, ...] | None
    required: tuple[str, ...] = ()


class StagedRows:
    """The rows that a manifest names.

    :param staging: the directory of the attempt that the ledger names
    """

    def __init__(self, staging: StagingDirectory, manifest: Manifest) -> None:
        self._staging = staging
        self._manifest = manifest

    def __len__(self) -> int:
        return self._manifest.rows

    def schema(self) -> pa.Schema | None:
        """Return the columns, without the batch's id; None if there are no rows."""
        return next((batch.schema for batch in self._batches()), None)

    def batches(self, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows, cast to the types of the target.

        :param columns: the columns to write, with the types in which the writer wants them
        :raises RecordError: a value is outside the range of its column; the error names the record
        """
        for batch in self._batches():
            arrays = [
                _repeated(self._manifest.batch_id, batch.num_rows).cast(column.type)
                if column.name == BATCH_ID
                else self._cast(batch, column)
                for column in columns
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=columns)

    def rejected(self, row: int, reason: str) -> RecordError | TargetError:
        """Return the error for a row that the database refuses. It names the record, if the rows have its columns.

        :param row: the index of the row among all rows
        """
        for batch in self._batches():
            if row < batch.num_rows:
                return _rejected(batch, row, reason)
            row -= batch.num_rows
        return TargetError(f"The database refuses a row: {reason}")

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for file in self._manifest.files:
            yield from record_batches(self._staging, file)

    def _cast(self, batch: pa.RecordBatch, column: pa.Field) -> pa.Array:
        values = batch.column(column.name)
        # Those of a transform; a format knows its own.
        for row in [] if pa.types.is_nested(values.type) else out_of_years(values):
            raise _rejected(batch, row, f"column {column.name!r}: {OUT_OF_YEARS}")
        if values.type == column.type:
            return values
        # Arrow's messages quote values.
        misfit = f"a value of type {values.type} does not fit into {column.type}"
        try:
            cast = values.cast(column.type)
        except pa.ArrowInvalid:
            for row in range(len(values)):
                try:
                    values.slice(row, 1).cast(column.type)
                except pa.ArrowInvalid:
                    raise _rejected(batch, row, f"column {column.name!r}: {misfit}") from None
            raise TargetError(f"Column {column.name!r}: {misfit}") from None
        if pa.types.is_float32(column.type) and pa.types.is_float64(values.type):
            # Arrow silently casts a number that is too large to infinity.
            for row in pc.indices_nonzero(pc.and_not(pc.is_inf(cast), pc.is_inf(values))).to_pylist():
                raise _rejected(batch, row, f"column {column.name!r}: {misfit}")
        return cast


def _repeated(number: int, count: int) -> pa.Array:
    """Return an array that holds a number `count` times.

    The array is made from bytes: the first time that pyarrow converts a Python value in a process, it imports pandas to recognize its
    types. That takes most of a second, here inside the transaction of the commit.
    """
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(array("q", [number]) * count)])


def _rejected(batch: pa.RecordBatch, row: int, reason: str) -> RecordError | TargetError:
    if not set(RECORD) <= set(batch.schema.names):
        return TargetError(
            f"The database refuses a row: {reason}. The transform drops the columns that say which record"
        )
    topic, partition, offset = (batch.column(name)[row].as_py() for name in RECORD)
    return RecordError(reason, topic=topic, partition=partition, offset=offset)
