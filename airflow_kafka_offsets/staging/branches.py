"""The rows of several targets in one record batch, which a batch of a fan-out is until it is written: a column of
structs for each.

A branch with fewer rows than another one is filled up with nulls at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

_COLUMN = "_kafka_branch_{}"


def combined(branches: Mapping[int, pa.Schema | None]) -> pa.Schema:
    """Return the columns of branches as those of one batch.

    :param branches: the columns of each, by its number; None where they are not known
    """
    types = {number: pa.null() if columns is None else pa.struct(list(columns)) for number, columns in branches.items()}
    return pa.schema([(_COLUMN.format(number), type_) for number, type_ in types.items()])


def columns_of(columns: pa.Schema | None, number: int) -> pa.Schema | None:
    """Return the columns of a branch; None where they are not known.

    :param columns: what `combined` returned, or None
    """
    index = -1 if columns is None else columns.get_field_index(_COLUMN.format(number))
    if columns is None or index < 0 or pa.types.is_null(columns.field(index).type):
        return None
    return pa.schema(columns.field(index).type.fields)


def join(branches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of branches in one batch."""
    longest = max(rows.num_rows for rows in branches)
    arrays = []
    for rows in branches:
        structs = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
        missing = longest - rows.num_rows
        arrays.append(pa.concat_arrays([structs, pa.nulls(missing, structs.type)]) if missing else structs)
    return pa.RecordBatch.from_arrays(arrays, names=[_COLUMN.format(number) for number in range(len(arrays))])


def split(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the number and the rows of each branch that has some."""
    for number, structs in enumerate(batch.columns):
        count = len(structs) - structs.null_count
        if count:
            arrays = structs.slice(0, count).flatten()
            yield number, pa.RecordBatch.from_arrays(arrays, schema=pa.schema(structs.type.fields))
