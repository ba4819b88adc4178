"""Protobuf's fields as columns: what is absent, what enums and well-known types mean, and what fits a declared type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.formats.columns import OUT_OF_YEARS, as_decimals, relisted, spark_type
from airflow_kafka_offsets.formats.protobuf_fields import (
    Child,
    Node,
    is_in_entry,
    is_map,
    is_message,
    physical_scalar,
    written,
)
from airflow_kafka_offsets.formats.room import filled, named
from airflow_kafka_offsets.formats.wire_format import UnreadableError

_SECONDS = (-62_135_596_800, 253_402_300_799)
_MOST_NANOS = 999_999_999


def column_of(child: Child, found: Mapping[str, pa.Array], count: int) -> pa.Array:
    """Return the values of a column, or of a field of one.

    :param found: what was read, by the names of nodes
    :raises UnreadableError: a value does not fit the column
    """
    if child.node is None:
        return pa.nulls(count, child.field.type)
    return _converted(child.node, found[child.node.name])


def _converted(node: Node, array: pa.Array) -> pa.Array:
    """Return values of a field as its column."""
    if not node.field.is_repeated:
        return _items(node, _joined(array) if pa.types.is_list(array.type) else array)
    is_of_map, is_closed = is_map(node.field), _is_closed(node)
    if is_of_map and not is_closed:
        # What is replaced need not fit the column.
        entries = array.flatten()
        keys = column_of(node.children[0], {"f1": entries.field(0)}, len(entries))
        array = _last_of_keys(relisted(array, entries, array.type), keys)
    items = _items(node, array.flatten())
    rows = relisted(array, items, pa.list_(node.declared))
    values = items.field(1) if is_of_map else items
    if is_closed and values.null_count:
        rows = _lists(rows, values.is_valid(), items.filter(values.is_valid()))
    return _last_of_keys(rows, rows.flatten().field(0)) if is_of_map and is_closed else rows


def _joined(lists: pa.Array) -> pa.Array:
    """Return the bytes of a message that was written in parts: these merge by being joined."""
    if not len(lists.flatten()):
        return pa.nulls(len(lists), pa.binary())
    return pa.array([b"".join(parts) if parts else None for parts in lists.to_pylist()], pa.binary())


def _items(node: Node, array: pa.Array) -> pa.Array:
    field = node.field
    if node.shape == "scalar":
        return _with_default(node, _scalar(node, _present(node, array)))
    if node.shape == "json":
        return _json(array, field.message_type.full_name)
    if node.shape == "bytes":
        return array
    children = dict(zip((part.name for part in array.type), array.flatten(), strict=True))
    if node.shape == "timestamp":
        return _timestamps(array, children)
    if node.shape == "duration":
        return _durations(array, children, node.declared)
    if node.shape == "wrapper":
        return pc.if_else(array.is_valid(), column_of(node.children[0], children, len(array)), None)
    columns = [column_of(child, children, len(array)) for child in node.children]
    if node.shape == "entry":
        columns[1] = _entry_value(node.children[1], columns[1])
    mask = array.is_null() if node.shape == "struct" else None
    return pa.StructArray.from_arrays(columns, fields=list(node.declared), mask=mask)


def _present(node: Node, array: pa.Array) -> pa.Array:
    """Return values with the default of what was not written, if nobody can see whether it was."""
    field = node.field
    if field.is_repeated or not array.null_count or (field.has_presence and not is_in_entry(field)):
        return array
    return filled(array, pa.array([field.default_value], array.type))


def _with_default(node: Node, array: pa.Array) -> pa.Array:
    """Return values with the default that proto2 declares."""
    field = node.field
    if field.is_repeated or not (field.has_presence and field.has_default_value) or not array.null_count:
        return array
    default = pa.array([field.default_value], physical_scalar(field))
    return filled(array, _scalar(node, default))


def _entry_value(child: Child, values: pa.Array) -> pa.Array:
    """Return the values of a map, of which a message that was not written is an empty one."""
    node = child.node
    assert node is not None  # an entry has a key and a value
    if is_message(node.field) and node.shape != "bytes" and values.null_count:
        return filled(values, _converted(node, pa.array([_empty(node)], node.physical)))
    return values


def _empty(node: Node) -> Any:
    if node.is_encoded:
        return [b""]
    return {inner.name: [] if inner.is_list else None for inner in written(node.children)}


def _is_closed(node: Node) -> bool:
    """Return whether an item of a list or map counts as not written where its enum does not have its number."""
    field = node.field.message_type.fields_by_name["value"] if is_map(node.field) else node.field
    return field.enum_type is not None and bool(field.enum_type.is_closed)


def _lists(rows: pa.Array, are_kept: pa.Array, items: pa.Array) -> pa.Array:
    """Return lists with other items.

    :param are_kept: which of all items have one in their place
    """
    zero = pa.array([0], pa.int64())
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(rows), 0).cast(pa.int64()))
    kept = pc.cumulative_sum(are_kept.cast(pa.int64()))
    offsets = pa.concat_arrays([zero, kept]).take(pa.concat_arrays([zero, ends]))
    return pa.ListArray.from_arrays(offsets.cast(pa.int32()), items, type=rows.type, mask=rows.is_null())


def _last_of_keys(rows: pa.Array, keys: pa.Array) -> pa.Array:
    """Return maps with the last entry of each key, in the place of the first one.

    :param keys: of all entries
    """
    entries = rows.flatten()
    if len(entries) < 2:
        return rows
    places = pa.array(range(len(entries)), pa.int64())
    keyed = pa.table({"map": pc.list_parent_indices(rows), "key": keys, "place": places})
    found = keyed.group_by(["map", "key"]).aggregate([("place", "min"), ("place", "max")])
    if found.num_rows == len(entries):
        return rows
    found = found.sort_by("place_min").combine_chunks()
    return _lists(rows, pc.is_in(places, found["place_min"]), entries.take(found["place_max"].combine_chunks()))


def _scalar(node: Node, array: pa.Array) -> pa.Array:
    field, declared = node.field, node.declared
    if field.enum_type is not None:
        array = _enum(array, field.enum_type, declared)
    try:
        if pa.types.is_decimal(declared) and array.type != declared:
            return as_decimals(array, declared)
        # Promoting a number to a float may round it.
        return array.cast(declared, safe=not pa.types.is_floating(declared))
    except pa.ArrowInvalid:
        raise UnreadableError(f"a value does not fit {spark_type(declared)}") from None


def _enum(numbers: pa.Array, enum: Any, declared: pa.DataType) -> pa.Array:
    known = enum.values_by_number
    places = pc.index_in(numbers, pa.array(list(known), pa.int32()))
    if enum.is_closed:
        numbers = pc.if_else(places.is_valid(), numbers, None)
    if declared != pa.string():
        return numbers
    names = named(places, pa.array([value.name for value in known.values()], pa.string()))
    # A number that a later version of the enum has a name for.
    return pc.coalesce(names, numbers.cast(pa.string())) if names.null_count > numbers.null_count else names


def _seconds(array: pa.Array, children: Mapping[str, pa.Array]) -> tuple[pa.Array, pa.Array]:
    seconds, nanos = (pc.fill_null(children[name], 0) for name in ("f1", "f2"))
    return seconds, nanos.cast(pa.int64())


def _timestamps(array: pa.Array, children: Mapping[str, pa.Array]) -> pa.Array:
    seconds, nanos = _seconds(array, children)
    _check_within(nanos, 0, _MOST_NANOS, "the nanoseconds of a timestamp lie outside of its second")
    _check_within(seconds, *_SECONDS, OUT_OF_YEARS)
    micros = pc.add(pc.multiply(seconds, 1_000_000), pc.divide(nanos, 1_000))
    return pc.if_else(array.is_valid(), micros, None).cast(pa.timestamp("us", "UTC"))


def _durations(array: pa.Array, children: Mapping[str, pa.Array], declared: pa.DataType) -> pa.Array:
    seconds, nanos = _seconds(array, children)
    _check_within(nanos, -_MOST_NANOS, _MOST_NANOS, "the nanoseconds of a duration are more than a second")
    try:
        part = pc.multiply(nanos.cast(pa.decimal128(19, 0)), pa.scalar(Decimal("0.000000001")))
        whole = pc.add(seconds.cast(pa.decimal128(19, 0)), part.cast(pa.decimal128(19, 9)))
        return as_decimals(pc.if_else(array.is_valid(), whole, None), declared)
    except pa.ArrowInvalid:
        raise UnreadableError(f"a duration does not fit {spark_type(declared)}") from None


def _check_within(numbers: pa.Array, least: int, most: int, reason: str) -> None:
    found = pc.min_max(numbers).as_py()
    if found["min"] is not None and not (least <= found["min"] and found["max"] <= most):
        raise UnreadableError(reason)


def _json(array: pa.Array, name: str) -> pa.Array:
    from google.protobuf import json_format, struct_pb2
    from google.protobuf.message import DecodeError

    kind = getattr(struct_pb2, name.rpartition(".")[2])
    try:
        texts = [
            None if value is None else json.dumps(json_format.MessageToDict(kind.FromString(value)), ensure_ascii=False)
            for value in array.to_pylist()
        ]
    except (DecodeError, json_format.Error, ValueError, RecursionError):
        raise UnreadableError(f"a {name} cannot be written as JSON") from None
    return pa.array(texts, pa.string())
