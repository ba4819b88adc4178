"""The ranges of the values of columns, file by file, for readers that skip files; as Delta's protocol writes them.

Ranges are those of columns, and of the fields of structs: not of lists and maps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

# Longer texts are cut, as other writers do.
_TEXT_LENGTH = 32

_GREATEST = "\U0010ffff"


class ColumnRange(NamedTuple):
    """The values of a column.

    :param least: of the values; None where all are null, or where it is not known
    :param nulls: how many there are
    :param is_known: whether `least` and `greatest` are
    """

    least: Any
    greatest: Any
    nulls: int
    is_known: bool = True


Ranges = Mapping[tuple[str, ...], ColumnRange]
"""By the names that lead to the column."""


def ranges_of(rows: pa.Table) -> dict[tuple[str, ...], ColumnRange]:
    """Return the ranges of all columns."""
    return {
        path: column_range(values) for name in rows.schema.names for path, values in _leaves((name,), rows.column(name))
    }


def merged(first: Ranges, second: Ranges) -> dict[tuple[str, ...], ColumnRange]:
    """Return the ranges of the rows of both."""
    if not first or not second:
        return dict(first or second)
    return {path: _merge(first[path], second[path]) for path in first}


def column_range(values: pa.ChunkedArray) -> ColumnRange:
    """Return the range of a column that is no struct."""
    kind = values.type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return ColumnRange(None, None, values.null_count, is_known=False)
    if pa.types.is_floating(kind) and pc.any(pc.invert(pc.is_finite(values))).as_py():
        # Readers do not agree on where NaN is, and JSON has no such numbers.
        return ColumnRange(None, None, values.null_count, is_known=False)
    bounds = pc.min_max(values)
    try:
        return ColumnRange(bounds["min"].as_py(), bounds["max"].as_py(), values.null_count)
    except (ValueError, OverflowError):  # a time that Python does not have
        return ColumnRange(None, None, values.null_count, is_known=False)


def delta_statistics(rows: int, ranges: Ranges) -> str:
    """Return the statistics of a file in the JSON of an `add` action.

    https://github.com/delta-io/delta/blob/master/PROTOCOL.md#per-file-statistics
    """
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for path, found in ranges.items():
        _put(nulls, path, found.nulls)
        if found.is_known and found.least is not None:
            bounds = _lower(found.least), _upper(found.greatest)
            if None not in bounds:
                _put(least, path, bounds[0])
                _put(greatest, path, bounds[1])
    return _json({"numRecords": rows, "minValues": least, "maxValues": greatest, "nullCount": nulls})


def delta_value(value: Any) -> str | None:
    """Return the value of a partition column as an `add` action has it.

    https://github.com/delta-io/delta/blob/master/PROTOCOL.md#partition-value-serialization
    """
    if value is None or value == "":  # the protocol knows no difference
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        # Without the Z, readers take an instant for one of their own zone.
        is_instant = value.tzinfo is not None
        return value.replace(tzinfo=None).isoformat("T" if is_instant else " ", "microseconds") + (
            "Z" if is_instant else ""
        )
    return value.isoformat() if isinstance(value, date) else str(value)


def _leaves(path: tuple[str, ...], values: pa.ChunkedArray) -> Iterator[tuple[tuple[str, ...], pa.ChunkedArray]]:
    if not pa.types.is_struct(values.type):
        yield path, values
        return
    for index in range(values.type.num_fields):
        # A field of a struct that is null is null.
        yield from _leaves((*path, values.type.field(index).name), pc.struct_field(values, index))


def _merge(first: ColumnRange, second: ColumnRange) -> ColumnRange:
    nulls = first.nulls + second.nulls
    if not (first.is_known and second.is_known):
        return ColumnRange(None, None, nulls, is_known=False)
    known = [found for found in (first, second) if found.least is not None]
    least = min((found.least for found in known), default=None)
    return ColumnRange(least, max((found.greatest for found in known), default=None), nulls)


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    *parents, name = path
    for parent in parents:
        values = values.setdefault(parent, {})
    values[name] = value


def _lower(value: Any) -> Any:
    if isinstance(value, datetime):
        return _instant(value - timedelta(microseconds=value.microsecond % 1000))
    return value[:_TEXT_LENGTH] if isinstance(value, str) else value


def _upper(value: Any) -> Any:
    """Return a value that is not less, or None where there is none that can be written."""
    if isinstance(value, datetime):
        try:
            return _instant(value + timedelta(microseconds=-value.microsecond % 1000))
        except OverflowError:
            return None
    if isinstance(value, str) and len(value) > _TEXT_LENGTH:
        # Greater than any text that begins as this one does, unless that goes on with the greatest character of all.
        return None if value[_TEXT_LENGTH] == _GREATEST else value[:_TEXT_LENGTH] + _GREATEST
    return value


def _instant(value: datetime) -> str:
    """Return a time with milliseconds, which is as fine as the protocol has it."""
    return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + ("Z" if value.tzinfo is not None else "")


def _json(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_json(each)}" for name, each in value.items()) + "}"
    if isinstance(value, Decimal):
        return format(value, "f")  # as a number, with all of its digits
    if isinstance(value, date):
        return json.dumps(value.isoformat())
    assert not isinstance(value, float) or math.isfinite(value)
    return json.dumps(value, ensure_ascii=False)
