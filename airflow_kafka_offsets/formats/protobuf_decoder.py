"""The decoder of the format Protobuf: the messages of one writer's schema, as the declared columns.

Both readers read a schema that is made for the columns: it has the numbers and types of the fields that are read, and
no other. What is not read is skipped as an unknown field. Every field can be absent in it, so that defaults are filled
in afterwards. The entries of maps are messages, in the order in which they were written. What well-known types mean is
not known to the readers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.formats.protobuf_columns import column_of
from airflow_kafka_offsets.formats.protobuf_fields import (
    BYTES,
    ENUM,
    GROUP,
    INT32,
    MESSAGE,
    Child,
    Node,
    children_of,
    is_message,
    oneof_of,
    physical_fields,
    physical_scalar,
    written,
)
from airflow_kafka_offsets.formats.protobuf_schema import Message
from airflow_kafka_offsets.formats.record_format import SchemaError
from airflow_kafka_offsets.formats.room import most_bytes
from airflow_kafka_offsets.formats.wire_format import MismatchError, TwoReaders, UnreadableError, ValueReader, refusals

# Of the largest numbers of all messages: the quick reader has a table of all numbers up to it, for each message and
# batch.
_LARGEST_NUMBERS = 100_000

# The quick reader calls itself for groups in groups, also for those that it skips, and dies where the stack ends. A
# group takes a byte at least, and 80 bytes of the stack: a value of so few bytes cannot go too deep.
_SHALLOW_BYTES = 2_000

# Of oneofs that are no columns, which only the quick reader reads: it has a builder for each.
_MOST_MEMBERS = 500
_MOST_MEMBER_BYTES = 32 << 20

_NO_MESSAGE = "it is not a message of its schema"

# How a field is written, by the lowest three bits of its tag.
_VARINT, _LENGTH = 0, 2
_SIZES = {1: 8, 5: 4}
_MOST_IN_VARINT = 10

# Of a bad value of more bytes, whose fields may be as many, the place is not looked for.
_SHORT_BYTES = 2_000


class ProtobufReader(ValueReader):
    """Reads the fields of columns.

    :param message: that was written
    :param children: the columns
    """

    def __init__(self, message: Message, children: tuple[Child, ...]) -> None:
        self._message, self._children = message, children
        self._kinds = {field.name: field.type for field in physical_fields(children)}

    def certain_values(self) -> list[bytes]:
        # The quick reader does not skip groups, whether they are read or not.
        messages = {message.full_name: message for message in _messages(self._message, self._children)}
        if any(field.type == GROUP for message in messages.values() for field in message.fields):
            return []
        read = self._descriptor.file.message_types_by_name.values()
        if sum(max((field.number for field in message.fields), default=0) for message in read) > _LARGEST_NUMBERS:
            return []
        if sum(len(message.fields) for message in read) - _count(self._children) > _MOST_MEMBERS:
            return []
        return [b"", _filled(self._class()).SerializeToString()]

    def read(self, values: pa.Array) -> dict[str, pa.Array]:
        self._check_depth(values)
        read, needed = (most_bytes(kind, len(values), values.nbytes) for kind in self._read_types)
        if read - needed > _MOST_MEMBER_BYTES:
            raise UnreadableError("its oneofs have too many members")
        with refusals("Protobuf", _NO_MESSAGE, lambda error: isinstance(error, ValueError)):
            found = self._handler.array_to_record_batch(values)
            columns = {name: _nullable(found.column(name), kind) for name, kind in self._kinds.items()}
        _check_oneofs(dict(zip(found.schema.names, found.columns, strict=True)), self._children)
        return columns

    def _check_depth(self, values: pa.Array) -> None:
        """Check that the deciding reader, which has a limit of depth, takes all values that could go too deep."""
        from google.protobuf.message import DecodeError

        lengths = pc.binary_length(values)
        if (pc.max(lengths).as_py() or 0) <= _SHALLOW_BYTES:
            return
        try:
            for value in values.filter(pc.greater(lengths, _SHALLOW_BYTES)).to_pylist():
                self._class.FromString(value)
        except DecodeError:
            raise UnreadableError(_NO_MESSAGE) from None

    def read_each(self, values: pa.Array) -> tuple[dict[str, pa.Array], dict[int, str]]:
        from google.protobuf.message import DecodeError

        rows: list[dict[str, Any]] = []
        wrong: dict[int, str] = {}
        for place, value in enumerate(values.to_pylist()):
            try:
                rows.append(_row(self._class.FromString(value), self._children))
            except DecodeError:
                wrong[place] = f"{_NO_MESSAGE}{self._first_wrong(value) if len(value) <= _SHORT_BYTES else ''}"
            except UnreadableError as error:
                wrong[place] = str(error)
        return {name: pa.array([row[name] for row in rows], kind) for name, kind in self._kinds.items()}, wrong

    def _first_wrong(self, value: bytes) -> str:
        """Return where a value is wrong: the beginning of a field, which may hold other messages, and its name."""
        from google.protobuf.message import DecodeError

        begin = at = 0
        field = None
        with suppress(IndexError, DecodeError):
            while True:
                begin, field = at, None
                tag, at = _varint(value, at)
                field = self._message.fields_by_number.get(tag >> 3)
                if tag & 7 == _LENGTH:
                    size, at = _varint(value, at)
                    at += size
                elif tag & 7 == _VARINT:
                    _, at = _varint(value, at)
                elif size := _SIZES.get(tag & 7, 0):
                    at += size
                else:
                    break  # the rest is a group, or no field
                self._class.FromString(value[begin:at])
        return f", at byte {begin:,} of {len(value):,}{'' if field is None else f', in field {field.name!r}'}"

    @cached_property
    def _descriptor(self) -> Message:
        from google.protobuf import descriptor_pb2, descriptor_pool

        # In proto2 every field can be absent.
        file = descriptor_pb2.FileDescriptorProto(name="columns.proto", syntax="proto2")
        root = _add_message(file, self._children)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        return pool.FindMessageTypeByName(root)

    @cached_property
    def _handler(self) -> Any:
        import ptars

        return ptars.HandlerPool([self._descriptor.file]).get_for_message(self._descriptor)

    @cached_property
    def _read_types(self) -> tuple[pa.DataType, pa.DataType]:
        """What the quick reader reads of a message, and what is needed of it."""
        return _read_type(self._descriptor), pa.struct(list(self._kinds.items()))

    @cached_property
    def _class(self) -> Any:
        from google.protobuf.message_factory import GetMessageClass

        return GetMessageClass(self._descriptor)


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place after it.

    :raises IndexError: there is none
    """
    number = 0
    for place in range(_MOST_IN_VARINT):
        number |= (value[at + place] & 127) << 7 * place
        if value[at + place] < 128:
            return number, at + place + 1
    raise IndexError


def _messages(message: Message, children: Iterable[Child]) -> Iterator[Message]:
    yield message
    for node in written(children):
        if not node.is_encoded and is_message(node.field):
            yield from _messages(node.field.message_type, node.children)


def _add_message(file: Any, children: Iterable[Child]) -> str:
    """Add a message with the fields that are read to the descriptor of a file, and return its name.

    :param children: the columns
    """
    message = file.message_type.add(name=f"M{len(file.message_type)}")
    nodes = {node.field.number: node for node in written(children)}
    fields = {number: node.field for number, node in nodes.items()}
    oneof_of_field: dict[int, int] = {}
    for place, members in enumerate(_oneofs(nodes.values())):
        message.oneof_decl.add(name=f"o{place}")
        for member in members:
            # Of members that are no columns it matters whether they are set: the last one that is unsets the others.
            fields.setdefault(member.number, member)
            oneof_of_field[member.number] = place
    for number, source in fields.items():
        node = nodes.get(number)
        field = message.field.add(name=f"f{number}", number=number, type=_TYPE_AS_READ.get(source.type, source.type))
        field.label = 3 if node is not None and node.is_list else 1
        if number in oneof_of_field:
            field.oneof_index = oneof_of_field[number]
        if source.type == GROUP or (node is not None and not node.is_encoded and is_message(source)):
            field.type = source.type
            field.type_name = f".{_add_message(file, () if node is None else node.children)}"
    return str(message.name)


def _read_type(message: Message) -> pa.DataType:
    """Return the type that the quick reader reads a message as."""
    fields = []
    for field in message.fields:
        item = _read_type(field.message_type) if is_message(field) else physical_scalar(field)
        fields.append((field.name, pa.list_(item) if field.is_repeated else item))
    return pa.struct(fields)


def _count(children: Iterable[Child]) -> int:
    """Return the number of fields that are read for columns."""
    return sum(1 + _count(node.children) for node in written(children))


def _filled(message: Message) -> Message:
    """Set all fields of a message, of a oneof the last one, and return it."""
    for field in message.DESCRIPTOR.fields:
        if is_message(field):
            item = getattr(message, field.name)
            inner = item.add() if field.is_repeated else item
            inner.SetInParent()
            _filled(inner)
            continue
        value = b"\xff\0" if field.type == BYTES else _EXTREMES[field.cpp_type]
        if field.is_repeated:
            getattr(message, field.name).extend([value, value])
        else:
            setattr(message, field.name, value)
    return message


# By the type in C++: of the integers and numbers, whether something is true, a text.
_EXTREMES = {1: -(2**31), 2: -(2**63), 3: 2**32 - 1, 4: 2**64 - 1, 5: -0.1, 6: 1.5, 7: True, 9: "ä\0"}

# A message has the same form as bytes.
_TYPE_AS_READ = {ENUM: INT32, MESSAGE: BYTES}


def _oneofs(nodes: Collection[Node]) -> list[list[Any]]:
    """Return the members of each oneof of which one is read. A field that is read in another schema than the oneof's is
    none.
    """
    read = {node.field.number: node.field for node in nodes}
    found: list[Any] = []
    for field in read.values():
        oneof = oneof_of(field)
        if oneof is not None and oneof not in found:
            found.append(oneof)
    return [[each for each in oneof.fields if read.get(each.number, each) == each] for oneof in found]


def _check_oneofs(columns: Mapping[str, pa.Array], children: Iterable[Child]) -> None:
    """Check that of a oneof no two members are set: the quick reader does not unset one for the next.

    :param columns: the fields of a message, by the names of nodes
    """
    nodes = list(written(children))
    for members in _oneofs(nodes):
        are_set = [columns[f"f{member.number}"].is_valid().cast(pa.int8()) for member in members]
        if (pc.max(reduce(pc.add, are_set)).as_py() or 0) > 1:
            raise UnreadableError("it sets two members of a oneof")
    for node in nodes:
        if not node.is_encoded and is_message(node.field):
            items = columns[node.name].flatten() if node.field.is_repeated else columns[node.name]
            parts = dict(zip((field.name for field in items.type), items.flatten(), strict=True))
            _check_oneofs(parts, node.children)


def _nullable(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array of a type which differs in what may be null."""
    return array if array.type == kind else array.cast(kind)


def _row(message: Any, children: Iterable[Child]) -> dict[str, Any]:
    return {node.name: _value(message, node) for node in written(children)}


def _value(message: Any, node: Node) -> Any:
    if node.is_list:
        return [_item(item, node) for item in getattr(message, node.name)]
    return _item(getattr(message, node.name), node) if message.HasField(node.name) else None


def _item(item: Any, node: Node) -> Any:
    if node.is_encoded:
        # One that stands between tags is a message, all of whose fields are unknown.
        return item if isinstance(item, bytes) else item.SerializeToString()
    if is_message(node.field):
        return _row(item, node.children)
    if node.physical_item == pa.string() and not isinstance(item, str):
        # That of a text which is not UTF-8 is bytes.
        raise UnreadableError("it holds text that is not UTF-8")
    return item


class ProtobufDecoder(TwoReaders):
    """Decodes the messages of one writer's schema.

    :param message: that was written
    :param columns: the declared columns
    :param reader: the message from which the columns are taken, if they are

    :raises SchemaError: no message can become the columns
    """

    def __init__(self, message: Message, columns: pa.Schema, reader: Message | None) -> None:
        try:
            self._children = children_of(columns, message, reader)
        except MismatchError as error:
            raise SchemaError(str(error).replace("field", "column", 1)) from None
        read = {node.field.number for node in written(self._children)}
        unread = [field.name for field in message.fields if field.number not in read]
        super().__init__(columns, ProtobufReader(message, self._children), unread)

    def column(self, place: int, found: Mapping[str, pa.Array], count: int) -> pa.Array:
        return column_of(self._children[place], found, count)
