"""The columns that a transform returns: their types and their checks."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.origin import BATCH_ID, OFFSET, PARTITION, RESERVED_PREFIX, TOPIC
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError, TransformError
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS, has_type, spark_type, type_name
from airflow_kafka_offsets.staging.rows import TargetColumns

# Types of Arrow that Spark does not have, and the type that holds all of their values. Of UINT64, values above 2^63 - 1
# are errors.
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    **dict.fromkeys([pa.large_string(), pa.string_view()], pa.string()),
    **dict.fromkeys([pa.large_binary(), pa.binary_view()], pa.binary()),
}


def with_nulls(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in which the fields of a struct that is null are null, too. Arrow leaves open what they are, and
    datafusion takes them for values, as `rows["after"].field("id")` does.
    """
    arrays = [_with_nulls(column) if has_type(column.type, pa.types.is_struct) else column for column in rows.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)


def _with_nulls(array: pa.Array) -> pa.Array:
    kind = array.type
    if not has_type(kind, pa.types.is_struct):
        return array
    if pa.types.is_struct(kind):
        fields = [_with_nulls(field) for field in array.flatten()]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(kind):
        values = [array.keys, _with_nulls(array.items)]
        items: pa.Array = pa.StructArray.from_arrays(values, fields=[kind.key_field, kind.item_field])
    else:
        items = _with_nulls(array.values)
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], offset=array.offset, children=[items])


def part_of(rows: pa.RecordBatch, first: int, end: int) -> pa.RecordBatch:
    """Return some of the rows: a copy, where they are not all. datafusion's cast of bytes to text also looks at those
    before a slice.
    """
    return rows if end - first == rows.num_rows else rows.take(pa.array(range(first, end), pa.int64()))


def known_columns(columns: pa.Schema, what: str) -> pa.Schema:
    """Return the columns of a transform's result with types that Spark has.

    :param what: returns them, for messages
    :raises TransformError: a column has a reserved name, the name of another column, or a type that no target can have
    """
    seen: set[str] = set()
    fields = []
    for field in columns:
        name = field.name.lower()
        if name in seen:
            raise TransformError(f"{what} returns column {field.name!r} twice (names are compared without case)")
        seen.add(name)
        if (name.startswith(RESERVED_PREFIX) and field.name not in ORIGIN_COLUMNS.names) or name == BATCH_ID:
            raise TransformError(
                f"{what} returns column {field.name!r}: the name is reserved for where a row came from"
            )
        kind = _known_type(field.type)
        if field.name in ORIGIN_COLUMNS.names and kind != ORIGIN_COLUMNS.field(field.name).type:
            raise TransformError(
                f"{what} changes the type of {field.name!r} to {type_name(field.type)}: leave it as it is, or drop it"
            )
        if pa.types.is_null(kind):
            raise TransformError(
                f"{what} returns column {field.name!r} without a type, as of nulls alone: cast it to one"
            )
        try:
            if pa.types.is_decimal256(kind):
                raise ConfigurationError("Spark's decimals have at most 38 digits")
            spark_type(kind)
        except ConfigurationError as error:
            raise TransformError(
                f"{what} returns column {field.name!r} as {type_name(field.type)}, which no target can have: cast it"
            ) from error
        # Only the origin columns and those of the input are known to have no nulls.
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def _known_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _known_type(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us") if kind.tz is None else pa.timestamp("us", "UTC")
    if pa.types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_known_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _known_type(field.type)) for field in kind.fields])
    return _WIDER.get(kind, kind)


def cast(rows: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return rows with the types of columns. A timestamp loses what is less than a microsecond.

    :raises pyarrow.ArrowInvalid: a value is outside of the range of its column, or has more digits
    """
    arrays = [
        array
        if array.type == field.type
        else pc.cast(array, options=pc.CastOptions(field.type, allow_time_truncate=True))
        for array, field in zip(rows.columns, columns, strict=True)
    ]
    for array in filter(lambda array: has_type(array.type, pa.types.is_decimal), arrays):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            # datafusion finds only what overflows 128 bits. Arrow's message quotes the value.
            raise pa.ArrowInvalid("Arithmetic overflow of a decimal") from None
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def check_columns(columns: Sequence[str], target: TargetColumns, transform: str) -> None:
    """Compare the columns that a transform returns with those of the target.

    :raises TargetError: the target lacks columns, or needs columns that the transform drops; the message names them
    """
    if target.known is None:
        return
    extra = [repr(name) for name in columns if name not in target.known and not name.startswith(RESERVED_PREFIX)]
    if target.may_grow:
        extra = []
    missing = [repr(name) for name in target.required if name not in columns]
    problems = [f"the target has no column {', '.join(extra)}"] if extra else []
    if missing:
        problems.append(f"the target needs column {', '.join(missing)}, which the transform drops")
    if problems:
        raise TargetError(f"Transform {transform!r} does not fit table {target.table!r}: {'; '.join(problems)}")


def check_origin(before: pa.RecordBatch, after: pa.RecordBatch, what: str) -> None:
    """Check that the origin columns, as far as they are returned, name records of the batch.

    :raises TransformError: they do not
    """
    for name in (TOPIC, PARTITION, OFFSET):
        if name not in after.schema.names or not after.num_rows:
            continue
        found = after.column(name)
        if found.null_count or not pc.all(pc.is_in(found, value_set=before.column(name))).as_py():
            raise TransformError(
                f"{what} returns rows whose {name!r} is none of the batch's: leave it as it is, or drop it"
            )


def places(rows: pa.RecordBatch) -> str:
    """Return which records the rows of a batch came from, for messages."""
    if not rows.num_rows:
        return "an empty batch"
    topic, partition = (rows.column(name)[0].as_py() for name in (TOPIC, PARTITION))
    offsets = rows.column(OFFSET)
    return f"topic {topic!r} partition {partition} offsets {offsets[0].as_py()} to {offsets[-1].as_py()}"
