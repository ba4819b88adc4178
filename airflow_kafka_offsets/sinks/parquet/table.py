"""Publish, remove and verify batches in plain Parquet files. The name of a file has its batch id."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS
from airflow_kafka_offsets.sinks.lake.columns import check_parameters, created_columns, match_new
from airflow_kafka_offsets.sinks.lake.left_files import (
    has_plain_path,
    left_below,
    prove_files,
    read_entries,
    remove_left,
)
from airflow_kafka_offsets.sinks.lake.removal import ReplacedRows, Search, as_removed
from airflow_kafka_offsets.sinks.lake.rows import LakeRows
from airflow_kafka_offsets.sinks.lake.sink import dataset_name, fields_of
from airflow_kafka_offsets.sinks.lake.snapshot import Bounds, LakeFile, RowSource, open_parquet, read_parquet
from airflow_kafka_offsets.sinks.table import REWIND_AFTER, Dataset, LastBatch, Output, Table, Target
from airflow_kafka_offsets.sinks.target_rows import Removed, ReplacedOffsets
from airflow_kafka_offsets.staging.rows import StagedRows, TargetColumns, schema_text
from airflow_kafka_offsets.writers.delta_files import DeltaShape, read_written
from airflow_kafka_offsets.writers.lake_writer import LakeWriter
from airflow_kafka_offsets.writers.object_files import ObjectFiles

if TYPE_CHECKING:
    from airflow_kafka_offsets.sinks.parquet.files import ParquetFiles

_STAGING = "_staging"

# Numbers that are no longer than the database's.
_NAME = re.compile(r"(?:[^/]+=[^/]*/)*(\d{1,18})(-[0-9a-f]{8})?-\d+\.parquet", re.ASCII)


@dataclass(frozen=True)
class ParquetTable(Table):
    """Plain Parquet files; see `Table`. Publishing a batch is idempotent: it replaces the batch's files with the staged
    ones, so no attempt has to know whether the batch is published.

    :param sink: with the options of its object store
    """

    sink: ParquetFiles

    @cached_property
    def files(self) -> ObjectFiles:
        """The storage."""
        return ObjectFiles(self.sink.uri, self.sink.storage)

    def published(self) -> dict[str, int]:
        """Return the batch of each file, by its path."""
        names = ((file.path, _NAME.fullmatch(file.path)) for file in self.files.find(""))
        found = {path: int(name[1]) for path, name in names if name is not None}
        for path in found:
            self.files.refuse_outside(path)
        return found

    def prepare(self, columns: pa.Schema | None, *, may_grow: bool = False) -> TargetColumns:
        declared = check_parameters(self.sink)
        rows = declared if columns is None else columns
        if rows is None:
            return TargetColumns(self.sink.name, None)
        match_new(self.sink.name, pa.schema([]), rows)
        created_columns(self.sink, rows)
        return TargetColumns(self.sink.name, None if columns is not None else (*rows.names, BATCH_ID))

    def last_batch(self, conn: Connection, output: Output) -> LastBatch | None:
        """Return the highest number of a batch that has a file, of any group."""
        published = self.published().values()
        return LastBatch(max(published)) if published else None

    def way_out(self, conn: Connection, batches: sa.Table, output: Output) -> str:
        return f"Restore both to the same moment, or remove the files of the unknown batches. {REWIND_AFTER}"

    def writer(self, columns: pa.Schema | None, output: Output) -> LakeWriter:
        rows = check_parameters(self.sink) if columns is None else columns
        if rows is None:
            raise ConfigurationError(
                "The columns of the files are unknown before the transform runs. Declare them, as in "
                'ParquetFiles(…, columns="id BIGINT, name STRING")'
            )
        schema = created_columns(self.sink, rows)
        partitions, order = tuple(self.sink.partition_by), tuple(self.sink.sort_by)
        shape = DeltaShape(self.sink.uri, schema_text(schema), partitions, order, (), self.sink.file_bytes)
        directory = f"{_STAGING}/{output.attempt}"
        return LakeWriter("parquet", self.sink.name, schema_text(rows), asdict(shape), output.batch_id, directory)

    def storage_options(self) -> Mapping[str, Any]:
        return self.sink.storage

    @contextmanager
    def publish(self, conn: Connection, output: Output) -> Iterator[ParquetTarget]:
        target = ParquetTarget(self, conn, output)
        yield target
        target.commit()

    def retire(self, output: Output) -> list[Removed]:
        paths = [path for path, number in self.published().items() if number == output.batch_id]
        rows = sum(self.opened(path).metadata.num_rows for path in paths)
        staged = left_below(self.files, output.batch_id, output.series.partition(".")[0], directory=_STAGING)
        for path in (*staged, *paths):
            self.files.remove(path)
        return [Removed(output.batch_id, output.ranges[0].topic_partition, rows)] if rows else []

    def rows(self, conn: Connection) -> LakeRows:
        return LakeRows(conn, self.sink.name, ParquetRows(self, self.published()))

    def check_replaced(self, conn: Connection, replaced: ReplacedOffsets) -> None:
        ReplacedFiles.find(self, conn, replaced)

    def remove_leftovers(self, batch_id: int, before: datetime, installation: str) -> int:
        return remove_left(self.files, left_below(self.files, batch_id, installation, before, _STAGING))

    def datasets(self) -> list[Dataset]:
        published = self.published()
        fields = fields_of(ParquetRows(self, published).columns) if published else None
        return [Dataset(*dataset_name(self.sink.uri), fields)]

    def opened(self, path: str) -> pq.ParquetFile:
        """Open a file."""
        return open_parquet(self.files.open(path))


class ParquetTarget(Target):
    """The files of one batch, and those that it replaces; see `Target`."""

    def __init__(self, table: ParquetTable, conn: Connection, output: Output) -> None:
        self.table, self._conn, self._output = table, conn, output
        # What is published of a batch besides its ranges, such as its dead letters, has names of its own.
        self._stem = str(output.batch_id) if output.ranges else f"{output.batch_id}-{output.attempt[-8:]}"
        self._removed: list[str] = []
        self._copies: dict[str, str] | None = None

    def add_columns(self, columns: pa.Schema) -> list[str]:
        return []  # each file has its own columns

    def remove(self, replaced: ReplacedOffsets) -> list[Removed]:
        found = ReplacedFiles.find(self.table, self._conn, replaced)
        self._removed = found.paths
        return found.rows

    def write(self, rows: StagedRows) -> int:
        """Check the staged files; see `Target.write`."""
        root, files = f"{_STAGING}/{self._output.attempt}/", sorted(rows.files, key=lambda file: file.name)
        read_entries(self.table.sink.name, files, partial(read_written, self.table.sink.name))
        prove_files(self.table.sink.name, files, self._output.attempt, _is_own, self.table.files.size)
        self._copies = {}
        for number, file in enumerate(files):
            directory = file.name.removeprefix(root).rpartition("/")[0]
            name = f"{self._stem}-{number}.parquet"
            self._copies[file.name] = f"{directory}/{name}" if directory else name
        return sum(file.rows for file in files)

    def commit(self) -> None:
        """Copy the staged files to their names, and remove those that they replace."""
        if self._copies is not None:
            for staged, path in self._copies.items():
                self._prove_lock()
                self.table.files.copy(staged, path)
            # Those of an attempt whose staged files were lost.
            own = re.compile(rf"(?:.*/)?{self._stem}-\d+\.parquet")
            self._removed += filter(own.fullmatch, self.table.published())
        for path in set(self._removed).difference(self._copies.values() if self._copies is not None else ()):
            self._prove_lock()
            self.table.files.remove(path)

    def _prove_lock(self) -> None:
        """Raise the database's error if the session ended, and with it the lock of the group: the process may have hung
        for so long that another attempt has published the batch.
        """
        self._conn.execute(sa.select(sa.literal(1)))


class ReplacedFiles(NamedTuple):
    """The files of replaced offsets, and the rows in them."""

    paths: list[str]
    rows: list[Removed]

    @classmethod
    def find(cls, table: ParquetTable, conn: Connection, replaced: ReplacedOffsets) -> ReplacedFiles:
        """Look for them.

        :raises TargetError: a file has other rows, too
        """
        rows, published = ReplacedRows.read(conn, table.sink.name, replaced), table.published()
        files = {path: number for path, number in published.items() if number in rows.batch_ids}
        source = ParquetRows(table, published)
        if files:
            rows.check_columns(source.columns)
        removal = Search(rows).find(source)
        paths = [str(file.key) for file in removal.whole]
        if others := files.keys() - set(paths):
            raise TargetError(
                f"{table.sink.name!r} has other rows of batch {min(map(files.__getitem__, others))}, but only files of "
                "whole batches can be removed. Nothing was changed; choose bounds that contain the batch"
            )
        return cls(paths, as_removed((*key, count) for key, count in removal.counts.items()))


class ParquetRows(RowSource):
    """The rows of published files, as far as they say where they are from.

    :param published: the batch of each file, by its path
    """

    def __init__(self, table: ParquetTable, published: Mapping[str, int]) -> None:
        self.name, self._table, self._published = table.sink.name, table, published
        self.columns = self._columns()

    def _columns(self) -> pa.Schema:
        """Return those of the file of the last batch; where there are no files, those that each file has."""
        last = max(self._published, key=lambda path: self._published[path], default=None)
        origin = (*ORIGIN_COLUMNS, pa.field(BATCH_ID, pa.int64()))
        if last is None:
            return pa.schema(origin)
        known, stored = _partition(last), self._table.opened(last).schema_arrow
        types = {field.name: field.type for field in origin}
        return pa.schema([*stored, *(pa.field(name, types.get(name, pa.string())) for name in known)])

    def files(self, any_of: Sequence[Bounds] = ({},)) -> list[LakeFile]:
        spans = [bounds.get(BATCH_ID, (0, sys.maxsize)) for bounds in any_of]
        return [
            LakeFile(path, _partition(path), (number, number))
            for path, number in self._published.items()
            if any(first <= number <= last for first, last in spans)
        ]

    def _read(self, file: LakeFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([self.columns.field(name).with_nullable(True) for name in columns])
        partition = {
            name: pa.scalar(text).cast(schema.field(name).type).as_py()
            for name, text in file.native.items()
            if name in columns
        }
        yield from read_parquet(self._table.files, str(file.key), schema, partition)


def _is_own(path: str, attempt: str) -> bool:
    return has_plain_path(path, f"{_STAGING}/{attempt}")


def _partition(path: str) -> dict[str, str | None]:
    """Return the values of a file's partition columns."""
    parts = (part.partition("=") for part in path.split("/")[:-1])
    return {unquote(name): None if text == "__HIVE_DEFAULT_PARTITION__" else unquote(text) for name, _, text in parts}
