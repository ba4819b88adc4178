"""Statistics of the columns of a Parquet file, for readers that skip files.

They are those that Parquet keeps of each row group. It keeps none of texts and bytes beyond a length, and does not
count NaN: that is measured in Arrow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

# Parquet has no bounds of a row group where one of them would be longer.
_LONGEST_BOUND = 4096

_FIELD_ID = b"PARQUET:field_id"

_LONG = {pa.string(), pa.large_string(), pa.binary(), pa.large_binary()}
"""The types of values that may be longer."""


class ColumnStatistics(NamedTuple):
    """The values of a column, or of a nested field that has its own values.

    :param path: the names that lead to it; to the outermost list or map, where it is in one
    :param type: of its values
    :param field_id: in Parquet
    :param is_repeated: whether it is in a list or in a map
    :param bytes: in the file, compressed
    :param values: how many there are, with nulls; those of an empty list count as one
    :param nulls: how many of them are null; None where it is not known
    :param nans: how many of them are NaN; they are outside of the bounds
    :param null_lists: how many of the outermost lists or maps are null
    :param least: None where there is no value, or where it is not known
    """

    path: tuple[str, ...]
    type: pa.DataType
    field_id: int | None
    is_repeated: bool
    bytes: int = 0
    values: int = 0
    nulls: int | None = 0
    nans: int = 0
    null_lists: int = 0
    least: Any = None
    greatest: Any = None


class Measurement:
    """Measures the columns of a file while it is written.

    :param columns: of the file
    :param measured: the columns of which statistics are kept
    """

    def __init__(self, columns: pa.Schema, measured: Collection[str]) -> None:
        self._leaves = [leaf for column in columns for leaf in _leaves((), column, is_repeated=False)]
        self._measured = [index for index, leaf in enumerate(self._leaves) if leaf.path[0] in measured]
        self._nans = dict.fromkeys(self._measured, 0)
        self._null_lists = dict.fromkeys(self._measured, 0)
        # Bounds of the rows with texts or bytes that are too long for Parquet's.
        self._long: dict[int, tuple[Any, Any]] = {}

    def add(self, rows: pa.Table) -> None:
        """Measure rows."""
        for index in self._measured:
            leaf = self._leaves[index]
            if leaf.is_repeated:
                self._null_lists[index] += values_at(rows, leaf.path).null_count
            elif pa.types.is_floating(leaf.type):
                self._nans[index] += pc.sum(pc.is_nan(values_at(rows, leaf.path))).as_py() or 0
            elif leaf.type in _LONG:
                values = values_at(rows, leaf.path)
                if (pc.max(pc.binary_length(values)).as_py() or 0) > _LONGEST_BOUND:
                    found = pc.min_max(values)
                    self._long[index] = _joined(self._long.get(index), (found["min"].as_py(), found["max"].as_py()))

    def complete(self, metadata: pq.FileMetaData) -> tuple[list[ColumnStatistics], list[int]]:
        """Return the statistics of the file, and where its row groups begin."""
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        columns = [self._column(index, [group.column(index) for group in groups]) for index in self._measured]
        offsets = []
        for first in (group.column(0) for group in groups):
            begin = first.data_page_offset
            offsets.append(min(begin, first.dictionary_page_offset) if first.has_dictionary_page else begin)
        return columns, sorted(offsets)

    def _column(self, index: int, chunks: Sequence[pq.ColumnChunkMetaData]) -> ColumnStatistics:
        leaf, nans = self._leaves[index], self._nans[index]
        bounds, is_known, nulls = self._long.get(index), True, list[int]()
        for chunk in chunks:
            found = chunk.statistics
            if found is None or not found.has_null_count:
                is_known = False
                continue
            nulls.append(found.null_count)
            if found.has_min_max:
                bounds = _joined(bounds, (found.min, found.max))
            elif found.null_count < chunk.num_values and index not in self._long and not nans:
                # The bounds of other row groups do not hold for this one.
                is_known = False
        least, greatest = bounds if bounds is not None and is_known else (None, None)
        return leaf._replace(
            bytes=sum(chunk.total_compressed_size for chunk in chunks),
            values=sum(chunk.num_values for chunk in chunks),
            nulls=sum(nulls) if len(nulls) == len(chunks) else None,
            nans=nans,
            null_lists=self._null_lists[index],
            least=least,
            greatest=greatest,
        )


def values_at(rows: pa.RecordBatch | pa.Table, path: Sequence[str]) -> pa.Array | pa.ChunkedArray:
    """Return the values of a column, or of a field of a struct; a field of a struct that is null is null."""
    values = rows.column(path[0])
    for name in path[1:]:
        # By its place: Arrow takes a name that begins with a point for a path.
        values = pc.struct_field(values, [values.type.get_field_index(name)])
    return values.storage if isinstance(values, pa.ExtensionArray) else values


def _leaves(path: tuple[str, ...], column: pa.Field, *, is_repeated: bool) -> Iterator[ColumnStatistics]:
    """Yield the columns of a Parquet file, in its order."""
    kind, path = column.type, path if is_repeated else (*path, column.name)
    if not kind.num_fields:
        field_id = (column.metadata or {}).get(_FIELD_ID)
        yield ColumnStatistics(path, kind, None if field_id is None else int(field_id), is_repeated)
    elif pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _leaves(path, kind.field(index), is_repeated=is_repeated)
    elif pa.types.is_map(kind):
        yield from _leaves(path, kind.key_field, is_repeated=True)
        yield from _leaves(path, kind.item_field, is_repeated=True)
    else:
        yield from _leaves(path, kind.value_field, is_repeated=True)


def _joined(first: tuple[Any, Any] | None, second: tuple[Any, Any]) -> tuple[Any, Any]:
    return second if first is None else (min(first[0], second[0]), max(first[1], second[1]))
