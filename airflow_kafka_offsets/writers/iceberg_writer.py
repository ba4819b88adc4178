"""Rows as data files of an Iceberg table, which a commit adds to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.origin import BATCH_ID, RESERVED_PREFIX
from airflow_kafka_offsets.exceptions import RecordError, TargetError
from airflow_kafka_offsets.formats.years import OUT_OF_YEARS, out_of_years
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.staging.rows import record_of


@dataclass(frozen=True)
class IcebergWriter:
    """Write the rows of a Spark partition into data files of a table.

    :param table: the name of the table, for messages
    :param columns: of the rows; see `RowWriter.columns`
    :param shape: the fields of a `TableShape`
    :param batch_id: what the rows have as `_batch_id`
    :param attempt: the directory of the files, below that of the table's data
    """

    kind: ClassVar[str] = "iceberg"

    table: str
    columns: str
    shape: Mapping[str, Any]
    batch_id: int
    attempt: str

    def write(
        self, rows: Iterable[pa.RecordBatch], staging: StagingDirectory, storage: Mapping[str, Any]
    ) -> Iterator[StagedFile]:
        """Write rows; see `RowWriter.write`."""
        # Spark's driver, which also knows the writer, needs no pyiceberg.
        from pyiceberg.io import load_file_io

        from airflow_kafka_offsets.writers.iceberg_data_file import TableShape
        from airflow_kafka_offsets.writers.iceberg_files import DataFiles

        shape = TableShape(**self.shape)
        files = DataFiles(shape, load_file_io(dict(storage), shape.location), self.attempt)
        columns = files.columns
        fitting = (self._fitting(batch, columns) for batch in rows if batch.num_rows)
        for file in files.write(fitting):
            yield StagedFile(file.file_path, file.record_count, file.file_size_in_bytes, "", shape.to_json(file))

    def _fitting(self, batch: pa.RecordBatch, columns: pa.Schema) -> pa.Table:
        """Return rows with the columns of the table.

        :raises TargetError: the table lacks a column of the rows, or a value does not fit
        :raises RecordError: the same, where the rows say which record
        """
        unknown = [name for name in batch.schema.names if name not in columns.names]
        if unknown := [name for name in unknown if not name.startswith(RESERVED_PREFIX) and name != BATCH_ID]:
            raise TargetError(f"Table {self.table!r} has no column {', '.join(map(repr, unknown))}")
        arrays = []
        for column in columns:
            if column.name == BATCH_ID:
                array = pa.repeat(pa.scalar(self.batch_id, column.type), batch.num_rows)
            elif column.name in batch.schema.names:
                array = self._cast(batch, column)
            else:
                array = pa.nulls(batch.num_rows, column.type)
            if not column.nullable and array.null_count:
                self._refuse(batch, pc.index(pc.is_null(array), True).as_py(), column, "it may not be null")
            arrays.append(array)
        return pa.Table.from_arrays(arrays, schema=columns)

    def _cast(self, batch: pa.RecordBatch, column: pa.Field) -> pa.Array:
        values = batch.column(column.name)
        # Readers in Python, and the statistics of the file, have no such years.
        if not pa.types.is_nested(values.type) and (late := out_of_years(values)):
            self._refuse(batch, min(late), column, OUT_OF_YEARS)
        if values.type == column.type:
            return values
        misfit = f"a value of type {values.type} does not fit into {column.type}"
        if pa.types.is_timestamp(values.type) and (values.type.tz is None) != (
            getattr(column.type, "tz", None) is None
        ):
            raise TargetError(f"Column {column.name!r} of table {self.table!r}: {misfit}")
        try:
            cast = values.cast(column.type)
            # Arrow rounds numbers silently.
            is_kept = cast.cast(values.type).equals(values) or (
                pa.types.is_floating(values.type) and _widens(values, cast)
            )
        except pa.ArrowException:
            is_kept = False
        if not is_kept:
            raise TargetError(f"Column {column.name!r} of table {self.table!r}: {misfit}")
        return cast

    def _refuse(self, batch: pa.RecordBatch, row: int, column: pa.Field, reason: str) -> None:
        text = f"column {column.name!r} of table {self.table!r}: {reason}"
        raise RecordError(text, *record_of(batch, row, text))


def _widens(values: pa.Array, cast: pa.Array) -> bool:
    """Return whether no number could be rounded; NaN is unlike itself."""
    return bool(pa.types.is_floating(cast.type) and cast.type.bit_width >= values.type.bit_width)
