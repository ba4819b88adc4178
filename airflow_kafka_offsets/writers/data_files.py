"""Final files of a table: Parquet files of about one size, each of one partition, with statistics of their columns.

Delta tables, Iceberg tables and plain Parquet files are written here. What is different is a `FileLayout`: the names
and field ids of the columns, how rows are partitioned and sorted, and how the files are compressed.

Rows are kept until there are enough of them for a row group; a file that is sorted is kept whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, BinaryIO, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_kafka_offsets.writers.statistics import ColumnStatistics, Measurement, values_at

log = logging.getLogger(__name__)

FILE_BYTES = 128 << 20
"""The size of a file, unless a sink has another one."""

DICTIONARY_BYTES = 128 << 10
"""The size at which a column stops using a dictionary. A larger one holds nearly as many values as there are rows: it
takes twice as long to write, and the file is larger for it."""

# The bytes in Arrow that a row group is made of, and that all partitions keep together.
_GROUP_BYTES, _KEPT_BYTES = 32 << 20, 128 << 20

# Small record batches are split into partitions together.
_SPLIT_BYTES = 16 << 20

# A file that is open costs a buffer for its upload.
_OPEN_FILES = 16

# In a task: each is a file, and whoever writes records may choose them.
_MOST_PARTITIONS = 20_000

# So many are looked for one by one, which takes less than to group rows.
_FEW = 64

# What a record batch of a few rows takes beside its values.
_OF_BATCH = _OF_COLUMN = 1 << 10

# In bytes: of a directory, in most file systems; and of a whole path, a little less than in object stores.
_LONGEST_NAME, _LONGEST_PATH = 255, 1_000

# In bytes, of all values of a partition. The metadata of a table must be quick to read, and compress to no less than
# `sinks.iceberg.checked_metadata` takes.
_LONGEST_VALUES = 2_048

# More than the directory of an attempt and the name of a file have.
_OWN_NAMES = 128


class Files(Protocol):
    """Where files are written; `ObjectFiles` is one."""

    def create(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open a file for writing. Where the block raises, the file does not exist afterwards."""

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""


class PartitionTerm(NamedTuple):
    """A term that rows are partitioned by.

    :param name: of the partition's field
    :param source: the column, or the names that lead to a field of a struct
    :param transform: returns the values of the partition for those of the source; None for the values themselves
    """

    name: str
    source: tuple[str, ...]
    transform: Callable[[pa.Array], pa.Array] | None = None


@dataclass(frozen=True)
class FileLayout:
    """What the files of a table are like.

    :param columns: all columns of the rows, in the order and with the types of the files
    :param file_columns: the same columns with other names, or with field ids as Arrow's metadata `PARQUET:field_id`,
        where files have them
    :param partition_by: terms whose values are the same in all rows of a file
    :param left_out: columns that files do not hold, because the table knows their values by the partition
    :param sort_by: columns by which the rows of a file are sorted, each with `ascending` or `descending`
    :param file_bytes: the size at which a file is complete; of a sorted one, in memory
    :param measured: columns of which statistics are kept; None for all
    :param unfit: returns which rows no file can have, and why; None where there are none
    :param options: other options of `pyarrow.parquet.ParquetWriter`
    """

    columns: pa.Schema
    file_columns: pa.Schema | None = None
    partition_by: Sequence[PartitionTerm] = ()
    left_out: Collection[str] = ()
    sort_by: Sequence[tuple[str, str]] = ()
    file_bytes: int = FILE_BYTES
    measured: Collection[str] | None = None
    unfit: Callable[[pa.RecordBatch], Mapping[int, str]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.file_columns is not None and not _is_same_but_for_names(self.columns, self.file_columns):
            raise ValueError(f"file_columns have other types than columns: {self.file_columns} and {self.columns}")

    @property
    def stored(self) -> pa.Schema:
        """The columns in a file, with their names there."""
        columns = self.file_columns if self.file_columns is not None else self.columns
        names = self.columns.names
        return pa.schema([column for name, column in zip(names, columns, strict=True) if name not in self.left_out])

    def stored_rows(self, rows: pa.Table) -> pa.Table:
        """Return rows as files hold them."""
        rows = rows.select([name for name in self.columns.names if name not in self.left_out])
        if self.file_columns is None:
            return rows
        # Arrow would read memory of one type as that of another.
        if not _is_same_but_for_names(rows.schema, self.stored):
            raise ValueError(f"Rows have other types than the columns of the layout: {rows.schema}")
        batches = [pa.record_batch(_Renamed(batch, self.stored)) for batch in rows.to_batches()]
        return pa.Table.from_batches(batches, self.stored)


class DataFile(NamedTuple):
    """A file that is complete.

    :param partition: the value of each field of the partition
    :param columns: statistics of the columns that were asked for, in the order of the file
    :param split_offsets: where its row groups begin
    """

    path: str
    rows: int
    bytes: int
    partition: Mapping[str, Any]
    columns: Sequence[ColumnStatistics]
    split_offsets: Sequence[int]


def room_for_directories(place: str) -> int:
    """Return how many bytes the directories of a file may have together.

    :param place: the address of the table
    """
    return _LONGEST_PATH - _OWN_NAMES - len(place.encode())


def are_too_long(directories: str, place: str) -> bool:
    """Return whether a store or a file system has no room for directories.

    :param place: the address of the table
    """
    if len(directories.encode()) > room_for_directories(place):
        return True
    return any(len(part.encode()) > _LONGEST_NAME for part in directories.split("/"))


def write_data_files(
    files: Files, rows: Iterable[pa.RecordBatch], layout: FileLayout, path: Callable[[Mapping[str, Any]], str]
) -> Iterator[DataFile]:
    """Write rows into files, and yield each file when it is complete. Where writing fails, no file is left.

    :param rows: with the columns of the layout
    :param path: returns a new path for a file of a partition
    """
    complete = list[str]()
    try:
        for file in _written(files, rows, layout, path):
            complete.append(file.path)
            yield file
    except BaseException:
        for each in complete:
            try:
                files.remove(each)
            except Exception:
                # The error that is being raised matters more; the file is an orphan, which a later clean-up removes.
                log.warning("File %s of a failed attempt could not be removed", each, exc_info=True)
        raise


def _written(
    files: Files, rows: Iterable[pa.RecordBatch], layout: FileLayout, path: Callable[[Mapping[str, Any]], str]
) -> Iterator[DataFile]:
    partitions: dict[str, _Partition] = {}
    with ExitStack() as stack:
        open_ones: list[_Partition] = []
        kept_bytes = 0

        def flush(partition: _Partition) -> Iterator[DataFile]:
            nonlocal kept_bytes
            kept_bytes -= partition.kept_bytes
            yield from partition.flush(stack)
            open_ones[:] = [each for each in open_ones if each.open_file is not None and each is not partition]
            if partition.open_file is not None:
                open_ones.append(partition)
            if len(open_ones) > _OPEN_FILES:
                yield from max(open_ones, key=lambda each: each.written).close()

        for batch in _joined(rows) if layout.partition_by else rows:
            for values, part in split(batch, layout.partition_by):
                key = _key(values)
                if key not in partitions:
                    partitions[key] = _Partition(files, layout, values, path)
                partition = partitions[key]
                kept_bytes += partition.keep(part)
                if partition.kept_bytes >= (layout.file_bytes if layout.sort_by else _GROUP_BYTES):
                    yield from flush(partition)
                if kept_bytes > _KEPT_BYTES:
                    # More than one, so that they are not sorted for each row where there are many.
                    for largest in sorted(partitions.values(), key=lambda each: each.kept_bytes, reverse=True):
                        yield from flush(largest)
                        if kept_bytes <= _KEPT_BYTES * 7 // 8:
                            break
        for partition in partitions.values():
            yield from flush(partition)
            yield from partition.close()


@dataclass
class _Partition:
    """The rows of a partition that are kept, and its file that is not complete."""

    files: Files
    layout: FileLayout
    values: Mapping[str, Any]
    path: Callable[[Mapping[str, Any]], str]
    kept: list[pa.RecordBatch] = field(default_factory=list)
    kept_bytes: int = 0
    open_file: _OpenFile | None = None

    @property
    def written(self) -> int:
        return 0 if self.open_file is None else self.open_file.sink.tell()

    def keep(self, rows: pa.RecordBatch) -> int:
        """Keep rows, and return how much memory they take."""
        self.kept.append(rows)
        size: int = rows.nbytes + _OF_BATCH + _OF_COLUMN * rows.num_columns
        self.kept_bytes += size
        return size

    def flush(self, stack: ExitStack) -> Iterator[DataFile]:
        """Write what is kept; yield the file if it is complete then."""
        if not self.kept:
            return
        rows = pa.Table.from_batches(self.kept)
        self.kept, self.kept_bytes = [], 0
        if self.layout.sort_by:
            rows = rows.sort_by(list(self.layout.sort_by))
        if self.open_file is None:
            self.open_file = _OpenFile(self.files, self.layout, self.path(self.values), stack)
        self.open_file.write(rows)
        if self.layout.sort_by or self.written >= self.layout.file_bytes:
            yield from self.close()

    def close(self) -> Iterator[DataFile]:
        """Complete the file, if there is one."""
        if self.open_file is not None:
            opened, self.open_file = self.open_file, None
            yield opened.close(self.values)


class _OpenFile:
    def __init__(self, files: Files, layout: FileLayout, path: str, stack: ExitStack) -> None:
        self.path, self.layout = path, layout
        # The file is closed when it is complete; the stack of the task removes it where something raises before that.
        self._stack = stack.enter_context(ExitStack())
        self.sink = self._stack.enter_context(files.create(path))
        names = {column.name for column in layout.stored} if layout.measured is None else layout.measured
        self._measurement = Measurement(layout.stored, names)
        options = {"compression": "zstd", "dictionary_pagesize_limit": DICTIONARY_BYTES, **layout.options}
        self._row_group_rows = options.pop("row_group_rows", None)
        self._writer = self._stack.enter_context(
            pq.ParquetWriter(self.sink, layout.stored, store_schema=False, store_decimal_as_integer=True, **options)
        )

    def write(self, rows: pa.Table) -> None:
        stored = self.layout.stored_rows(rows)
        self._writer.write_table(stored, row_group_size=self._row_group_rows)
        self._measurement.add(stored)

    def close(self, partition: Mapping[str, Any]) -> DataFile:
        self._writer.close()
        written, metadata = self.sink.tell(), self._writer.writer.metadata
        self._stack.close()
        columns, offsets = self._measurement.complete(metadata)
        return DataFile(self.path, metadata.num_rows, written, partition, columns, offsets)


class _Renamed:
    """Rows that Arrow takes for rows of another schema, with the same types but for names and metadata of fields.

    A cast would look for nested fields by name, and fill those that it does not find with nulls.
    """

    def __init__(self, rows: pa.RecordBatch, schema: pa.Schema) -> None:
        self._rows, self._schema = rows, schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._schema.__arrow_c_schema__(), self._rows.__arrow_c_array__()[1]


def _is_same_but_for_names(first: pa.Schema | pa.DataType, second: pa.Schema | pa.DataType) -> bool:
    """Return whether two schemas, or two types, are the same but for the names and the metadata of fields."""
    if isinstance(first, pa.Schema):
        return _is_same_but_for_names(pa.struct(list(first)), pa.struct(list(second)))
    if not first.num_fields:
        return bool(first == second)
    return (first.id, first.num_fields) == (second.id, second.num_fields) and all(
        _is_same_but_for_names(first.field(index).type, second.field(index).type) for index in range(first.num_fields)
    )


def _joined(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows in fewer record batches."""
    held, size = list[pa.RecordBatch](), 0
    for batch in rows:
        held.append(batch)
        size += batch.nbytes
        if size >= _SPLIT_BYTES:
            yield pa.concat_batches(held)
            held, size = [], 0
    if held:
        yield pa.concat_batches(held)


def _key(values: Mapping[str, Any]) -> str:
    return repr(values)  # NaN does not equal itself


_OF_ANY_LENGTH = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


class PartitionLimit:
    """Tells the rows of a task whose partitions are too many, or have values that are too long for the metadata of a
    table, where each is kept whole, for each file.

    :param partition_by: terms of a `FileLayout`
    """

    def __init__(self, partition_by: Sequence[PartitionTerm]) -> None:
        self._terms = partition_by
        self._keys = set[str]()

    def __call__(self, rows: pa.RecordBatch) -> dict[int, str]:
        """Return which rows no file can have, and why.

        :param rows: with the columns of the layout
        """
        if not self._terms or not rows.num_rows:
            return {}
        codes, columns = _codes(rows, self._terms)
        if long := _longer(columns.values(), _LONGEST_VALUES):
            reason = (
                f"the values of {', '.join(columns)}, by which the table is partitioned, have more than "
                f"{_LONGEST_VALUES:,} bytes together"
            )
            return dict.fromkeys(long, reason)
        first = _first_rows(codes)
        values = [column.take(pa.array(first.values(), pa.int64())).to_pylist() for column in columns.values()]
        excess = list[int]()
        for code, *of_partition in zip(first, *values, strict=True):
            key = _key(dict(zip(columns, of_partition, strict=True)))
            if key not in self._keys and len(self._keys) == _MOST_PARTITIONS:
                excess.append(code)
            else:
                self._keys.add(key)
        if not excess:
            return {}
        reason = (
            f"the rows of one task have more than {_MOST_PARTITIONS:,} values of {', '.join(columns)}, by which the "
            "table is partitioned: partition it by fewer, or load fewer offsets at once"
        )
        is_excess = pc.is_in(codes, value_set=pa.array(excess, codes.type))
        return dict.fromkeys(pc.indices_nonzero(is_excess).to_pylist(), reason)


def _longer(columns: Iterable[pa.Array], most: int) -> list[int]:
    """Return the rows whose texts and bytes have together more than a number of bytes."""
    sizes = [
        pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
        for column in columns
        if any(is_kind(column.type) for is_kind in _OF_ANY_LENGTH)
    ]
    long: list[int] = pc.indices_nonzero(pc.greater(reduce(pc.add, sizes), most)).to_pylist() if sizes else []
    return long


def _first_rows(codes: pa.Array) -> dict[int, int]:
    """Return the first row of each number."""
    distinct = pc.unique(codes)
    if len(distinct) <= _FEW:
        return {code.as_py(): pc.index(codes, code).as_py() for code in distinct}
    table = pa.table({"code": codes, "row": pa.array(range(len(codes)), pa.int64())})
    found = table.group_by("code").aggregate([("row", "min")])
    return dict(zip(found.column("code").to_pylist(), found.column("row_min").to_pylist(), strict=True))


def split(
    rows: pa.RecordBatch, partition_by: Sequence[PartitionTerm]
) -> Iterator[tuple[dict[str, Any], pa.RecordBatch]]:
    """Yield the rows of each partition, with the values of its fields."""
    if not rows.num_rows:
        return
    if not partition_by:
        yield {}, rows
        return
    codes, columns = _codes(rows, partition_by)
    order = pc.array_sort_indices(codes)
    ends = pc.run_end_encode(codes.take(order)).run_ends.to_pylist()
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        of_partition = {name: values[order[start].as_py()].as_py() for name, values in columns.items()}
        # A copy: a few rows of a rare partition are kept for long, and a slice would keep all others with them.
        yield of_partition, rows.take(order.slice(start, end - start)) if len(ends) > 1 else rows


def _codes(rows: pa.RecordBatch, partition_by: Sequence[PartitionTerm]) -> tuple[pa.Array, dict[str, pa.Array]]:
    """Return a number for each row, which is the same in all rows of a partition, and the values of each term."""
    codes, columns = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows), {}
    for term in partition_by:
        values = values_at(rows, term.source)
        columns[term.name] = values = values if term.transform is None else term.transform(values)
        encoded = values.dictionary_encode(null_encoding="encode")
        codes = pc.add(pc.multiply(codes, len(encoded.dictionary)), encoded.indices.cast(pa.int64()))
        # Numbers stay small, however many columns there are.
        codes = codes.dictionary_encode().indices.cast(pa.int64())
    return codes, columns
