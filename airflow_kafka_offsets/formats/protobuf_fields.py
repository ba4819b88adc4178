"""What is read of a Protobuf message: the fields that columns come from, and in which shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from airflow_kafka_offsets.formats.columns import spark_type
from airflow_kafka_offsets.formats.protobuf_schema import Message
from airflow_kafka_offsets.formats.record_format import SchemaError
from airflow_kafka_offsets.formats.schema_limits import Budget
from airflow_kafka_offsets.formats.wire_format import MismatchError

# The types of fields, by their numbers in descriptor.proto.
GROUP, MESSAGE, BYTES, ENUM, INT32 = 10, 11, 12, 14, 5

_TYPES = {
    1: ("double", pa.float64(), pa.float64()),
    2: ("float", pa.float32(), pa.float32()),
    3: ("int64", pa.int64(), pa.int64()),
    4: ("uint64", pa.uint64(), pa.decimal128(20, 0)),
    5: ("int32", pa.int32(), pa.int32()),
    6: ("fixed64", pa.uint64(), pa.decimal128(20, 0)),
    7: ("fixed32", pa.uint32(), pa.int64()),
    8: ("bool", pa.bool_(), pa.bool_()),
    9: ("string", pa.string(), pa.string()),
    12: ("bytes", pa.binary(), pa.binary()),
    13: ("uint32", pa.uint32(), pa.int64()),
    14: ("enum", pa.int32(), pa.string()),
    15: ("sfixed32", pa.int32(), pa.int32()),
    16: ("sfixed64", pa.int64(), pa.int64()),
    17: ("sint32", pa.int32(), pa.int32()),
    18: ("sint64", pa.int64(), pa.int64()),
}
"""Of each scalar type its name, what it is read as, and its column."""

_WELL_KNOWN = {
    "google.protobuf.Timestamp": ("timestamp", pa.timestamp("us", "UTC")),
    "google.protobuf.Duration": ("duration", pa.decimal128(21, 9)),
    **{f"google.protobuf.{name}": ("json", pa.string()) for name in ("Struct", "Value", "ListValue")},
}

_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


class Child(NamedTuple):
    """A field of a column that is a struct, or a column itself.

    :param node: where it comes from; None where its message has no such field
    """

    field: pa.Field
    node: Node | None


@dataclass(frozen=True, eq=False)
class Node:
    """A field of a message that is read.

    :param field: its descriptor
    :param shape: `scalar`, `struct`, `entry` of a map, `timestamp`, `duration`, `wrapper`; `json` and `bytes` are
        messages that are read as their bytes
    :param declared: the type of the column, or of its items
    :param children: of a message
    """

    field: Any
    shape: str
    declared: pa.DataType
    children: tuple[Child, ...] = ()

    @property
    def name(self) -> str:
        """What it is read as."""
        return f"f{self.field.number}"

    @property
    def is_encoded(self) -> bool:
        return self.shape in ("json", "bytes")

    @property
    def is_list(self) -> bool:
        """Whether it is read as a list. So is a single message that is read as its bytes: its parts merge by being
        joined.
        """
        return self.field.is_repeated or (self.is_encoded and oneof_of(self.field) is None)

    @property
    def physical(self) -> pa.DataType:
        """The type that it is read as."""
        return pa.list_(self.physical_item) if self.is_list else self.physical_item

    @property
    def physical_item(self) -> pa.DataType:
        """The type that an item of it is read as, if it is repeated."""
        if self.is_encoded:
            return pa.binary()
        return pa.struct(physical_fields(self.children)) if is_message(self.field) else physical_scalar(self.field)


def physical_fields(children: Iterable[Child]) -> list[pa.Field]:
    """Return what is read of a message."""
    return [pa.field(node.name, node.physical) for node in written(children)]


def written(children: Iterable[Child]) -> Iterator[Node]:
    """Yield the fields that are read of a message, each once."""
    seen: set[str] = set()
    for child in children:
        if child.node is not None and child.node.name not in seen:
            seen.add(child.node.name)
            yield child.node


def oneof_of(field: Any) -> Any:
    """Return the oneof of a field; None for the one that only stands for a field that is optional."""
    oneof = field.containing_oneof
    return oneof if oneof is not None and len(oneof.fields) > 1 else None


def is_message(field: Any) -> bool:
    """Return whether a field is a message, which is also what an entry of a map is."""
    return field.type in (GROUP, MESSAGE)


def physical_scalar(field: Any) -> pa.DataType:
    """Return the type that an item of a field is read as, which is no message."""
    return _TYPES[field.type][1]


def is_in_entry(field: Any) -> bool:
    """Return whether a field is the key or the value of a map."""
    return bool(field.containing_type.GetOptions().map_entry)


def is_map(field: Any) -> bool:
    """Return whether a field is a map."""
    return bool(field.type == MESSAGE and field.message_type.GetOptions().map_entry)


def columns_of(message: Message) -> pa.Schema:
    """Return the columns of all fields of a message. All are nullable: the values of tombstones are null.

    :raises SchemaError: a field has no column
    """
    if not message.fields:
        raise SchemaError(f"the message {message.full_name!r} has no fields")
    within, budget = (message.full_name,), Budget()
    return pa.schema([(field.name, _column_type(field, field.name, within, budget)) for field in message.fields])


def column_type(field: Any, message: Message, budget: Budget) -> pa.DataType:
    """Return the type of the column of a field.

    :param message: that the field is in
    :param budget: of all fields
    :raises SchemaError: no column can have it
    """
    return _column_type(field, field.name, (message.full_name,), budget)


def _column_type(field: Any, path: str, within: tuple[str, ...], budget: Budget) -> pa.DataType:
    budget.take(len(within))
    item = _item_type(field, path, within, budget)
    return pa.list_(item) if field.is_repeated else item


def _item_type(field: Any, path: str, within: tuple[str, ...], budget: Budget) -> pa.DataType:
    if not is_message(field):
        return _TYPES[field.type][2]
    message = field.message_type
    if message.full_name in _WELL_KNOWN:
        return _WELL_KNOWN[message.full_name][1]
    if message.full_name in _WRAPPERS:
        return _item_type(_part(message, "value"), path, within, budget)
    if message.full_name in within:
        raise SchemaError(f"{path!r} is recursive, which cannot be a column; declare the columns")
    if not message.fields:
        raise SchemaError(f"{path!r} is a message without fields, which cannot be a column; declare the columns")
    inner = (*within, message.full_name)
    return pa.struct([(part.name, _column_type(part, f"{path}.{part.name}", inner, budget)) for part in message.fields])


def children_of(fields: Iterable[pa.Field], message: Message, reader: Message | None) -> tuple[Child, ...]:
    """Return where columns come from: the fields of their numbers in the reader's message, or else of their names.

    :param message: that was written
    :param reader: the message from which the columns are taken, if they are
    :raises MismatchError: a field cannot become its column
    """
    found: list[Child] = []
    for column in fields:
        wanted = reader.fields_by_name.get(column.name) if reader is not None else None
        if wanted is not None:
            own = message.fields_by_number.get(wanted.number)
        else:
            own = message.fields_by_name.get(column.name)
        try:
            node = _node_of(own, column.type, wanted) if own is not None or wanted is not None else None
        except MismatchError as error:
            raise MismatchError(f"field {column.name!r}: {error}") from None
        found.append(Child(column, node))
    return tuple(found)


def _node_of(own: Any, declared: pa.DataType, wanted: Any) -> Node:
    """Return what is read of a field for a column.

    Of the same type, it is read as the reader's schema has it: with its label, its presence and the names of its enum.

    :param own: the field in the writer's schema, if it has one
    :param wanted: the field in the reader's schema, if it has one
    """
    field = wanted if own is None or (wanted is not None and wanted.type == own.type) else own
    if field.is_repeated:
        if not pa.types.is_list(declared):
            raise MismatchError(
                f"it is {'a map' if is_map(field) else 'repeated'}, but the column is {spark_type(declared)}"
            )
        declared = declared.value_type
    if not is_message(field):
        _check_scalar(field, declared)
        return Node(field, "scalar", declared)
    inner = wanted.message_type if wanted is not None and is_message(wanted) else None
    written_as = own.message_type if own is not None else field.message_type
    if is_map(field):
        return _entry(field, declared, written_as, inner)
    known = _known_message(field, declared)
    if known is not None:
        return known
    if not pa.types.is_struct(declared):
        raise MismatchError(
            f"it was written as the message {field.message_type.full_name}, which cannot become {spark_type(declared)}"
        )
    return Node(field, "struct", declared, children_of(declared, written_as, inner))


def _part(message: Message, name: str) -> Any:
    """Return a field of a well-known type: a descriptor set may have another message of this name."""
    if (found := message.fields_by_name.get(name)) is None:
        raise MismatchError(f"the message {message.full_name} has no field {name!r}")
    return found


def _known_message(field: Any, declared: pa.DataType) -> Node | None:
    """Return what is read of a message which is not read as a struct; None for another one."""
    message = field.message_type
    shape, natural = _WELL_KNOWN.get(message.full_name, ("", None))
    if declared == natural or (shape == "duration" and pa.types.is_decimal(declared)):
        parts = {"seconds": pa.int64(), "nanos": pa.int32()} if shape != "json" else {}
    elif message.full_name in _WRAPPERS and not pa.types.is_struct(declared):
        shape, parts = "wrapper", {"value": declared}
        _check_scalar(_part(message, "value"), declared)
    elif pa.types.is_binary(declared) and field.type != GROUP:
        shape, parts = "bytes", {}
    else:
        return None
    children = (Child(pa.field(name, kind), Node(_part(message, name), "scalar", kind)) for name, kind in parts.items())
    return Node(field, shape, declared, tuple(children))


def _entry(field: Any, declared: pa.DataType, message: Message, reader: Message | None) -> Node:
    if not pa.types.is_struct(declared) or declared.num_fields != 2:
        raise MismatchError(
            f"it is a map, but the column is {spark_type(pa.list_(declared))}: declare ARRAY<STRUCT<key: …, value: …>>"
        )
    parts = []
    for column, name in zip(declared, ("key", "value"), strict=True):
        wanted = reader.fields_by_name.get(name) if reader is not None else None
        parts.append(Child(column, _node_of(message.fields_by_name.get(name), column.type, wanted)))
    return Node(field, "entry", declared, tuple(parts))


def _check_scalar(field: Any, declared: pa.DataType) -> None:
    name, read_as, natural = _TYPES[field.type]
    if declared == natural:
        return
    is_number = pa.types.is_integer(read_as) and name != "enum"
    if is_number and (declared in _INTEGERS or pa.types.is_floating(declared) or pa.types.is_decimal(declared)):
        return
    if (name, declared) in (("enum", pa.int32()), ("enum", pa.int64()), ("float", pa.float64())):
        return
    if name in ("string", "bytes") and declared in (pa.string(), pa.binary()):
        return
    raise MismatchError(f"it was written as {name}, which cannot become {spark_type(declared)}")
