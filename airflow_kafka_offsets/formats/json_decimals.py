"""Decimals in JSON, which Arrow's reader does not always read rightly: for a number such as `1e-41` or `0.000…1` it
reads memory behind a table of powers of ten, which gives 0, another number, or ends the process.

So the records that may have such a number are found before Arrow sees them. Their decimals are parsed by Python, and
written anew as plain text with the digits of the column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.formats.spark_ddl import spark_type

# With up to 24 digits after the point and an exponent of -14 at least, a number has a scale of 38 at most, which Arrow
# reads rightly. An escape may hide a digit, a point or an exponent in a text. One pattern is one quick search for the
# bytes that it begins with.
_UNSAFE = (r"\.[0-9]{25}", *(rf"{e}-(?:1[5-9]|[2-9][0-9]|[0-9]{{3}})" for e in "eE"), r"\\u00(?:2[dDeE]|3[0-9]|[46]5)")

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


class _Number(str):
    """The text of a number."""


class _Object(list[tuple[str, Any]]):
    """The fields of an object, of which two may have the same name."""


def readable_decimal(kind: pa.DataType) -> pa.DataType:
    """Return the type to read for a decimal: one in which a number of 38 digits has room with the column's scale.

    Arrow does not notice where it has none.
    """
    return kind if kind.precision + kind.scale <= 38 else pa.decimal256(38, kind.scale)


def unsafe_records(values: pa.Array) -> list[int]:
    """Return the indexes of the records of which Arrow might read a decimal wrongly."""
    _, _, data = values.buffers()
    if data is None:
        return []
    ends = pa.array([0, data.size], pa.int32()).buffers()[1]
    together = pa.Array.from_buffers(pa.binary(), 1, [None, ends, data])
    found = [pattern for pattern in _UNSAFE if pc.match_substring_regex(together, pattern)[0].as_py()]
    if not found:
        return []
    indexes: list[int] = pc.indices_nonzero(pc.match_substring_regex(values, "|".join(found))).to_pylist()
    return indexes


def with_plain_decimals(value: bytes, columns: pa.Schema) -> bytes:
    """Return a record with its decimals as texts that have the digits of their columns.

    :raises ValueError: it is no JSON object, or a decimal does not fit its column; says why without the value
    """
    try:
        record = json.loads(
            value.decode(),
            parse_float=_Number,
            parse_int=_Number,
            parse_constant=_Number,
            object_pairs_hook=_Object,
        )
        if not isinstance(record, _Object):
            raise ValueError("it is not exactly one JSON object")
        kinds = {field.name: field.type for field in columns}
        return _dumped(_Object((name, _column(item, name, kinds)) for name, item in record)).encode()
    except UnicodeDecodeError:
        raise ValueError("it holds text that is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it does not decode as the declared JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _column(value: Any, name: str, kinds: Mapping[str, pa.DataType]) -> Any:
    if name not in kinds:
        return value
    try:
        return _plain(value, kinds[name])
    except DecimalException:
        raise ValueError(f"column {name!r}: its value is not of type {spark_type(kinds[name])}") from None


def _plain(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind) and isinstance(value, _Object):
        kinds = {field.name: field.type for field in kind}
        return _Object((name, _plain(item, kinds[name]) if name in kinds else item) for name, item in value)
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_plain(item, kind.value_type) for item in value]
    return _digits(value, kind) if pa.types.is_decimal(kind) and isinstance(value, str) else value


def _digits(text: str, kind: pa.Decimal128Type) -> str:
    """Return the text of a decimal with the digits of its column.

    :raises DecimalException: it does not fit
    """
    if not _NUMBER.fullmatch(text):
        raise InvalidOperation
    # All digits of the text are seen, so that no rounding goes unnoticed.
    context = Context(prec=len(text) + 40, traps=[InvalidOperation, Inexact])
    number = Decimal(text)
    exact = Decimal(0) if number.is_zero() else number.quantize(Decimal((0, (1,), -kind.scale)), context=context)
    if len(exact.as_tuple().digits) > kind.precision:
        raise InvalidOperation
    return f"{exact:f}"


def _dumped(value: Any) -> str:
    if isinstance(value, _Number):
        return value
    if isinstance(value, _Object):
        return "{" + ",".join(f"{json.dumps(name)}:{_dumped(item)}" for name, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_dumped, value)) + "]"
    return json.dumps(value)
