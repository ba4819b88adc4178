"""Record batches as read from Kafka to rows with the declared columns, in Arrow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.formats.decoder import BadRecord, origin_arrays, record_error


def decode_json(batch: pa.RecordBatch, one: Slice, columns: pa.Schema) -> pa.RecordBatch:
    """Decode one JSON object a record, all records of a batch in one pass of Arrow's own reader.

    :param batch: what `read` yields; never empty
    :param columns: the declared columns, then the audit columns
    :raises RecordError: naming the first record that is not an object with the declared types
    """
    good: list[pa.RecordBatch] = []
    for part in _parts(batch, one, columns, _Layout(columns)):
        if isinstance(part, BadRecord):
            raise record_error(part.reason, batch, part.row, one)
        good.append(part)
    return _concatenated(good, columns)


def sift_json(batch: pa.RecordBatch, one: Slice, columns: pa.Schema) -> tuple[pa.RecordBatch, list[BadRecord]]:
    """Decode as `decode_json` does, and set records aside that do not decode.

    :param batch: what `read` yields; never empty
    :param columns: the declared columns, then the audit columns
    :return: the rows of the other records, and what was set aside; both in the order of the records
    """
    good: list[pa.RecordBatch] = []
    bad: list[BadRecord] = []
    for part in _parts(batch, one, columns, _Layout(columns)):
        if isinstance(part, BadRecord):
            bad.append(part)
        else:
            good.append(part)
    return _concatenated(good, columns), bad


# So few records are judged one by one: bad ones come together, and most attempts are those with a handful of records.
_FEW = 8

# Characters of a reason: Arrow shows the whole value.
_LONGEST = 200

_SYNTAX = "JSON parse error: "


class _UndecodableError(Exception):
    """At least one of the values cannot be decoded.

    :param is_syntax: it is not the declared JSON, whatever its texts hold
    """

    def __init__(self, reason: str, *, is_syntax: bool = False) -> None:
        self.is_syntax = is_syntax
        super().__init__(reason)


class _Layout:
    """The declared columns, and what Arrow's JSON reader is told of them.

    The reader takes dates from numbers only, so they come as text. It takes timestamps with up to six digits after the
    second, which is quick; Java's Instant has nine. The second way takes timestamps as text, too.
    """

    def __init__(self, columns: pa.Schema) -> None:
        self.declared = list(columns)[:-4]
        kinds = [_readable(pa.struct(self.declared), as_text) for as_text in (pa.types.is_date, pa.types.is_temporal)]
        self.ways = [_parse_options(kind) for kind in (kinds[:1] if kinds[0] == kinds[1] else kinds)]


def _parts(
    batch: pa.RecordBatch, one: Slice, columns: pa.Schema, layout: _Layout, first: int = 0
) -> Iterator[pa.RecordBatch | BadRecord]:
    """Decode a batch in as few parts as its bad records allow, in the order of the records.

    What fails in a batch is judged alone in the end, so that no record depends on its neighbours. Halving finds it, in
    fewer attempts than there are records, or hardly more where all of them are bad.

    :param first: the place of the batch's first record, for those that are bad
    """
    try:
        decoded = _decode(batch.column("value"), layout)
    except _UndecodableError as error:
        if batch.num_rows == 1:
            reason = str(error)
            yield BadRecord(first, reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}…")
            return
    else:
        yield pa.RecordBatch.from_arrays([*decoded, *origin_arrays(batch, one)], schema=columns)
        return
    step = 1 if batch.num_rows <= _FEW else -(-batch.num_rows // 2)
    for start in range(0, batch.num_rows, step):
        yield from _parts(batch.slice(start, step), one, columns, layout, first + start)


def _concatenated(parts: Sequence[pa.RecordBatch], columns: pa.Schema) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return pa.RecordBatch.from_pylist([], schema=columns)
    together = zip(*(part.columns for part in parts), strict=True)
    return pa.RecordBatch.from_arrays([pa.concat_arrays(arrays) for arrays in together], schema=columns)


def _decode(values: pa.Array, layout: _Layout) -> list[pa.Array]:
    """
    :param values: binary; null is a tombstone, and gives a row of nulls
    :return: an array for each declared field
    :raises _UndecodableError: with the reason, which is that of a record only if there is just one
    """
    # Every value is wrapped into an object of its own line. A value that is not exactly one JSON value then breaks its
    # own line, and can neither swallow its neighbour nor count as two: what follows it is always `}` and a new `{`.
    lines = pc.binary_join_element_wise(
        b'{"v":', values, b"}\n", b"", null_handling="replace", null_replacement=b"null"
    )
    text = lines.buffers()[2]
    quick, *slow = layout.ways
    try:
        rows = _read(text, len(values), quick)
    except _UndecodableError as error:
        if error.is_syntax or not slow:
            raise
        rows = _read(text, len(values), slow[0])
    return [_declared_column(column, field) for column, field in zip(rows.flatten(), layout.declared, strict=True)]


def _readable(kind: pa.DataType, as_text: Callable[[pa.DataType], bool]) -> pa.DataType:
    """The type to read for a declared one, where `as_text` says which scalars come as text."""
    if pa.types.is_list(kind):
        return pa.list_(_readable(kind.value_type, as_text))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _readable(field.type, as_text)) for field in kind])
    if pa.types.is_float32(kind):  # read as such, a number that is too large would become infinite
        return pa.float64()
    return pa.string() if as_text(kind) else kind


def _parse_options(kind: pa.StructType) -> pj.ParseOptions:
    return pj.ParseOptions(
        explicit_schema=pa.schema([("v", kind)]), newlines_in_values=True, unexpected_field_behavior="ignore"
    )


def _read(text: pa.Buffer, count: int, way: pj.ParseOptions) -> pa.StructArray:
    """Read the wrapped values, all of the same type.

    :raises _UndecodableError: with the reason
    """
    try:
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=max(text.size, 1)),
            parse_options=way,
        )
        # Arrow's reader takes any bytes as text; a database does not.
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _UndecodableError(_reason(str(error)), is_syntax=str(error).startswith(_SYNTAX)) from None
    if table.num_rows != count:
        raise _UndecodableError("it is not exactly one JSON value")
    return table.column("v").combine_chunks()


def _declared_column(column: pa.Array, field: pa.Field) -> pa.Array:
    if not field.nullable and column.null_count:
        raise _UndecodableError(f"column {field.name!r} is declared NOT NULL, and is missing or null")
    try:
        return _as_declared(column, field.type)
    except ValueError as error:  # also Arrow's
        raise _UndecodableError(f"column {field.name!r}: {error}") from None


def _as_declared(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert what was read as `_readable` says to the declared type.

    :raises ValueError: a text is no date or timestamp, or a number is too large
    """
    if array.type == kind:
        return array
    if pa.types.is_list(kind):
        # Not the array's own offsets: those of a slice do not begin with 0, and a null may hide values.
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
        return pa.ListArray.from_arrays(
            offsets, _as_declared(array.flatten(), kind.value_type), type=kind, mask=array.is_null()
        )
    if pa.types.is_struct(kind):
        children = [_as_declared(child, field.type) for child, field in zip(array.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_timestamp(kind):
        return _timestamps(array).cast(kind)
    converted = array.cast(kind)
    if pa.types.is_float32(kind) and pc.any(pc.and_(pc.is_inf(converted), pc.is_finite(array))).as_py():
        raise ValueError("a number is too large for FLOAT")
    return converted


def _timestamps(texts: pa.Array) -> pa.Array:
    """Parse ISO 8601 text to instants, cut to microseconds; no zone means UTC.

    Arrow's JSON reader does the same, also for a type without a time zone: that gets the instant's time in UTC.
    """
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
    has_time = pc.match_substring_regex(texts, r"\d[T ]\d")
    has_zone = pc.match_substring_regex(texts, r"[T ].*(Z|[+-]\d{2}(:?\d{2})?)$")
    texts = pc.if_else(has_time, texts, pc.binary_join_element_wise(texts, "T00:00:00", ""))
    texts = pc.if_else(has_zone, texts, pc.binary_join_element_wise(texts, "Z", ""))
    return texts.cast(pa.timestamp("us", "UTC"))


def _reason(arrow_message: str) -> str:
    """Arrow's words, without those about the wrapper, which only exists here."""
    message = re.sub(r" in row \d+", "", arrow_message.removeprefix(_SYNTAX)).rstrip(".")
    message = message.rsplit("Invalid: ", 1)[-1]
    if "Invalid UTF8" in message:
        return "it holds text that is not UTF-8"
    changed = re.fullmatch(r"Column\(/v(?:/(.*))?\) changed from (\w+) to (\w+)", message)
    if changed:
        name, declared, found = changed.groups()
        message = f"{f'field {name!r}' if name else 'the value'} is declared as {declared}, but holds {found}"
    return f"it does not decode as the declared JSON: {message.replace('Column(/v/', 'Column(/').replace('(/v)', '')}"
