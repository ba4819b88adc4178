"""Reads single Protobuf messages of one schema into Arrow arrays: all at once, or each by itself.

Both read a schema that is made for the columns: it has the numbers and types of the fields that are read, and no other.
What is not read is skipped as an unknown field. Every field can be absent in it, so that defaults are filled in
afterwards. The entries of maps are messages, in the order in which they were written. What well-known types mean is not
known to the readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.formats.protobuf_fields import (
    BYTES,
    ENUM,
    GROUP,
    INT32,
    MESSAGE,
    Child,
    Node,
    is_message,
    oneof_of,
    physical_fields,
    written,
)
from airflow_kafka_offsets.formats.protobuf_schema import Message
from airflow_kafka_offsets.formats.wire_format import UnreadableError

# The quick reader has a table of all numbers up to the largest one, for each message and batch.
_LARGEST_NUMBER = 100_000

# The quick reader calls itself for groups in groups, also for those that it skips, and dies where the stack ends. A
# group takes a byte at least, and 80 bytes of the stack: a value of so few bytes cannot go too deep.
_SHALLOW_BYTES = 2_000

_NO_MESSAGE = "it is no message of its schema"


class ProtobufReader:
    """Reads the fields of columns.

    :param message: that was written
    :param children: the columns
    """

    def __init__(self, message: Message, children: tuple[Child, ...]) -> None:
        self._message, self._children = message, children
        self._kinds = {field.name: field.type for field in physical_fields(children)}
        self._oneofs = list(_oneofs(children, ()))

    @cached_property
    def is_vectorized(self) -> bool:
        """Whether `read` can be used."""
        # The quick reader does not skip groups, whether they are read or not.
        if any(field.type == GROUP for message in _messages(self._message, self._children) for field in message.fields):
            return False
        read = self._descriptor.file.message_types_by_name.values()
        if any(field.number > _LARGEST_NUMBER for message in read for field in message.fields):
            return False
        empty = pa.array([b""], pa.binary())
        return self.read(empty) == self.read_each(empty)[0]

    def read(self, values: pa.Array) -> dict[str, pa.Array]:
        """Return the fields of values that are all readable, each of its physical type.

        :param values: binary, without nulls
        :raises UnreadableError: the quick reader does not take one of them
        """
        self._check_depth(values)
        try:
            found = self._handler.array_to_record_batch(values)
        except BaseException as error:
            # A panic of Rust code is no Exception.
            if type(error).__name__ != "PanicException" and not isinstance(error, ValueError):
                if not isinstance(error, Exception):
                    raise
                raise StagingError(f"The reader of Protobuf failed: {shortened(str(error))}") from error
            raise UnreadableError(_NO_MESSAGE) from None
        for path, members in self._oneofs:
            _check_single(_at(found, path), members)
        return {name: _nullable(found.column(name), kind) for name, kind in self._kinds.items()}

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
        """Return the fields of the readable ones among values, and for each other one what is wrong with it."""
        from google.protobuf.message import DecodeError

        rows: list[dict[str, Any]] = []
        wrong: dict[int, str] = {}
        for place, value in enumerate(values.to_pylist()):
            try:
                rows.append(_row(self._class.FromString(value), self._children))
            except DecodeError:
                wrong[place] = _NO_MESSAGE
            except UnreadableError as error:
                wrong[place] = str(error)
        return {name: pa.array([row[name] for row in rows], kind) for name, kind in self._kinds.items()}, wrong

    @cached_property
    def _descriptor(self) -> Message:
        from google.protobuf import descriptor_pool

        pool = descriptor_pool.DescriptorPool()
        pool.Add(_WireFile(self._children).file)
        return pool.FindMessageTypeByName(_WireFile.ROOT)

    @cached_property
    def _handler(self) -> Any:
        import ptars

        return ptars.HandlerPool([self._descriptor.file]).get_for_message(self._descriptor)

    @cached_property
    def _class(self) -> Any:
        from google.protobuf.message_factory import GetMessageClass

        return GetMessageClass(self._descriptor)


def _messages(message: Message, children: Iterable[Child]) -> Iterator[Message]:
    yield message
    for node in written(children):
        if not node.is_encoded and is_message(node.field):
            yield from _messages(node.field.message_type, node.children)


class _WireFile:
    """The descriptor of a file with the messages that are read.

    :param children: the columns
    """

    ROOT = "M0"

    def __init__(self, children: Iterable[Child]) -> None:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        # In proto2 every field can be absent.
        self.file = FileDescriptorProto(name="columns.proto", syntax="proto2")
        self._add(children)

    def _add(self, children: Iterable[Child]) -> str:
        message = self.file.message_type.add(name=f"M{len(self.file.message_type)}")
        nodes = {node.field.number: node for node in written(children)}
        fields = {number: node.field for number, node in nodes.items()}
        oneofs: list[str] = []
        for node in nodes.values():
            oneof = oneof_of(node.field)
            if oneof is not None and oneof.full_name not in oneofs:
                oneofs.append(oneof.full_name)
                message.oneof_decl.add(name=f"o{len(oneofs)}")
                # Of members that are no columns it matters whether they are set: the one that is set last unsets the
                # others.
                fields |= {member.number: member for member in oneof.fields}
        for number, source in fields.items():
            field = message.field.add(
                name=f"f{number}", number=number, label=1, type=_TYPE_AS_READ.get(source.type, source.type)
            )
            if (oneof := oneof_of(source)) is not None:
                field.oneof_index = oneofs.index(oneof.full_name)
            if number in nodes:
                field.label = 3 if nodes[number].is_list else 1
            if source.type == GROUP or (number in nodes and not nodes[number].is_encoded and is_message(source)):
                field.type = source.type
                field.type_name = f".{self._add(nodes[number].children if number in nodes else ())}"
        return str(message.name)


# A message has the same form as bytes.
_TYPE_AS_READ = {ENUM: INT32, MESSAGE: BYTES}


Path = tuple[tuple[str, bool], ...]
"""The names of fields, and whether each is repeated."""


def _oneofs(children: Iterable[Child], path: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield where oneofs are of which a member is read, and the names of all their members."""
    seen: set[str] = set()
    for node in written(children):
        oneof = oneof_of(node.field)
        if oneof is not None and oneof.full_name not in seen:
            seen.add(oneof.full_name)
            yield path, [f"f{member.number}" for member in oneof.fields]
        if not node.is_encoded and is_message(node.field):
            yield from _oneofs(node.children, (*path, (node.name, node.field.is_repeated)))


def _at(found: pa.RecordBatch, path: Path) -> dict[str, pa.Array]:
    columns = dict(zip(found.schema.names, found.columns, strict=True))
    for name, is_repeated in path:
        array = columns[name].flatten() if is_repeated else columns[name]
        columns = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    return columns


def _check_single(columns: dict[str, pa.Array], members: list[str]) -> None:
    """Check that of a oneof no two members are set: the quick reader does not unset one for the next."""
    total = None
    for name in members:
        is_set = columns[name].is_valid().cast(pa.int8())
        total = is_set if total is None else pc.add(total, is_set)
    if (pc.max(total).as_py() or 0) > 1:
        raise UnreadableError("it sets two members of a oneof")


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
    if not node.is_encoded and is_message(node.field):
        return _row(item, node.children)
    if node.physical_item == pa.string() and not isinstance(item, str):
        # That of a text which is not UTF-8 is bytes.
        raise UnreadableError("it holds text that is not UTF-8")
    return item
