"""Rows in the form in which the files of a table hold them: its columns, its types, and the batch they are of.

A value is stored exactly, or its row is refused: its record becomes a dead letter, or fails the load.
"""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.bisection import Failure, split_at_failures
from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD, RESERVED_PREFIX
from airflow_kafka_offsets.exceptions import RecordError, TargetError
from airflow_kafka_offsets.formats.columns import OUT_OF_YEARS, out_of_years, type_name
from airflow_kafka_offsets.staging.arrow_files import ArrowFileWriter
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.staging.rows import REASON, Record, are_of, null_key, record_of


class _UnfitError(Exception):
    """Some of the values do not fit."""


_INTEGERS = {pa.int8(), pa.int16(), pa.int32(), pa.int64()}


def fit(
    table: str, batch: pa.RecordBatch, columns: Sequence[pa.Field], refused: RefusedRows
) -> tuple[pa.RecordBatch, list[pa.Array]]:
    """Return the rows whose values all fit, and the values in the types of the columns.

    :param table: its name, for messages
    :param columns: some of the rows, as the table has them
    :param refused: takes the other rows
    :raises TargetError: values of this type do not fit into a column
    :raises RecordError: a value is refused, and its record may not become a dead letter
    """
    while True:
        arrays = []
        for column in columns:
            array, unfit, reason = _fit(table, batch.column(column.name), column)
            if unfit:
                break
            arrays.append(array)
        else:
            return batch, arrays
        batch = refused.take_out(batch, dict.fromkeys(unfit, f"column {column.name!r} of table {table!r}: {reason}"))


def _fit(table: str, values: pa.Array, column: pa.Field) -> tuple[pa.Array, list[int], str]:
    """Return the values in the type of a column; or which rows have a value that does not fit, and why."""
    if not column.nullable and values.null_count:
        return (
            values,
            pc.indices_nonzero(values.is_null()).to_pylist(),
            f"it is NOT NULL, the {type_name(values.type)} is null",
        )
    # Readers in Python, and the statistics of the file, have no such years.
    if late := out_of_years(values):
        if pa.types.is_nested(values.type):
            late = _unfit(values, lambda part: not out_of_years(part))
        return values, late, f"a value of type {type_name(values.type)}: {OUT_OF_YEARS}"
    if values.type == column.type == optional(column.type):
        return values, [], ""
    # Arrow's messages quote values.
    misfit = f"a value of type {type_name(values.type)} does not fit into {type_name(column.type)}"
    if not may_hold(column.type, values.type):
        raise TargetError(f"Column {column.name!r} of table {table!r}: {misfit}")
    if (array := _exact(values, column.type)) is not None:
        return array, [], ""
    return values, _unfit(values, lambda part: _exact(part, column.type) is not None), misfit


def _exact(values: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return values in another type; None where one of them would change, or lacks a field that it needs."""
    if kind != optional(kind) and _lacks_field(values, kind):
        return None
    try:
        cast = values.cast(optional(kind))
        if keeps(kind, values.type):
            return cast
        # Arrow rounds some numbers silently.
        return cast if cast.cast(values.type).equals(values) else None
    except pa.ArrowException:
        return None


def _lacks_field(values: pa.Array, kind: pa.DataType) -> bool:
    """Return whether a nested field that may not be null is null within a value that is there."""
    present = values.take(pc.indices_nonzero(values.is_valid()))
    if pa.types.is_struct(kind):
        # By their places; see `statistics.values_at`.
        found = [(field, pc.struct_field(present, [place])) for place, field in enumerate(kind)]
    elif pa.types.is_map(kind):
        found = [(kind.key_field, present.keys), (kind.item_field, present.items)]
    else:
        found = [(kind.value_field, present.flatten())] if kind.num_fields else []
    return any(
        (not field.nullable and nested.null_count) or (field.type.num_fields and _lacks_field(nested, field.type))
        for field, nested in found
    )


def _unfit(values: pa.Array, fit: Callable[[pa.Array], bool]) -> list[int]:
    """Return which of some values do not fit.

    :param fit: returns whether all values of a slice do
    """

    def check(first: int, end: int) -> None:
        if not fit(values.slice(first, end - first)):
            raise _UnfitError

    found = split_at_failures(len(values), check, _UnfitError)
    return [each.position for each in found if isinstance(each, Failure)]


def may_hold(column: pa.DataType, rows: pa.DataType) -> bool:
    """Return whether a column has values of a type exactly, though not every one: those that it has not are refused one
    by one.
    """
    if keeps(column, rows) or (_is_integer(column) and _is_integer(rows)):
        return True
    return bool(pa.types.is_decimal(column) and pa.types.is_decimal(rows))


def keeps(column: pa.DataType, rows: pa.DataType) -> bool:
    """Return whether a column has every value of a type exactly."""
    column, rows = _plain(column), _plain(rows)
    if column == rows or pa.types.is_null(rows):
        return True
    return any(is_kind(column) and is_kind(rows) and keeps_all(column, rows) for is_kind, keeps_all in _KEEPS)


def _is_integer(kind: pa.DataType) -> bool:
    return kind in _INTEGERS


def _keeps_decimals(column: pa.DataType, rows: pa.DataType) -> bool:
    return bool(rows.scale == column.scale and rows.precision <= column.precision)


def _keeps_instants(column: pa.DataType, rows: pa.DataType) -> bool:
    return (column.tz is None) == (rows.tz is None) and column.unit in ("us", "ns") and rows.unit != "ns"


def _keeps_fields(column: pa.DataType, rows: pa.DataType) -> bool:
    pairs = zip(list(column), list(rows), strict=True)
    return column.num_fields == rows.num_fields and all(
        field.name == other.name and keeps(field.type, other.type) for field, other in pairs
    )


def _keeps_entries(column: pa.DataType, rows: pa.DataType) -> bool:
    return keeps(column.key_type, rows.key_type) and keeps(column.item_type, rows.item_type)


_KEEPS: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, pa.DataType], bool]]] = (
    (_is_integer, lambda column, rows: rows.bit_width <= column.bit_width),
    (pa.types.is_floating, lambda column, rows: rows.bit_width <= column.bit_width),
    (pa.types.is_decimal, _keeps_decimals),
    (pa.types.is_timestamp, _keeps_instants),
    (pa.types.is_struct, _keeps_fields),
    (pa.types.is_list, lambda column, rows: keeps(column.value_type, rows.value_type)),
    (pa.types.is_map, _keeps_entries),
)
"""For each kind of types, whether a column has every value of another type of this kind exactly."""

_SMALL = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
"""The types with the same values and 32-bit offsets."""


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type that has the same values, in the smaller of its two forms, and UTC by one name."""
    if pa.types.is_large_list(kind):
        return pa.list_(kind.value_field)
    if pa.types.is_timestamp(kind) and kind.tz in ("+00:00", "Etc/UTC"):
        return pa.timestamp(kind.unit, "UTC")
    return _SMALL.get(kind, kind)


class RefusedRows(ExitStack):
    """Writes the refused rows of a task into a file, with the reasons. It is created with the first of them.

    The file is complete when the context is left.

    :param are_kept: whether their records may become dead letters; the first one is an error otherwise
    :param why_not: why they may not although dead letters are asked for, as the end of a sentence
    """

    def __init__(self, staging: StagingDirectory, are_kept: bool = False, why_not: str = "") -> None:
        super().__init__()
        self._staging, self._are_kept, self._why_not = staging, are_kept, why_not
        self._writer: ArrowFileWriter | None = None

    @property
    def file(self) -> StagedFile | None:
        """The complete file, once the context is left; None if no row was refused."""
        return None if self._writer is None else self._writer.file

    def take_out(self, batch: pa.RecordBatch, reasons: Mapping[int, str]) -> pa.RecordBatch:
        """Return the rows of a batch without refused ones, and without other rows of the same records.

        :param reasons: by the index of the row
        :raises RecordError: refused records may not become dead letters; names the first
        :raises TargetError: the rows do not say which record they are of
        """
        records: dict[Record, str] = {}
        for row in sorted(reasons):
            records.setdefault(record_of(batch, row, reasons[row]), reasons[row])
        if not self._are_kept:
            record, reason = next(iter(records.items()))
            raise RecordError(f"{reason}{self._why_not}", *record)
        is_refused = are_of(batch, records)
        rows = batch.filter(is_refused)
        whys = [records[record_of(rows, row, "")] for row in range(rows.num_rows)]
        rows = rows.append_column(pa.field(REASON, pa.string()), pa.array(whys, pa.string()))
        if self._writer is None:
            name = f"refused-{uuid.uuid4().hex}.arrow"
            self._writer = self.enter_context(ArrowFileWriter(self._staging, name, rows.schema))
        self._writer.write(rows)
        return batch.filter(pc.invert(is_refused))


def table_rows(
    name: str,
    rows: Iterable[pa.RecordBatch],
    columns: pa.Schema,
    batch_id: int,
    refused: RefusedRows,
    key: Sequence[str] = (),
    unfit: Callable[[pa.RecordBatch], Mapping[int, str]] = lambda _: {},
) -> Iterator[pa.RecordBatch]:
    """Yield rows with all columns of a table, and the id of their batch. Columns that the rows do not hold are null;
    those that this package adds, and the table lacks, are left out.

    :param name: of the table, for messages
    :param columns: of the table, with those that the commit adds
    :param refused: takes the rows with values that do not fit, and those whose key is null
    :param key: the columns by which rows are replaced
    :param unfit: returns which of these rows are refused, too, and why
    :raises TargetError: the rows do not fit; staging them again does not help
    :raises RecordError: a value does not fit, and its record may not become a dead letter
    """
    needed = {column.name for column in columns if not column.nullable} | {*key, *(RECORD if key else ())}
    for batch in rows:
        if not batch.num_rows:
            continue
        held = set(batch.schema.names)
        unknown = [each for each in sorted(held.difference(columns.names)) if not is_added(each)]
        if unknown:
            raise TargetError(f"Table {name!r} has no column {', '.join(map(repr, unknown))}")
        if missing := sorted(needed.difference(held, {BATCH_ID})):
            raise TargetError(f"Table {name!r} needs a value for {', '.join(map(repr, missing))}")
        of_rows = [column for column in columns if column.name in held and column.name != BATCH_ID]
        names = [*(column.name for column in of_rows), BATCH_ID]
        fitting = _with_key(batch, key, refused) if key else batch
        while fitting.num_rows:
            fitting, arrays = fit(name, fitting, of_rows, refused)
            arrays.append(_repeated(batch_id, fitting.num_rows))
            whole = with_columns(pa.RecordBatch.from_arrays(arrays, names), columns)
            if found := unfit(whole):
                fitting = refused.take_out(fitting, found)
                continue
            if whole.num_rows:
                yield whole
            break


def with_columns(rows: pa.RecordBatch, columns: pa.Schema, values: Mapping[str, Any] | None = None) -> pa.RecordBatch:
    """Return rows with all columns of a schema, in its types.

    :param values: of the columns that they lack; null for others
    """
    known, held, arrays = values or {}, set(rows.schema.names), []
    for column in columns:
        if column.name in held:
            arrays.append(_as_stored(rows.column(column.name), column))
        elif (value := known.get(column.name)) is None:
            arrays.append(_as_stored(pa.nulls(rows.num_rows, column.type), column))
        else:
            arrays.append(pa.repeat(pa.scalar(value, column.type), rows.num_rows))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _as_stored(values: pa.Array, column: pa.Field) -> pa.Array:
    """Return values in the type of a column, whose nested fields may be required."""
    cast = values.cast(optional(column.type))
    return cast if cast.type == column.type else _filled(cast, column)


def _filled(values: pa.Array, field: pa.Field) -> pa.Array:
    """Return values whose required nested fields are nowhere null, also where the value around them is: Parquet takes
    these for nulls.
    """
    kind, mask = field.type, values.is_null() if field.nullable and values.null_count else None
    if pa.types.is_struct(kind):
        children = [_filled(values.field(index), each) for index, each in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if kind.num_fields:
        values = pa.concat_arrays([values, values.slice(0, 0)])  # no slice, of which Arrow could not mask values
    if pa.types.is_map(kind):
        keys, items = _filled(values.keys, kind.key_field), _filled(values.items, kind.item_field)
        return pa.MapArray.from_arrays(values.offsets, keys, items, type=kind, mask=mask)
    if kind.num_fields:
        return type(values).from_arrays(values.offsets, _filled(values.values, kind.value_field), type=kind, mask=mask)
    if field.nullable or not values.null_count:
        return values
    return pa.Array.from_buffers(kind, len(values), [None, *values.buffers()[1:]], offset=values.offset)


def _with_key(batch: pa.RecordBatch, key: Sequence[str], refused: RefusedRows) -> pa.RecordBatch:
    """Return the rows that say their key.

    :raises TargetError: a row does not say which record it is of
    :raises RecordError: a key is null, and its record may not become a dead letter
    """
    if any(batch.column(name).null_count for name in RECORD):
        raise TargetError(
            "The transform returns a row without its origin (topic, partition, offset): the newest row of its key is "
            "unknown"
        )
    reasons: dict[int, str] = {}
    for name in key:
        nulls = pc.indices_nonzero(batch.column(name).is_null()).to_pylist()
        reasons |= dict.fromkeys(nulls, null_key([name]))
    return refused.take_out(batch, reasons) if reasons else batch


def is_added(name: str) -> bool:
    """Return whether this package adds a column to rows."""
    return name.startswith(RESERVED_PREFIX) or name == BATCH_ID


def file_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a file holds values: of the two forms that Arrow has of some, the one with 32-bit
    offsets.
    """
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_struct(kind):
        return pa.struct([_file_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(file_type(kind.key_type), _file_field(kind.item_field))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_file_field(kind.value_field))
    return _SMALL.get(kind, kind)


def optional(kind: pa.DataType) -> pa.DataType:
    """Return a type whose nested fields may all be null."""
    if pa.types.is_struct(kind):
        return pa.struct([_optional_field(field).with_nullable(True) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_optional_field(kind.key_field), _optional_field(kind.item_field).with_nullable(True))
    if pa.types.is_list(kind):
        return pa.list_(_optional_field(kind.value_field).with_nullable(True))
    return (
        pa.large_list(_optional_field(kind.value_field).with_nullable(True)) if pa.types.is_large_list(kind) else kind
    )


def optional_columns(columns: pa.Schema) -> pa.Schema:
    """Return columns whose nested fields may all be null."""
    return pa.schema([_optional_field(column) for column in columns])


def _optional_field(field: pa.Field) -> pa.Field:
    return field.with_type(optional(field.type))


def file_columns(columns: pa.Schema) -> pa.Schema:
    """Return columns with the types that files have."""
    return pa.schema([_file_field(column) for column in columns])


def _file_field(column: pa.Field) -> pa.Field:
    return pa.field(column.name, file_type(column.type), column.nullable)


def _repeated(number: int, count: int) -> pa.Array:
    # From bytes: the first Python value that pyarrow converts in a process makes it import pandas.
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(array("q", [number]) * count)])
