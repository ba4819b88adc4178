"""What writers of final files share: the fields that travel to Spark's tasks, and how a task writes with them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import pyarrow as pa

from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.staging.rows import schema_of
from airflow_kafka_offsets.writers.data_files import DataFile, FileLayout, write_data_files
from airflow_kafka_offsets.writers.object_files import ObjectFiles
from airflow_kafka_offsets.writers.refused_rows import RefusedRows
from airflow_kafka_offsets.writers.table_rows import table_rows


@dataclass(frozen=True)
class TableWriter(ABC):
    """Write the rows of a Spark partition into the location of a table.

    :param name: of the table, for messages
    :param columns: of the rows, as a text
    :param table: the columns of the table, with those that the commit adds, as a text
    :param required: columns that may not be null
    :param measured: columns that statistics are kept of
    :param directory: in the location, of this attempt
    :param layout: a digest of all that the files depend on, by which the commit finds that the table changed
    """

    kind: ClassVar[str]

    name: str
    uri: str
    columns: str
    table: str
    required: list[str]
    partition_by: list[str]
    sort_by: list[str]
    measured: list[str]
    file_bytes: int
    batch_id: int
    directory: str
    layout: str

    @abstractmethod
    def path(self, partition: Mapping[str, Any]) -> str:
        """Return the path of a new file."""

    @abstractmethod
    def plain(self, file: DataFile) -> dict[str, Any]:
        """Return what the commit has to know of a file."""

    def write(
        self,
        rows: Iterable[pa.RecordBatch],
        staging: StagingDirectory,
        storage: Mapping[str, Any],
        refused: RefusedRows,
    ) -> Iterator[StagedFile]:
        """Write rows; see `RowWriter.write`."""
        files, table = ObjectFiles(self.uri, storage), schema_of(self.table)
        fitting = table_rows(self.name, rows, table, self.required, self.batch_id, refused)
        # All record batches have the columns of the first.
        first = next(fitting, None)
        if first is None:
            return
        layout = FileLayout(
            columns=first.schema,
            partition_by=self.partition_by,
            sort_by=self.sort_by,
            file_bytes=self.file_bytes,
            measured=self.measured,
        )
        for file in write_data_files(files, chain([first], fitting), layout, self.path):
            data = json.dumps({"layout": self.layout, "add": self.plain(file)})
            yield StagedFile(file.path, file.rows, file.bytes, "", data)
