"""Rows in the types of a table whose files tasks write: which types a column can take, and which values it refuses.

A value is stored exactly, or it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.bisection import Failure, split_at_failures
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.formats.columns import OUT_OF_YEARS, out_of_years
from airflow_kafka_offsets.writers.refused_rows import RefusedRows


class _UnfitError(Exception):
    """Some of the values do not fit."""


_INTEGERS = (pa.types.is_int8, pa.types.is_int16, pa.types.is_int32, pa.types.is_int64)


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
        return values, pc.indices_nonzero(values.is_null()).to_pylist(), f"it is NOT NULL, the {values.type} is null"
    # Readers in Python, and the statistics of the file, have no such years.
    if not pa.types.is_nested(values.type) and (late := out_of_years(values)):
        return values, late, f"a value of type {values.type}: {OUT_OF_YEARS}"
    if values.type == column.type:
        return values, [], ""
    # Arrow's messages quote values.
    misfit = f"a value of type {values.type} does not fit into {column.type}"
    array = _exact(values, column.type) if _is_castable(values, column.type) else None
    if array is not None:
        return array, [], ""
    if not may_hold(column.type, values.type):
        raise TargetError(f"Column {column.name!r} of table {table!r}: {misfit}")
    return values, _unfit(values, column.type), misfit


def _is_castable(values: pa.Array, kind: pa.DataType) -> bool:
    """Return whether Arrow casts at all between two types."""
    # Without its zone, an instant would be another one.
    if pa.types.is_timestamp(values.type) and (values.type.tz is None) != (getattr(kind, "tz", None) is None):
        return False
    try:
        values.slice(0, 0).cast(kind)
    except pa.ArrowException:
        return False
    return True


def _exact(values: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return values in another type; None where one of them would change."""
    try:
        cast = values.cast(kind)
        if keeps(kind, values.type):
            return cast
        # Arrow rounds some numbers silently.
        back = cast.cast(values.type)
    except pa.ArrowException:
        return None
    if pa.types.is_floating(values.type):  # NaN is unlike itself
        is_same = bool(pc.all(pc.or_(pc.equal(back, values), pc.is_nan(values)), min_count=0).as_py())
    else:
        is_same = back.equals(values)
    return cast if is_same else None


def _unfit(values: pa.Array, kind: pa.DataType) -> list[int]:
    """Return which of some values do not fit."""

    def check(first: int, end: int) -> None:
        if _exact(values.slice(first, end - first), kind) is None:
            raise _UnfitError

    found = split_at_failures(0, len(values), check, _UnfitError)
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
    if _plain(column) == _plain(rows) or pa.types.is_null(rows):
        return True
    if _is_integer(column):
        return _is_integer(rows) and rows.bit_width <= column.bit_width
    if pa.types.is_float64(column):
        return bool(pa.types.is_float32(rows))
    if pa.types.is_decimal(column):
        return bool(pa.types.is_decimal(rows) and rows.scale == column.scale and rows.precision <= column.precision)
    if pa.types.is_timestamp(column) and pa.types.is_timestamp(rows):
        return (column.tz is None) == (rows.tz is None) and column.unit in ("us", "ns") and rows.unit != "ns"
    if pa.types.is_struct(column) and pa.types.is_struct(rows):
        return _names(column) == _names(rows) and all(
            keeps(column.field(index).type, rows.field(index).type) for index in range(column.num_fields)
        )
    if pa.types.is_list(_plain(column)) and pa.types.is_list(_plain(rows)):
        return keeps(column.value_type, rows.value_type)
    if pa.types.is_map(column) and pa.types.is_map(rows):
        return keeps(column.key_type, rows.key_type) and keeps(column.item_type, rows.item_type)
    return False


def _is_integer(kind: pa.DataType) -> bool:
    return any(is_integer(kind) for is_integer in _INTEGERS)


def _names(struct: pa.StructType) -> list[str]:
    return [struct.field(index).name for index in range(struct.num_fields)]


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type that has the same values, in the smaller of its two forms, and UTC by one name."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_large_list(kind):
        return pa.list_(kind.value_field)
    if pa.types.is_timestamp(kind) and kind.tz in ("+00:00", "Etc/UTC"):
        return pa.timestamp(kind.unit, "UTC")
    return kind
