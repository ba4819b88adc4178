"""Record batches as read from Kafka to rows with the declared columns, in Arrow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from airflow_kafka_offsets.exceptions import RecordError
from airflow_kafka_offsets.offsets import Slice


def decode_raw(batch: pa.RecordBatch, one: Slice, columns: pa.Schema) -> pa.RecordBatch:
    """Pass key, value and headers on as they are.

    :param batch: what `read` yields
    :param columns: the declared columns, then the audit columns
    """
    declared = [batch.column(name) for name in columns.names[:-4]]
    return pa.RecordBatch.from_arrays([*declared, *_audit(batch, one)], schema=columns)


def decode_json(batch: pa.RecordBatch, one: Slice, columns: pa.Schema) -> pa.RecordBatch:
    """Decode one JSON object a record, all records of a batch in one pass of Arrow's own reader.

    :param batch: what `read` yields
    :param columns: the declared columns, then the audit columns
    :raises RecordError: naming the first record that is not an object with the declared types
    """
    declared = pa.schema(list(columns)[:-4])
    values = batch.column("value")
    try:
        decoded = _decode(values, declared)
    except _UndecodableError:
        at, reason = _first_undecodable(values, declared)
        raise RecordError(
            reason, topic=one.topic, partition=one.partition, offset=batch.column("offset")[at].as_py()
        ) from None
    return pa.RecordBatch.from_arrays([*decoded, *_audit(batch, one)], schema=columns)


DECODERS = {"json": decode_json, "raw": decode_raw}


Types = Callable[[pa.DataType], pa.DataType]


class _UndecodableError(Exception):
    """At least one of the values cannot be decoded."""


def _audit(batch: pa.RecordBatch, one: Slice) -> list[pa.Array]:
    return [
        pa.repeat(pa.scalar(one.topic), batch.num_rows),
        pa.repeat(pa.scalar(one.partition, pa.int32()), batch.num_rows),
        batch.column("offset"),
        batch.column("timestamp"),
    ]


def _decode(values: pa.Array, declared: pa.Schema) -> list[pa.Array]:
    """
    :param values: binary; null is a tombstone, and gives a row of nulls
    :raises _UndecodableError: with the reason
    """
    # Every value is wrapped into an object of its own line. A value that is not exactly one JSON value then breaks its
    # own line, and can neither swallow its neighbour nor count as two: what follows it is always `}` and a new `{`.
    lines = pc.binary_join_element_wise(
        b'{"v":', values, b"}\n", b"", null_handling="replace", null_replacement=b"null"
    )
    text = lines.buffers()[2]
    try:
        rows = _read(text, len(values), declared, _by_reader)
    except _UndecodableError:
        # Arrow's reader takes timestamps with up to six digits after the second, which is quick; Java's Instant has nine.
        # The second way takes them as text.
        if not any(map(pa.types.is_temporal, _leaves(declared))):
            raise
        rows = _read(text, len(values), declared, _by_text)
    return [_as_declared(column, field) for column, field in zip(rows.flatten(), declared, strict=True)]


def _read(text: pa.Buffer, count: int, declared: pa.Schema, types: Types) -> pa.StructArray:
    """Read the wrapped values with types that the reader can fill.

    :raises _UndecodableError: with the reason
    """
    wanted = pa.struct([pa.field(field.name, types(field.type)) for field in declared])
    try:
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=max(text.size, 1)),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema([("v", wanted)]),
                newlines_in_values=True,
                unexpected_field_behavior="ignore",
            ),
        )
        # Arrow's reader takes any bytes as text; a database does not.
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _UndecodableError(_reason(str(error))) from None
    if table.num_rows != count:
        raise _UndecodableError("it is not exactly one JSON value")
    return table.column("v").combine_chunks()


def _by_reader(kind: pa.DataType) -> pa.DataType:
    """Types for the quick way: the reader takes dates from numbers only, so they come as text."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_float32(kind):  # read as such, a number that is too large would become infinite
        return pa.float64()
    return _nested(kind, _by_reader)


def _by_text(kind: pa.DataType) -> pa.DataType:
    """Types for the second way: a timestamp as text, or within a list or struct, as nanoseconds (which end in 2262)."""
    return pa.string() if pa.types.is_timestamp(kind) else _in_nanoseconds(kind)


def _in_nanoseconds(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ns", kind.tz)
    return _by_reader(kind) if not pa.types.is_nested(kind) else _nested(kind, _in_nanoseconds)


def _nested(kind: pa.DataType, types: Types) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(types(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, types(field.type)) for field in kind.fields])
    return kind


def _leaves(schema: pa.Schema | pa.StructType) -> Iterator[pa.DataType]:
    for field in schema:
        kind = field.type
        while pa.types.is_list(kind):
            kind = kind.value_type
        if pa.types.is_struct(kind):
            yield from _leaves(kind)
        else:
            yield kind


def _as_declared(column: pa.Array, field: pa.Field) -> pa.Array:
    if not field.nullable and column.null_count:
        raise _UndecodableError(f"column {field.name!r} is declared NOT NULL, and is missing or null")
    if column.type == field.type:
        return column
    try:
        if pa.types.is_timestamp(field.type) and pa.types.is_string(column.type):
            return _timestamps(column, field.type)
        # Not safe only so that nanoseconds are cut to microseconds; text that is no date still fails.
        declared = column.cast(field.type, safe=False)
    except pa.ArrowInvalid as error:
        raise _UndecodableError(f"column {field.name!r}: {error}") from None
    if pa.types.is_float32(field.type) and pc.any(pc.and_(pc.is_inf(declared), pc.is_finite(column))).as_py():
        raise _UndecodableError(f"column {field.name!r}: a number is too large for FLOAT")
    return declared


def _timestamps(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse ISO 8601 text, cut to microseconds; for an instant, no zone means UTC."""
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
    if kind.tz is not None:
        has_time = pc.match_substring_regex(texts, r"\d[T ]\d")
        has_zone = pc.match_substring_regex(texts, r"[T ].*(Z|[+-]\d{2}(:?\d{2})?)$")
        texts = pc.if_else(has_time, texts, pc.binary_join_element_wise(texts, "T00:00:00", ""))
        texts = pc.if_else(has_zone, texts, pc.binary_join_element_wise(texts, "Z", ""))
    return texts.cast(kind)


def _first_undecodable(values: pa.Array, declared: pa.Schema) -> tuple[int, str]:
    """Halve until one value is left: the first that cannot be decoded, and why."""
    start, count = 0, len(values)
    while count > 1:
        half = count // 2
        try:
            _decode(values.slice(start, half), declared)
        except _UndecodableError:
            count = half
        else:
            start, count = start + half, count - half
    try:
        _decode(values.slice(start, 1), declared)
    except _UndecodableError as error:
        return start, str(error)
    raise AssertionError("a batch that cannot be decoded holds a value that cannot be decoded")


def _reason(arrow_message: str) -> str:
    """Arrow's words, without those about the wrapper, which only exists here."""
    message = re.sub(r" in row \d+", "", arrow_message.removeprefix("JSON parse error: ")).rstrip(".")
    message = message.rsplit("Invalid: ", 1)[-1]
    if "Invalid UTF8" in message:
        return "it holds text that is not UTF-8"
    changed = re.fullmatch(r"Column\(/v(?:/(.*))?\) changed from (\w+) to (\w+)", message)
    if changed:
        name, declared, found = changed.groups()
        message = f"{f'field {name!r}' if name else 'the value'} is declared as {declared}, but holds {found}"
    return f"it does not decode as the declared JSON: {message.replace('Column(/v/', 'Column(/').replace('(/v)', '')}"
