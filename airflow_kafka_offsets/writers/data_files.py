"""Final files of a table: Parquet files of about one size, each of one partition, with statistics of what is in them.

Rows are kept until there are enough of them for a row group; a file that is sorted is kept whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_kafka_offsets.writers.object_files import ObjectFiles
from airflow_kafka_offsets.writers.statistics import ColumnRange, Ranges, merged, ranges_of

FILE_BYTES = 128 << 20
"""The size of a file, unless a sink says another one."""

DICTIONARY_BYTES = 128 << 10
"""The size at which the dictionary of a column is given up. A larger one holds nearly as many values as there are rows:
it takes twice as long to write, and the file is larger for it."""

# The bytes in Arrow that a row group is made of, and that all partitions keep together.
_GROUP_BYTES, _KEPT_BYTES = 32 << 20, 256 << 20

# A file that is open costs a buffer for its upload.
_OPEN_FILES = 16


class DataFile(NamedTuple):
    """A file that is complete.

    :param partition: the value of each partition column
    :param ranges: of the columns that were asked for
    """

    path: str
    rows: int
    bytes: int
    partition: Mapping[str, Any]
    ranges: Ranges


@dataclass(frozen=True)
class FileLayout:
    """What the files of a table are like.

    :param columns: all columns of the rows, in the order and with the types of the files
    :param partition_by: columns whose values are the same in all rows of a file
    :param partitions_in_files: whether files hold these columns
    :param sort_by: columns by which the rows of a file are in order
    :param file_bytes: the size at which a file is complete; of a sorted one, in memory
    :param measured: columns of which statistics are kept
    """

    columns: pa.Schema
    partition_by: Sequence[str] = ()
    partitions_in_files: bool = False
    sort_by: Sequence[str] = ()
    file_bytes: int = FILE_BYTES
    measured: Sequence[str] = ()

    @property
    def stored(self) -> list[str]:
        """The columns in a file."""
        names: list[str] = self.columns.names
        return [name for name in names if self.partitions_in_files or name not in self.partition_by]


def write_data_files(
    files: ObjectFiles, rows: Iterable[pa.RecordBatch], layout: FileLayout, path: Callable[[Mapping[str, Any]], str]
) -> Iterator[DataFile]:
    """Write rows into files. A file that is not complete when something raises is never there.

    :param rows: with the columns of the layout
    :param path: returns a new path for a file of a partition
    """
    partitions: dict[tuple[Any, ...], _Partition] = {}
    with ExitStack() as stack:

        def flush(partition: _Partition) -> Iterator[DataFile]:
            yield from partition.flush(stack)
            open_ones = [each for each in partitions.values() if each.is_open]
            if len(open_ones) > _OPEN_FILES:
                yield from max(open_ones, key=lambda each: each.written).close()

        for batch in rows:
            for values, part in split(batch, layout.partition_by):
                if values not in partitions:
                    named = dict(zip(layout.partition_by, values, strict=True))
                    partitions[values] = _Partition(files, layout, named, path)
                partition = partitions[values]
                partition.keep(part)
                if partition.kept_bytes >= (layout.file_bytes if layout.sort_by else _GROUP_BYTES):
                    yield from flush(partition)
            while sum(partition.kept_bytes for partition in partitions.values()) > _KEPT_BYTES:
                yield from flush(max(partitions.values(), key=lambda each: each.kept_bytes))
        for partition in partitions.values():
            yield from flush(partition)
            yield from partition.close()


@dataclass
class _Partition:
    """The rows of a partition that are kept, and its file that is not complete."""

    files: ObjectFiles
    layout: FileLayout
    values: Mapping[str, Any]
    path: Callable[[Mapping[str, Any]], str]
    kept: list[pa.RecordBatch] = field(default_factory=list)
    kept_bytes: int = 0
    open_file: _OpenFile | None = None

    @property
    def is_open(self) -> bool:
        return self.open_file is not None

    @property
    def written(self) -> int:
        return self.open_file.sink.tell() if self.open_file is not None else 0

    def keep(self, rows: pa.RecordBatch) -> None:
        self.kept.append(rows)
        self.kept_bytes += rows.nbytes

    def flush(self, stack: ExitStack) -> Iterator[DataFile]:
        """Write what is kept; yield the file if it is complete then."""
        if not self.kept:
            return
        rows = pa.Table.from_batches(self.kept)
        self.kept, self.kept_bytes = [], 0
        if self.layout.sort_by:
            rows = rows.sort_by([(name, "ascending") for name in self.layout.sort_by])
        if self.open_file is None:
            self.open_file = _OpenFile(self.files, self.layout, self.path(self.values), stack)
        self.open_file.write(rows)
        if self.layout.sort_by or self.written >= self.layout.file_bytes:
            yield from self.close()

    def close(self) -> Iterator[DataFile]:
        """Complete the file, if there is one."""
        if self.open_file is not None:
            opened, self.open_file = self.open_file, None
            opened.close()
            yield DataFile(opened.path, opened.rows, opened.sink.tell(), self.values, opened.ranges)


class _OpenFile:
    def __init__(self, files: ObjectFiles, layout: FileLayout, path: str, stack: ExitStack) -> None:
        self.path, self.rows, self.layout = path, 0, layout
        self.ranges: dict[tuple[str, ...], ColumnRange] = {}
        # Both are closed with the file; the stack of the task has them where it raises before that.
        self._stack = stack.enter_context(ExitStack())
        self.sink = self._stack.enter_context(files.create(path))
        schema = pa.schema([layout.columns.field(name) for name in layout.stored])
        self._writer = pq.ParquetWriter(
            self.sink, schema, compression="zstd", store_schema=False, dictionary_pagesize_limit=DICTIONARY_BYTES
        )

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows.select(self.layout.stored))
        self.rows += rows.num_rows
        measured = [name for name in self.layout.stored if name in self.layout.measured]
        self.ranges = merged(self.ranges, ranges_of(rows.select(measured)))

    def close(self) -> None:
        self._writer.close()
        self._stack.close()


def split(rows: pa.RecordBatch, partition_by: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """Yield the rows of each partition, with the values of its columns."""
    if not rows.num_rows:
        return
    if not partition_by:
        yield (), rows
        return
    codes = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    for name in partition_by:
        encoded = rows.column(name).dictionary_encode(null_encoding="encode")
        of_column = encoded.indices.cast(pa.int64())
        codes = pc.add(pc.multiply(codes, len(encoded.dictionary)), of_column)
        # Numbers stay small, however many columns there are.
        codes = codes.dictionary_encode().indices.cast(pa.int64())
    order = pc.array_sort_indices(codes)
    ordered, ends = rows.take(order), pc.run_end_encode(codes.take(order)).run_ends.to_pylist()
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        values = tuple(ordered.column(name)[start].as_py() for name in partition_by)
        yield values, ordered.slice(start, end - start)
