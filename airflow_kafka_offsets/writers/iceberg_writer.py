"""Rows as data files of an Iceberg table, which a commit adds to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD, RESERVED_PREFIX
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.staging.refused import null_key
from airflow_kafka_offsets.writers.fitting import fit
from airflow_kafka_offsets.writers.refused_rows import RefusedRows


@dataclass(frozen=True)
class IcebergWriter:
    """Write the rows of a Spark partition into data files of a table.

    :param table: the name of the table, for messages
    :param columns: of the rows; see `RowWriter.columns`
    :param shape: the fields of a `TableShape`
    :param batch_id: what the rows have as `_batch_id`
    :param attempt: the directory of the files, below that of the table's data
    :param key: the columns by which rows are replaced; they and those that name the record may not be null
    """

    kind: ClassVar[str] = "iceberg"

    table: str
    columns: str
    shape: Mapping[str, Any]
    batch_id: int
    attempt: str
    key: Sequence[str] = ()

    def write(
        self,
        rows: Iterable[pa.RecordBatch],
        staging: StagingDirectory,
        storage: Mapping[str, Any],
        refused: RefusedRows,
    ) -> Iterator[StagedFile]:
        """Write rows; see `RowWriter.write`."""
        # Spark's driver, which also knows the writer, needs no pyiceberg.
        from pyiceberg.io import load_file_io

        from airflow_kafka_offsets.writers.iceberg_data_file import TableShape
        from airflow_kafka_offsets.writers.iceberg_files import DataFiles

        shape = TableShape(**self.shape)
        files = DataFiles(shape, load_file_io(dict(storage), shape.location), self.attempt)
        columns = files.columns
        fitting = (self._fitting(batch, columns, refused) for batch in rows if batch.num_rows)
        for file in files.write(table for table in fitting if table.num_rows):
            yield StagedFile(file.file_path, file.record_count, file.file_size_in_bytes, "", shape.to_json(file))

    def _fitting(self, batch: pa.RecordBatch, columns: pa.Schema, refused: RefusedRows) -> pa.Table:
        """Return the rows that fit, with the columns of the table.

        :raises TargetError: the table lacks a column of the rows, or needs one that they lack
        :raises RecordError: a value does not fit, and its record may not become a dead letter
        """
        unknown = [name for name in batch.schema.names if name not in columns.names]
        if unknown := [name for name in unknown if not name.startswith(RESERVED_PREFIX) and name != BATCH_ID]:
            raise TargetError(f"Table {self.table!r} has no column {', '.join(map(repr, unknown))}")
        held = [column for column in columns if column.name in batch.schema.names and column.name != BATCH_ID]
        needed = {column.name for column in columns if not column.nullable} | {*self.key, *(RECORD if self.key else ())}
        if lacking := needed.difference(batch.schema.names, {BATCH_ID}):
            raise TargetError(f"Table {self.table!r} needs a value for {', '.join(map(repr, sorted(lacking)))}")
        batch = self._with_key(batch, refused)
        fitting, arrays = fit(self.table, batch, held, refused)
        values = {column.name: array for column, array in zip(held, arrays, strict=True)}
        if BATCH_ID in columns.names:
            kind = columns.field(BATCH_ID).type
            values[BATCH_ID] = pa.repeat(pa.scalar(self.batch_id, kind), fitting.num_rows)
        arrays = [
            values[column.name] if column.name in values else pa.nulls(fitting.num_rows, column.type)
            for column in columns
        ]
        return pa.Table.from_arrays(arrays, schema=columns)

    def _with_key(self, batch: pa.RecordBatch, refused: RefusedRows) -> pa.RecordBatch:
        """Return the rows that say their key.

        :raises TargetError: a row does not say which record it is of
        :raises RecordError: a key is null, and its record may not become a dead letter
        """
        if self.key and any(batch.column(name).null_count for name in RECORD):
            raise TargetError(
                "The transform returns a row that does not say which record it is of: which row of its key is the "
                "newest cannot be known"
            )
        reasons: dict[int, str] = {}
        for name in self.key:
            nulls = pc.indices_nonzero(batch.column(name).is_null()).to_pylist()
            reasons |= dict.fromkeys(nulls, null_key([name]))
        return refused.take_out(batch, reasons) if reasons else batch
