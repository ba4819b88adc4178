"""Rows in the form in which the files of a table have them: its columns, its types, and the batch they are of."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator

import pyarrow as pa

from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.writers.fitting import fit
from airflow_kafka_offsets.writers.refused_rows import RefusedRows


def table_rows(
    name: str,
    rows: Iterable[pa.RecordBatch],
    table: pa.Schema,
    required: Collection[str],
    batch_id: int,
    refused: RefusedRows,
) -> Iterator[pa.RecordBatch]:
    """Yield rows with the types of a table, and the id of their batch. A column that they do not hold stays away.

    :param name: of the table, for messages
    :param table: its columns, and those that are added to it
    :param required: columns that may not be null
    :param refused: takes the rows with values that do not fit
    :raises TargetError: the rows do not fit; staging them again does not help
    :raises RecordError: a value does not fit, and its record may not become a dead letter
    """
    for batch in rows:
        held = {*batch.schema.names, BATCH_ID}
        if unknown := held.difference(table.names):
            raise TargetError(f"Table {name!r} has no column {', '.join(map(repr, sorted(unknown)))}")
        if missing := sorted(set(required).difference(held)):
            raise TargetError(f"Table {name!r} needs a value for {', '.join(map(repr, missing))}")
        columns = [column for column in table if column.name in held]
        of_rows = [column for column in columns if column.name != BATCH_ID]
        fitting, arrays = fit(name, batch, of_rows, refused)
        values = {column.name: array for column, array in zip(of_rows, arrays, strict=True)}
        values[BATCH_ID] = _repeated(batch_id, fitting.num_rows).cast(table.field(BATCH_ID).type)
        yield pa.RecordBatch.from_arrays([values[column.name] for column in columns], schema=pa.schema(columns))


def file_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a file holds values: of the two forms that Arrow has of some, the one with 32-bit
    offsets.
    """
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_struct(kind):
        return pa.struct([_file_field(kind.field(index)) for index in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(file_type(kind.key_type), _file_field(kind.item_field))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_file_field(kind.value_field))
    return kind


def file_columns(columns: pa.Schema) -> pa.Schema:
    """Return columns with the types that files have."""
    return pa.schema([_file_field(column) for column in columns])


def _file_field(column: pa.Field) -> pa.Field:
    return pa.field(column.name, file_type(column.type), column.nullable)


def _repeated(number: int, count: int) -> pa.Array:
    # From bytes: the first Python value that pyarrow converts in a process makes it import pandas.
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(array("q", [number]) * count)])
