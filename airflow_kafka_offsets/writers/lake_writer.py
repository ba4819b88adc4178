"""Rows as final data files of a table, which a commit adds to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Protocol

import pyarrow as pa

from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.writers.data_files import DataFile, FileLayout, Files, PartitionLimit, write_data_files
from airflow_kafka_offsets.writers.table_rows import RefusedRows, table_rows

FORMATS = {
    "delta": "airflow_kafka_offsets.writers.delta_files:DeltaShape",
    "iceberg": "airflow_kafka_offsets.writers.iceberg_files:TableShape",
    "parquet": "airflow_kafka_offsets.writers.delta_files:ParquetShape",
}
"""The `FileFormat` of each format, by its name."""


class FileFormat(Protocol):
    """What of a table decides how its files are written: a frozen dataclass whose fields JSON can hold."""

    @property
    def layout(self) -> FileLayout:
        """What the files are like. Its columns are those of the table."""

    def files(self, storage: Mapping[str, Any]) -> Files:
        """Return where files are written.

        :param storage: what the sink's `storage_options` returned
        """

    def path(self, attempt: str, partition: Mapping[str, Any]) -> str:
        """Return the path of a new file.

        :param attempt: the directory of the files of an attempt
        """

    def to_json(self, file: DataFile) -> str:
        """Return what the commit has to know of a file."""


@dataclass(frozen=True)
class LakeWriter:
    """Write the rows of a Spark partition into data files of a table.

    :param format: one of `FORMATS`
    :param table: the name of the table, for messages
    :param columns: of the rows; see `RowWriter.columns`
    :param shape: the fields of the format's class
    :param batch_id: what the rows have as `_batch_id`
    :param attempt: the directory of the files
    :param key: the columns by which rows are replaced; they and those that name the record may not be null
    """

    format: str
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
        # Spark's driver, which also knows the writer, needs no library of the format.
        module, _, name = FORMATS[self.format].partition(":")
        shape: FileFormat = getattr(import_module(module), name)(**self.shape)
        if (unfit := shape.layout.unfit) is not None:
            rows = (refused.take_out(batch, found) if (found := unfit(batch)) else batch for batch in rows)
        limit = PartitionLimit(shape.layout.partition_by)
        fitting = table_rows(self.table, rows, shape.layout.columns, self.batch_id, refused, self.key, limit)
        path = partial(shape.path, self.attempt)
        for file in write_data_files(shape.files(storage), fitting, shape.layout, path):
            yield StagedFile(file.path, file.rows, file.bytes, "", shape.to_json(file))
