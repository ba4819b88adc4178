"""Rows in the form in which the files of a table hold them: its columns, its types, and the batch they are of."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD, RESERVED_PREFIX
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.staging.rows import null_key
from airflow_kafka_offsets.writers.fitting import fit
from airflow_kafka_offsets.writers.refused_rows import RefusedRows


def table_rows(
    name: str,
    rows: Iterable[pa.RecordBatch],
    columns: pa.Schema,
    batch_id: int,
    refused: RefusedRows,
    key: Sequence[str] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield rows with all columns of a table, and the id of their batch. Columns that the rows do not hold are null;
    those that this package adds, and the table lacks, are left out.

    :param name: of the table, for messages
    :param columns: of the table, with those that the commit adds
    :param refused: takes the rows with values that do not fit, and those whose key is null
    :param key: the columns by which rows are replaced
    :raises TargetError: the rows do not fit; staging them again does not help
    :raises RecordError: a value does not fit, and its record may not become a dead letter
    """
    needed = {column.name for column in columns if not column.nullable} | {*key, *(RECORD if key else ())}
    for batch in rows:
        if not batch.num_rows:
            continue
        held = set(batch.schema.names)
        unknown = [each for each in sorted(held.difference(columns.names)) if not _is_added(each)]
        if unknown:
            raise TargetError(f"Table {name!r} has no column {', '.join(map(repr, unknown))}")
        if missing := sorted(needed.difference(held, {BATCH_ID})):
            raise TargetError(f"Table {name!r} needs a value for {', '.join(map(repr, missing))}")
        of_rows = [column for column in columns if column.name in held and column.name != BATCH_ID]
        fitting, arrays = fit(name, _with_key(batch, key, refused) if key else batch, of_rows, refused)
        if not fitting.num_rows:
            continue
        values = {column.name: each for column, each in zip(of_rows, arrays, strict=True)}
        if BATCH_ID in columns.names:
            values[BATCH_ID] = _repeated(batch_id, fitting.num_rows).cast(columns.field(BATCH_ID).type)
        filled = [
            values[column.name] if column.name in values else pa.nulls(fitting.num_rows, column.type)
            for column in columns
        ]
        yield pa.RecordBatch.from_arrays(filled, schema=columns)


def _with_key(batch: pa.RecordBatch, key: Sequence[str], refused: RefusedRows) -> pa.RecordBatch:
    """Return the rows that say their key.

    :raises TargetError: a row does not say which record it is of
    :raises RecordError: a key is null, and its record may not become a dead letter
    """
    if any(batch.column(name).null_count for name in RECORD):
        raise TargetError(
            "The transform returns a row that does not say which record it is of: which row of its key is the newest "
            "cannot be known"
        )
    reasons: dict[int, str] = {}
    for name in key:
        nulls = pc.indices_nonzero(batch.column(name).is_null()).to_pylist()
        reasons |= dict.fromkeys(nulls, null_key([name]))
    return refused.take_out(batch, reasons) if reasons else batch


def _is_added(column: str) -> bool:
    return column.startswith(RESERVED_PREFIX) or column == BATCH_ID


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
