"""Whether the rows of a batch fit the columns of a table of files: each value as it is, or in a wider type."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.exceptions import TargetError

_INTEGERS = (pa.types.is_int8, pa.types.is_int16, pa.types.is_int32, pa.types.is_int64)


def match(
    name: str, table: pa.Schema, required: Collection[str], columns: pa.Schema, *, may_grow: bool = False
) -> None:
    """Check that rows fit a table: Spark's tasks write its files, and no value is refused later.

    :param name: of the table, for the message
    :param required: the columns of the table that may not be null
    :param columns: of the rows, without the batch's id
    :param may_grow: whether columns that the table lacks are added
    :raises TargetError: a column is missing, or would not keep every value
    """
    faults = []
    for field in columns:
        if field.name not in table.names:
            if not may_grow:
                faults.append(f"it has no column {field.name!r}")
        elif not keeps(table.field(field.name).type, field.type):
            faults.append(f"column {field.name!r} is {table.field(field.name).type}, the rows hold {field.type}")
        elif field.name in required and field.nullable:
            faults.append(f"column {field.name!r} is NOT NULL, and that of the rows may be null")
    if missing := [column for column in required if column not in columns.names and column != BATCH_ID]:
        faults.append(f"it needs a value for {', '.join(map(repr, missing))}, which the rows do not hold")
    if faults:
        raise TargetError(f"Table {name!r} does not fit the rows: {'; '.join(faults)}")


def keeps(column: pa.DataType, rows: pa.DataType) -> bool:
    """Return whether a column has every value of a type exactly."""
    if _plain(column) == _plain(rows):
        return True
    if any(is_integer(column) for is_integer in _INTEGERS):
        return any(is_integer(rows) for is_integer in _INTEGERS) and rows.bit_width <= column.bit_width
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
