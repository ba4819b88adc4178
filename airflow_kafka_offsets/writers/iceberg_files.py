"""Data files of Iceberg: Parquet with field ids, a partition each, of about the size that the table asks for.

Memory is bounded whatever the number of rows: those of a partition are held until they are worth a row group, and a
file is closed when it is large enough. Files whose rows are sorted are sorted in memory, and are smaller for that.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO, OutputFile, OutputStream
from pyiceberg.io.fileformat import DataFileStatistics, FileFormatFactory, FileFormatWriter
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.partitioning import partition_record_value
from pyiceberg.schema import sanitize_column_names
from pyiceberg.table import TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.typedef import Record

from airflow_kafka_offsets.writers.data_files import DICTIONARY_BYTES
from airflow_kafka_offsets.writers.iceberg_data_file import TableShape, data_file

log = logging.getLogger(__name__)

_ROW_GROUP_BYTES = 32 << 20

_HELD_BYTES = 96 << 20

_OPEN_FILES = 16

_PARTITIONED_AT_ONCE = 16 << 20


@dataclass
class _Partition:
    """The rows of a partition that are held, and its open file."""

    record: Record
    held: list[pa.Table] = field(default_factory=list)
    bytes: int = 0
    file: _OpenFile | None = None

    def add(self, rows: pa.Table) -> None:
        self.held.append(rows)
        self.bytes += rows.nbytes

    def take(self) -> pa.Table:
        rows = pa.concat_tables(self.held)
        self.held, self.bytes = [], 0
        return rows


class _Path:
    """The directory of a partition, as a location provider asks for it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def to_path(self) -> str:
        return self.path


class _Output:
    """An output file that shows how much was written to it."""

    def __init__(self, output: OutputFile) -> None:
        self.output = output
        self.stream: OutputStream | None = None

    def create(self, overwrite: bool = False) -> OutputStream:
        self.stream = self.output.create(overwrite)
        return self.stream


@dataclass
class _OpenFile:
    output: _Output
    writer: FileFormatWriter

    @property
    def bytes(self) -> int:
        stream: Any = self.output.stream
        return 0 if stream is None else int(stream.tell())


class DataFiles:
    """Writes rows into data files.

    :param directory: of the files, below that of the table's data: what a failed attempt leaves is found by its name
    """

    def __init__(self, shape: TableShape, io: FileIO, directory: str) -> None:
        self._shape, self._io, self._directory, self._prefix = shape, io, directory, uuid.uuid4().hex
        self._file_schema = sanitize_column_names(shape.iceberg_schema)
        self._arrow = schema_to_pyarrow(self._file_schema)
        self._locations = load_location_provider(shape.location, dict(shape.properties))
        self._target = int(
            shape.properties.get(
                TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
            )
        )
        self._sort_by = [tuple(key) for key in json.loads(shape.sort_by)]
        self._partitions: dict[tuple[Any, ...], _Partition] = {}
        self._paths: list[str] = []

    @property
    def columns(self) -> pa.Schema:
        """The columns that rows have to have, in their order; in the file they may have other names."""
        return schema_to_pyarrow(self._shape.iceberg_schema)

    def write(self, batches: Iterable[pa.Table]) -> Iterator[DataFile]:
        """Write rows, and yield each file when it is complete. Where writing fails, no file is left.

        :param batches: with the columns of `columns`
        """
        try:
            for rows in _joined(batches):
                yield from self._add(rows)
            for partition in self._partitions.values():
                yield from self._flush(partition)
                yield from self._close(partition)
        except BaseException:
            self._remove()
            raise

    def _add(self, rows: pa.Table) -> Iterator[DataFile]:
        for key, record, part in self._split(rows):
            partition = self._partitions.setdefault(key, _Partition(record))
            partition.add(part)
            if partition.bytes >= (self._target if self._sort_by else _ROW_GROUP_BYTES):
                yield from self._flush(partition)
        while sum(partition.bytes for partition in self._partitions.values()) > _HELD_BYTES:
            yield from self._flush(max(self._partitions.values(), key=lambda partition: partition.bytes))

    def _split(self, rows: pa.Table) -> Iterator[tuple[tuple[Any, ...], Record, pa.Table]]:
        """Yield the rows of each partition."""
        shape = self._shape
        spec, schema = shape.partition_spec, shape.iceberg_schema
        if spec.is_unpartitioned():
            yield (), Record(), rows
            return
        columns = []
        for part in spec.fields:
            source = schema.find_field(part.source_id)
            values = _column(rows, schema.find_column_name(part.source_id) or "")
            columns.append(part.transform.pyarrow_transform(source.field_type)(values))
        names = [str(index) for index in range(len(columns))]
        keys = pa.table([*columns, pa.array(range(rows.num_rows), pa.int64())], names=[*names, "row"])
        for group in keys.group_by(names).aggregate([("row", "list")]).to_pylist():
            values = [
                partition_record_value(part, group[name], schema) for part, name in zip(spec.fields, names, strict=True)
            ]
            # Not the values: NaN is unlike itself.
            key = tuple(map(repr, values))
            yield key, Record(*values), rows.take(pa.array(sorted(group["row_list"]), pa.int64()))

    def _flush(self, partition: _Partition) -> Iterator[DataFile]:
        if not partition.held:
            return
        rows = partition.take().rename_columns(self._arrow.names).cast(self._arrow)
        if self._sort_by:
            keys = [(name, "ascending" if order == "asc" else "descending") for name, order in self._sort_by]
            rows = rows.take(pc.sort_indices(rows, sort_keys=keys))
        if partition.file is None:
            opened = [other for other in self._partitions.values() if other.file is not None]
            if len(opened) >= _OPEN_FILES:
                yield from self._close(max(opened, key=lambda other: other.file.bytes if other.file else 0))
            partition.file = self._open(partition.record)
        partition.file.writer.write(rows)
        if self._sort_by or partition.file.bytes >= self._target:
            yield from self._close(partition)

    def _open(self, record: Record) -> _OpenFile:
        shape = self._shape
        path = _Path(
            f"{self._directory}/{shape.partition_spec.partition_to_path(record, shape.iceberg_schema)}".rstrip("/")
        )
        name = f"{self._prefix}-{len(self._paths):05}.parquet"
        address = self._locations.new_data_location(name, path)  # type: ignore[arg-type]
        self._paths.append(address)
        output = _Output(self._io.new_output(address))
        parquet = FileFormatFactory.get(FileFormat.PARQUET)
        properties = {TableProperties.PARQUET_DICT_SIZE_BYTES: str(DICTIONARY_BYTES), **shape.properties}
        return _OpenFile(output, parquet.create_writer(output, self._file_schema, properties))  # type: ignore[arg-type]

    def _close(self, partition: _Partition) -> Iterator[DataFile]:
        opened, partition.file = partition.file, None
        if opened is None:
            return
        statistics = opened.writer.close()
        _drop_impossible_bounds(statistics)
        output = opened.output.output
        yield data_file(self._shape, output.location, partition.record, len(output), statistics.to_serialized_dict())

    def _remove(self) -> None:
        """Remove the files of a task that failed: nobody names them."""
        opened = [partition.file for partition in self._partitions.values() if partition.file is not None]
        ends: list[Callable[[], object]] = [file.writer.close for file in opened]
        ends += [partial(self._io.delete, path) for path in self._paths]
        for end in ends:
            try:
                end()
            except Exception:
                # The error that is being raised says more; the file is an orphan.
                log.warning("A file of a failed attempt could not be removed", exc_info=True)


def _drop_impossible_bounds(statistics: DataFileStatistics) -> None:
    """Drop upper bounds that would be no text.

    The bound of a long text is cut off, and its last character replaced by the next one. The next one after U+D7FF is a
    surrogate.
    """
    for bounds in statistics.column_aggregates.values():
        try:
            bounds.max_as_bytes()
        except UnicodeEncodeError:
            bounds.current_max = None


def _joined(batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield small tables joined, so that they are not partitioned row by row."""
    held: list[pa.Table] = []
    size = 0
    for rows in batches:
        held.append(rows)
        size += rows.nbytes
        if size >= _PARTITIONED_AT_ONCE:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)


def _column(rows: pa.Table, path: str) -> pa.Array:
    """Return a column, or a field of a nested one."""
    if path in rows.column_names:
        return rows.column(path).combine_chunks()
    first, *fields = path.split(".")
    column = rows.column(first).combine_chunks()
    for name in fields:
        column = pc.struct_field(column, name)
    return column
