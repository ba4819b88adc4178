"""Record batches as read from Kafka to rows with the declared columns, in Arrow."""

from __future__ import annotations

import re

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
    last_error: pa.ArrowInvalid | None = None
    # Timestamps are read as microseconds, which reach any year. Text with more digits (Java's Instant has nine) needs
    # nanoseconds, which end in 2262.
    for unit in ("us", "ns"):
        try:
            table = pj.read_json(
                pa.BufferReader(text),
                read_options=pj.ReadOptions(use_threads=False, block_size=max(text.size, 1)),
                parse_options=pj.ParseOptions(
                    explicit_schema=pa.schema([("v", pa.struct([_readable(field, unit) for field in declared]))]),
                    newlines_in_values=True,
                    unexpected_field_behavior="ignore",
                ),
            )
            if table.num_rows != len(values):
                raise _UndecodableError("it is not exactly one JSON value")
            # Arrow's reader takes any bytes as text; a database does not.
            table.validate(full=True)
            rows = table.column("v").combine_chunks()
            return [_as_declared(column, field) for column, field in zip(rows.flatten(), declared, strict=True)]
        except pa.ArrowInvalid as error:
            last_error = error
    raise _UndecodableError(_reason(str(last_error)))


def _readable(field: pa.Field, unit: str) -> pa.Field:
    return pa.field(field.name, _readable_type(field.type, unit))


def _readable_type(kind: pa.DataType, unit: str) -> pa.DataType:
    """The type that Arrow's JSON reader can fill: it reads dates from numbers only, so they come as text."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        return pa.timestamp(unit, kind.tz)
    if pa.types.is_list(kind):
        return pa.list_(_readable_type(kind.value_type, unit))
    if pa.types.is_struct(kind):
        return pa.struct([_readable(field, unit) for field in kind.fields])
    return kind


def _as_declared(column: pa.Array, field: pa.Field) -> pa.Array:
    if not field.nullable and column.null_count:
        raise _UndecodableError(f"column {field.name!r} is declared NOT NULL, and is missing or null")
    # Not safe only so that nanoseconds are cut to microseconds; out of range, and text that is no date, still fail.
    return column if column.type == field.type else column.cast(field.type, safe=False)


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
    """Arrow's words, without the names of the wrapper that only exists here."""
    message = arrow_message.removeprefix("JSON parse error: ").split(" in row ")[0].rstrip(".")
    changed = re.fullmatch(r"Column\(/v(?:/(.*))?\) changed from (\w+) to (\w+)", message)
    if changed:
        name, declared, found = changed.groups()
        message = f"{f'field {name!r}' if name else 'the value'} is declared as {declared}, but holds {found}"
    return f"it does not decode as the declared JSON: {message}"
