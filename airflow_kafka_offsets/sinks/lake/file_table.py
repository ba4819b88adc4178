"""A table of Parquet files in one version, however it knows which files are its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.origin import BATCH_ID, OFFSET, PARTITION, TOPIC
from airflow_kafka_offsets.sinks.lake.left_files import is_attempt
from airflow_kafka_offsets.writers.object_files import ObjectFiles


class ActiveFile(NamedTuple):
    """A data file of the table.

    :param path: as the table's metadata has it
    :param name: its path below the location of the table
    :param partition: the value of each partition column
    """

    path: str
    name: str
    bytes: int
    partition: Mapping[str, Any]


class PublicationResult(NamedTuple):
    """What a publication did.

    :param removed: rows, by batch, topic and partition
    :param columns: that were added before it
    """

    rows: int = 0
    removed: tuple[tuple[int, str, int, int], ...] = ()
    columns: tuple[str, ...] = ()


class FileTable(ABC):
    """A table in one version; a `LakeSource`.

    :ivar columns: with Arrow's types
    :ivar required: the columns that may not be null
    """

    name: str
    files: ObjectFiles
    columns: pa.Schema
    partition_by: Sequence[str]

    @property
    def required(self) -> list[str]:
        return [column.name for column in self.columns if not column.nullable]

    @abstractmethod
    def refresh(self) -> Self:
        """Return the table as it is now."""

    @abstractmethod
    def check(self) -> None:
        """Check that this package can write to the table.

        :raises TargetError: it cannot
        """

    @abstractmethod
    def check_removal(self) -> None:
        """Check that rows may be removed.

        :raises TargetError: they may not
        """

    @abstractmethod
    def last_number(self, series: str) -> int:
        """Return the number of the last publication of a series; -1 where there is none."""

    def is_taken(self, series: str, batch_id: int) -> bool:
        """Return whether a batch is published, or can be published no more."""
        return self.last_number(series) >= batch_id

    @abstractmethod
    def find_published(self, series: str, batch_id: int) -> PublicationResult | None:
        """Return what a publication did; None where the table does not know it any more."""

    @abstractmethod
    def active(self, ranges: Mapping[str, tuple[Any, Any]] | None = None) -> Sequence[ActiveFile]:
        """Return the data files that may hold rows within ranges; those whose statistics do not tell may.

        :param ranges: by column, the lowest and the highest value
        """

    @abstractmethod
    def measured(self, columns: pa.Schema) -> list[str]:
        """Return the columns of which files have statistics."""

    @abstractmethod
    def unnamed(self, paths: Collection[str]) -> set[str]:
        """Return which of some files that are not active no version of the table names."""

    def left_files(self, batch_id: int, before: datetime) -> list[str]:
        """Return the paths of the files that attempts to stage a batch left.

        :param before: only files that were last written before this
        """
        attempts = [name for name in self.files.directories() if is_attempt(name.removeprefix("attempt="), batch_id)]
        found = [file.path for name in attempts for file in self.files.find(name) if file.modified < before.timestamp()]
        unused = set(found).difference(file.name for file in self.active()) if found else set()
        return sorted(self.unnamed(unused)) if unused else []

    def read_file(self, file: ActiveFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, with the types of the table; columns that the file lacks are null."""
        schema = pa.schema([self.columns.field(name).with_nullable(True) for name in columns])
        with self.files.open(file.name) as opened, pq.ParquetFile(opened) as parquet:
            held = [name for name in columns if name in parquet.schema_arrow.names and name not in file.partition]
            # Without a column there are still rows.
            for batch in parquet.iter_batches(columns=held or parquet.schema_arrow.names[:1]):
                arrays = [
                    batch.column(column.name).cast(column.type)
                    if column.name in held
                    else pa.repeat(pa.scalar(file.partition.get(column.name), column.type), batch.num_rows)
                    for column in schema
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def scan(
        self, columns: Sequence[str], batches: tuple[int, int] | None = None, within: Slice | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows; see `LakeSource.scan`."""
        ranges: dict[str, tuple[Any, Any]] = {}
        if batches is not None:
            ranges[BATCH_ID] = batches
        if within is not None:
            ranges[TOPIC] = (within.topic, within.topic)
            ranges[PARTITION] = (within.partition, within.partition)
            ranges[OFFSET] = (within.start, within.end - 1)
        for file in self.active(ranges):
            yield from self.read_file(file, columns)

    def batch_ids(self, at_least: int) -> set[int]:
        """Return the numbers of the batches that have rows, from one on."""
        if BATCH_ID not in self.columns.names:
            return set()
        found: set[int] = set()
        for rows in self.scan([BATCH_ID], (at_least, (1 << 63) - 1)):
            found.update(pc.unique(rows.column(0)).to_pylist())
        return {batch_id for batch_id in found if batch_id is not None and batch_id >= at_least}
