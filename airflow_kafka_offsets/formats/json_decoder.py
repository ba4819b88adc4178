"""The decoder of the format JSON: all records of a batch in one pass of Arrow's reader.

It knows nothing of topics, offsets and dead letters.

Arrow's reader does not always read decimals rightly: for a number such as `1e-41` or `0.000…1` it reads memory behind a
table of powers of ten, which gives 0, another number, or ends the process. So the records that may have such a number
are found before Arrow sees them. Their decimals are parsed by Python, and written anew as plain text with the digits of
the column.
"""

from __future__ import annotations

import json
import re
from calendar import monthrange
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from airflow_kafka_offsets.core.bisection import Failure, Run, split_at_failures
from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.formats.columns import OUT_OF_YEARS, has_type, out_of_years, relisted, spark_type
from airflow_kafka_offsets.formats.record_format import BadRecord, Decoded

# Up to so many records are decoded one at a time: bad records come in groups, and halving a handful takes more
# attempts.
_FEW_RECORDS = 8

# To find the column of a bad record takes milliseconds, and there may be thousands of them in a batch.
_MOST_LOCATED = 100

_SHORT_BYTES = 1_000

_SYNTAX = "JSON parse error: "

_NOT_UTF8 = "it holds text that is not UTF-8"

_NOT_ONE = "it is not exactly one JSON object"

_DECLARED = re.compile(r"field '(.*)' is declared as \w+")

_DAY = re.compile(r"(\d{4})-(\d{2})-(\d{2})", re.ASCII)


class _UndecodableError(Exception):
    """At least one of the values cannot be decoded.

    :param is_syntax: it is not JSON of the declared structure, so that reading timestamps as text cannot help
    """

    def __init__(self, reason: str, *, is_syntax: bool = False) -> None:
        self.is_syntax = is_syntax
        super().__init__(reason)


class _UnconvertedError(_UndecodableError):
    """A number, or a text for one, is not of its column's type; Arrow says neither of which column nor, but by its
    value, why.
    """


class _Rows(NamedTuple):
    """Rows of values.

    :param wrong: the places of the values that are none of them, with reasons
    """

    columns: pa.RecordBatch
    wrong: Mapping[int, str]


class JsonDecoder:
    """Decodes one JSON object a record.

    Arrow's JSON reader reads dates from numbers only, so they are read as text. It reads timestamps with up to six
    fractional digits, which is quick; Java's Instant has nine. If that fails, timestamps are read as text, too.

    :param columns: the declared columns
    """

    def __init__(self, columns: pa.Schema) -> None:
        self._columns = columns
        self._has_decimals = has_type(pa.struct(list(columns)), pa.types.is_decimal)
        self._floating = [place for place, field in enumerate(columns) if has_type(field.type, pa.types.is_floating)]
        kinds = [_readable(pa.struct(list(columns)), as_text) for as_text in (pa.types.is_date, pa.types.is_temporal)]
        self._options = [_parse_options(list(kind)) for kind in (kinds[:1] if kinds[0] == kinds[1] else kinds)]
        self._located_columns = 0

    def __call__(self, records: pa.RecordBatch) -> Decoded:
        """Decode records; see `Decoder`.

        A record is bad only if it cannot be decoded alone, so that no record depends on its neighbours.
        """
        values, reasons = self._safe(records.column("value"))
        self._located_columns = 0
        good: list[pa.RecordBatch] = []
        bad: list[BadRecord] = []
        for part in split_at_failures(
            len(values),
            lambda first, end: (first, self._decode(values[first:end])),
            _UndecodableError,
            few=_FEW_RECORDS,
        ):
            wrong = {part.position: str(part.error)} if isinstance(part, Failure) else {}
            if isinstance(part, Run):
                first, rows = part.result
                good.append(rows.columns)
                wrong = {first + place: reason for place, reason in rows.wrong.items()}
            for place, reason in sorted(wrong.items()):
                bad.append(BadRecord(place, shortened(self._located(values[place], reasons.get(place, reason)))))
        return Decoded(self._concatenated(good), bad)

    def _located(self, value: pa.Scalar, reason: str) -> str:
        """Return the reason for a bad value with its place, or with the type that its column is declared with."""
        if (field := _DECLARED.search(reason)) is not None and field[1] in self._columns.names:
            kind = spark_type(self._columns.field(field[1]).type)
            reason = reason.replace(field[0], f"field {field[1]!r} is declared as {kind}", 1)
            is_instant = kind.startswith("TIMESTAMP") and reason.endswith("number")
            return reason + ("; declare it as BIGINT, and convert it in Sql(…)" if is_instant else "")
        if not value.is_valid:
            return reason
        try:
            text = value.as_py().decode()
            if not text:
                return reason  # it was replaced, or has no place
            json.loads(text)
        except UnicodeDecodeError as error:
            return f"{reason}, at byte {error.start}"
        except json.JSONDecodeError as error:
            return f"{reason}, at byte {len(text[: error.pos].encode())}"
        except (ValueError, RecursionError):
            pass  # JSON of other kinds
        return reason

    def _safe(self, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Return values whose decimals Arrow reads rightly, and why some cannot be had, which become empty."""
        if not self._has_decimals or not (unsafe := _records_with(_UNSAFE, values)):
            return values, {}
        reasons: dict[int, str] = {}
        safe = values.to_pylist()
        for index in unsafe:
            try:
                safe[index] = _plain(safe[index], self._columns)
            except _UndecodableError as error:
                safe[index], reasons[index] = b"", str(error)
        return pa.array(safe, values.type), reasons

    def _concatenated(self, parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return pa.RecordBatch.from_pylist([], schema=self._columns)
        together = zip(*(part.columns for part in parts), strict=True)
        return pa.RecordBatch.from_arrays([pa.concat_arrays(arrays) for arrays in together], schema=self._columns)

    def _decode(self, values: pa.Array) -> _Rows:
        """Decode values.

        :param values: binary; null is a tombstone, and gives a row of nulls
        :raises _UndecodableError: with the reason, which is a record's own only if there is one value
        """
        if len(values) == 1:
            self._check_own_columns(values)
        try:
            return self._decode_together(values)
        except _UnconvertedError:
            if len(values) > 1:
                raise
        if self._has_decimals:
            # Arrow refuses a decimal with more zeros at its end than its column has digits.
            values = pa.array([_plain(values[0].as_py(), self._columns)], pa.binary())
            with suppress(_UnconvertedError):
                return self._decode_together(values)
        self._located_columns += 1
        if self._located_columns > _MOST_LOCATED:
            raise _UndecodableError("a value is not of the type of its column")
        raise _UndecodableError(self._unconverted(values))

    def _check_own_columns(self, values: pa.Array) -> None:
        """Decode a short value as the columns that it has: as hundreds of columns, it would take milliseconds.

        :raises _UndecodableError: it does not decode, as it would not with all columns
        """
        value = values[0].as_py() or b""
        if not 0 < len(value) <= _SHORT_BYTES:
            return
        with suppress(ValueError, RecursionError):
            found = json.loads(value.decode(), parse_int=str)
            own = [field for field in self._columns if isinstance(found, dict) and field.name in found]
            if own and 2 * len(own) < len(self._columns):
                for reason in JsonDecoder(pa.schema(own))._decode(values).wrong.values():
                    raise _UndecodableError(reason)

    def _decode_together(self, values: pa.Array) -> _Rows:
        """Decode values in one pass; see `_decode`."""
        text = _lines(values)
        quick, *slow = self._options
        try:
            rows = _read(text, len(values), quick)
        except _UndecodableError as error:
            if error.is_syntax or not slow:
                raise
            rows = _read(text, len(values), slow[0])
        arrays, wrong = self._declared(rows)
        # Arrow reads a number that is too small for DOUBLE as zero.
        if any(_has_zero(arrays[place]) for place in self._floating):
            small = self._too_small(values)
            kept = pa.array([place not in small for place in range(len(values)) if place not in wrong], pa.bool_())
            arrays, wrong = [array.filter(kept) for array in arrays], small | wrong
        return _Rows(pa.RecordBatch.from_arrays(arrays, schema=self._columns), wrong)

    def _declared(self, rows: pa.RecordBatch) -> tuple[list[pa.Array], dict[int, str]]:
        """Return the declared columns of rows that fit them, and the places of the others, with reasons.

        Each column is converted once, and by halves where a value does not fit: to decode each of thousands of such
        records alone would take as many times as long as all columns.
        """
        arrays: list[pa.Array] = []
        wrong: dict[int, str] = {}
        places = pa.array(range(rows.num_rows), pa.int64())
        for place, field in enumerate(self._columns):
            runs, unfit = _by_halves(rows.column(place), field)
            arrays.append(pa.concat_arrays(runs) if len(runs) > 1 else runs[0])
            if unfit:
                wrong |= {places[each].as_py(): reason for each, reason in unfit.items()}
                kept = pa.array([each not in unfit for each in range(rows.num_rows)], pa.bool_())
                rows, places = rows.filter(kept), places.filter(kept)
                arrays[:-1] = [array.filter(kept) for array in arrays[:-1]]
        return arrays, wrong

    def _too_small(self, values: pa.Array) -> dict[int, str]:
        """Return the places of values with a number that becomes zero, with reasons."""
        found: dict[int, str] = {}
        for place in _records_with(_SMALL, values):
            try:
                _plain(values[place].as_py(), self._columns)
            except _UndecodableError as error:
                found[place] = str(error)
        return found

    def _unconverted(self, value: pa.Array) -> str:
        """Return the reason for a value of which Arrow cannot convert a field: its column and type. The column is found
        by halves.
        """
        text, kinds = _lines(value), list(self._options[-1].explicit_schema)
        parts = split_at_failures(
            len(kinds), lambda first, end: _read(text, 1, _parse_options(kinds[first:end])), _UndecodableError
        )
        column = self._columns.field(next(part.position for part in parts if isinstance(part, Failure)))
        return f"column {column.name!r}: {_not_of(column.type)}"


def _not_of(kind: pa.DataType) -> str:
    """Return the reason for a value that cannot be converted."""
    digits = ", or has more digits" if pa.types.is_decimal(kind) else ""
    return f"its value is not of type {spark_type(kind)}{digits}"


def _lines(values: pa.Array) -> pa.Buffer:
    """Return JSON with a line for each value; null is an empty object.

    No value can absorb the next one: where two meet, a `}`, the end of a line and a `{` follow each other, which
    neither an object nor a text can contain. So there are as many objects as values only if each value is exactly one.
    Arrow's reader must not come to a null before the first object: it crashes.

    :raises _UndecodableError: a value does not begin with `{` and end with `}`, or is not UTF-8; Arrow's reader looks
        only at the texts that become columns
    """
    try:
        values.view(pa.string()).validate(full=True)
    except pa.ArrowInvalid:
        raise _UndecodableError(_NOT_UTF8, is_syntax=True) from None
    if not _are_enclosed(values):
        values = _trimmed(values)
        if not _are_enclosed(values):
            raise _UndecodableError(_NOT_ONE, is_syntax=True)
    return pc.binary_join_element_wise(values, b"\n", b"", null_handling="replace", null_replacement=b"{}").buffers()[2]


def _are_enclosed(values: pa.Array) -> bool:
    """Return whether all values but nulls begin with `{` and end with `}`."""
    return bool(pc.all(pc.and_(pc.starts_with(values, b"{"), pc.ends_with(values, b"}")), min_count=0).as_py())


def _trimmed(values: pa.Array) -> pa.Array:
    """Return values without the space around them, and null for JSON's null."""
    trimmed = pc.ascii_trim(values.view(pa.string()), " \t\n\r").view(pa.binary())
    return pc.if_else(pc.equal(trimmed, b"null"), None, trimmed)


def _readable(kind: pa.DataType, as_text: Callable[[pa.DataType], bool]) -> pa.DataType:
    """Return the type to read for a declared one; `as_text` says which scalars are read as text."""
    if pa.types.is_list(kind):
        return pa.list_(_readable(kind.value_type, as_text))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _readable(field.type, as_text)) for field in kind])
    if pa.types.is_float32(kind):  # if read as FLOAT, a number that is too large would become infinite
        return pa.float64()
    if pa.types.is_decimal(kind):
        return _readable_decimal(kind)
    return pa.string() if as_text(kind) else kind


def _parse_options(fields: Sequence[pa.Field]) -> pj.ParseOptions:
    return pj.ParseOptions(
        explicit_schema=pa.schema(fields), newlines_in_values=True, unexpected_field_behavior="ignore"
    )


def _read(text: pa.Buffer, count: int, options: pj.ParseOptions) -> pa.RecordBatch:
    """Read lines, one a value.

    :raises _UndecodableError: with the reason
    """
    try:
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=max(text.size, 1)),
            parse_options=options,
        )
        # Arrow's reader accepts any bytes as text; a database does not.
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        reason = _reason(str(error))
        if reason is None:
            raise _UnconvertedError("a value is not of its column's type") from None
        raise _UndecodableError(reason, is_syntax=str(error).startswith(_SYNTAX)) from None
    if table.num_rows != count:
        raise _UndecodableError(_NOT_ONE, is_syntax=True)
    (rows,) = table.combine_chunks().to_batches()
    return rows


def _declared_column(column: pa.Array, field: pa.Field) -> pa.Array:
    if not field.nullable and column.null_count:
        raise _UndecodableError(f"column {field.name!r} is declared NOT NULL, and is missing or null")
    try:
        declared = _as_declared(column, field.type)
    except ValueError as error:
        # Arrow's, which is a ValueError too, would quote a value.
        reason = _not_of(field.type) if isinstance(error, pa.ArrowInvalid) else error
        raise _UndecodableError(f"column {field.name!r}: {reason}") from None
    if out_of_years(declared):
        raise _UndecodableError(f"column {field.name!r}: {OUT_OF_YEARS}")
    return declared


def _by_halves(column: pa.Array, field: pa.Field) -> tuple[list[pa.Array], dict[int, str]]:
    """Return the values of a column that fit it, in one or more arrays, and the places of the others, with reasons."""

    def declared(first: int, end: int) -> pa.Array:
        return _declared_column(column[first:end], field)

    parts = [*split_at_failures(len(column), declared, _UndecodableError, few=_FEW_RECORDS)]
    runs = [part.result for part in parts if isinstance(part, Run)]
    unfit = {part.position: str(part.error) for part in parts if isinstance(part, Failure)}
    return runs or [pa.array([], field.type)], unfit


def _as_declared(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert what was read as `_readable` says to the declared type.

    :raises ValueError: a text is not a date or timestamp, or a number is too large
    """
    if pa.types.is_floating(kind):
        return _finite(array, kind)
    if array.type == kind and not has_type(kind, pa.types.is_floating):
        return array
    if pa.types.is_list(kind):
        return relisted(array, _as_declared(array.flatten(), kind.value_type), kind)
    if pa.types.is_struct(kind):
        children = [_as_declared(child, field.type) for child, field in zip(array.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_timestamp(kind):
        return _parsed(array, _timestamps, "timestamp").cast(kind)
    if pa.types.is_date(kind):
        return _parsed(array, lambda texts: texts.cast(kind), "date")
    return array.cast(kind)


def _finite(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return numbers in a floating type, which are all finite; none becomes zero."""
    numbers = array.cast(kind)
    if not pc.all(pc.is_finite(numbers), min_count=0).as_py():
        # JSON has neither NaN nor Infinity, which Arrow reads.
        raise ValueError(f"a number is NaN, or too large for {spark_type(kind)}")
    if numbers.type != array.type and pc.any(pc.and_(pc.equal(numbers, 0), pc.not_equal(array, 0))).as_py():
        raise ValueError(_too_small(kind))
    return numbers


def _too_small(kind: pa.DataType) -> str:
    return f"a number is too small for {spark_type(kind)}"


def _has_zero(array: pa.Array) -> bool:
    """Return whether a floating number in an array is zero."""
    if pa.types.is_list(array.type):
        return _has_zero(array.flatten())
    if pa.types.is_struct(array.type):
        return any(map(_has_zero, array.flatten()))
    return pa.types.is_floating(array.type) and bool(pc.any(pc.equal(array, 0)).as_py())


def _parsed(texts: pa.Array, parse: Callable[[pa.Array], pa.Array], what: str) -> pa.Array:
    """Parse texts.

    :raises ValueError: one of them cannot be parsed; says why without the text itself
    """
    try:
        return parse(texts)
    except pa.ArrowInvalid as error:
        days = filter(None, map(_DAY.match, re.findall(r"'([^']*)'", str(error))))
        if any(not _exists(*map(int, day.groups())) for day in days):
            raise ValueError("the text is a date that does not exist, such as February 30") from None
        raise ValueError(f"the text is not an ISO 8601 {what}") from None


def _exists(year: int, month: int, day: int) -> bool:
    return 1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1]


def _timestamps(texts: pa.Array) -> pa.Array:
    """Parse ISO 8601 text to instants, truncated to microseconds; no zone means UTC.

    Arrow's JSON reader does the same. A type without a time zone gets the time in UTC.
    """
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
    has_time = pc.match_substring_regex(texts, r"\d[T ]\d")
    has_zone = pc.match_substring_regex(texts, r"[T ].*(Z|[+-]\d{2}(:?\d{2})?)$")
    texts = pc.if_else(has_time, texts, pc.binary_join_element_wise(texts, "T00:00:00", ""))
    texts = pc.if_else(has_zone, texts, pc.binary_join_element_wise(texts, "Z", ""))
    return texts.cast(pa.timestamp("us", "UTC"))


def _reason(arrow_message: str) -> str | None:
    """Return the reason in Arrow's words; None where these quote a value."""
    message = re.sub(r" in row \d+", "", arrow_message.removeprefix(_SYNTAX)).rstrip(".")
    message = message.rsplit("Invalid: ", 1)[-1]
    if "Invalid UTF8" in message:
        return _NOT_UTF8
    if not arrow_message.startswith(_SYNTAX):
        return None
    changed = re.fullmatch(r"Column\(/(.*)\) changed from (\w+) to (\w+)", message)
    if changed:
        name, declared, found = changed.groups()
        message = f"field {name!r} is declared as {declared}, but holds {found}"
    return f"it does not decode as the declared JSON: {message}"


# With up to 24 digits after the point and an exponent of -14 at least, a number has a scale of 38 at most, which Arrow
# reads rightly. An escape may hide a digit, a point or an exponent in a text. One pattern is one quick search for the
# bytes that it begins with.
_UNSAFE = (r"\.[0-9]{25}", *(rf"{e}-(?:1[5-9]|[2-9][0-9]|[0-9]{{3}})" for e in "eE"), r"\\u00(?:2[dDeE]|3[0-9]|[46]5)")

# A number can only become zero in a DOUBLE with an exponent of three digits, or hundreds of zeros.
_SMALL = (*(rf"{e}-[0-9]{{3,}}[\s,}}\]]" for e in "eE"), r"\.0{200}")

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


class _Number(str):
    """The text of a number."""


class _Object(list[tuple[str, Any]]):
    """The fields of an object, of which two may have the same name."""


def _readable_decimal(kind: pa.DataType) -> pa.DataType:
    """Return the type to read for a decimal: one in which a number of 38 digits has room with the column's scale.

    Arrow does not notice where it has none.
    """
    return kind if kind.precision + kind.scale <= 38 else pa.decimal256(38, kind.scale)


def _records_with(patterns: Sequence[str], values: pa.Array) -> list[int]:
    """Return the indexes of the records with one of some patterns."""
    _, _, data = values.buffers()
    if data is None:
        return []
    ends = pa.array([0, data.size], pa.int32()).buffers()[1]
    together = pa.Array.from_buffers(pa.binary(), 1, [None, ends, data])
    found = [pattern for pattern in patterns if pc.match_substring_regex(together, pattern)[0].as_py()]
    if not found:
        return []
    indexes: list[int] = pc.indices_nonzero(pc.match_substring_regex(values, "|".join(found))).to_pylist()
    return indexes


def _plain(value: bytes, columns: pa.Schema) -> bytes:
    """Return a record with its decimals as texts that have the digits of their columns.

    :raises _UndecodableError: it is not a JSON object, or a number does not fit its column; says why without the value
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
            raise _UndecodableError(_NOT_ONE)
        kinds = {field.name: field.type for field in columns}
        return _dumped(_Object((name, _column(item, name, kinds)) for name, item in record)).encode()
    except UnicodeDecodeError:
        raise _UndecodableError(_NOT_UTF8) from None
    except json.JSONDecodeError as error:
        raise _UndecodableError(f"it does not decode as the declared JSON: {error.msg}") from None
    except RecursionError:
        raise _UndecodableError("it is nested too deep") from None


def _column(value: Any, name: str, kinds: Mapping[str, pa.DataType]) -> Any:
    if name not in kinds:
        return value
    try:
        return _with_digits(value, kinds[name])
    except DecimalException:
        raise _UndecodableError(f"column {name!r}: {_not_of(kinds[name])}") from None
    except ValueError as error:
        raise _UndecodableError(f"column {name!r}: {error}") from None


def _with_digits(value: Any, kind: pa.DataType) -> Any:
    """Return a value with its decimals as texts.

    :raises DecimalException: a decimal does not fit
    :raises ValueError: a floating number becomes zero
    """
    if pa.types.is_floating(kind) and isinstance(value, _Number):
        if float(value) == 0 and value.lower().partition("e")[0].strip("-0."):
            raise ValueError(_too_small(kind))
        return value
    if pa.types.is_struct(kind) and isinstance(value, _Object):
        kinds = {field.name: field.type for field in kind}
        return _Object((name, _with_digits(item, kinds[name]) if name in kinds else item) for name, item in value)
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_with_digits(item, kind.value_type) for item in value]
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
