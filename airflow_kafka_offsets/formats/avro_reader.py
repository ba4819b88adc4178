"""Reads single Avro values of one schema into Arrow arrays: all at once, or each by itself.

What is quick reads files, whose blocks hold values without anything between them. So each value is followed by a
marker, for which the schema of the file has a field: a value that ends too early or too late shows by its marker, and
shifts no other unnoticed.
"""

from __future__ import annotations

import io
import json
import random
import tempfile
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.formats.avro_schema import Type, WireSchema, is_recursive, is_vectorized, least_value
from airflow_kafka_offsets.formats.wire_format import UnreadableError, relisted

_NO_END = "it does not end where its schema says"

_OF_VALUES = "DataFusion error: Arrow error: "

_SYNC = b"kafka-offsets..."

# fastavro calls itself for values in values, on the stack of C, and a value that is nested too deep would end the
# process. One of so few bytes cannot be.
_SHALLOW_BYTES = 2_000


class AvroReader:
    """Reads values of a schema, as its `physical` type.

    :param kind: the schema
    :param columns: the fields to read, by their names `f0`, `f1` and so on; a type that is no record is `f0`
    """

    def __init__(self, kind: Type, columns: Sequence[str]) -> None:
        self._columns = {name: _field(kind, name) for name in dict.fromkeys(columns)}
        self._kind = kind
        self._is_recursive = is_recursive(kind)

    @cached_property
    def is_vectorized(self) -> bool:
        """Whether `read` can be used for the schema: it reads the least value of it, as `read_each` does."""
        if not is_vectorized(self._kind):
            return False
        value = pa.array([least_value(self._kind)], pa.binary())
        try:
            return self.read(value) == self.read_each(value)[0]
        except (UnreadableError, StagingError):
            return False

    def read(self, values: pa.Array) -> dict[str, pa.Array]:
        """Return the columns of values that are all readable.

        :param values: binary, without nulls
        :raises UnreadableError: one of them is not readable
        """
        numbers = pa.array(range(len(values)), pa.int64())
        markers = pc.bit_wise_xor(numbers, random.getrandbits(63))
        # The numbers have eight bytes each, which are seen as such.
        markers = pa.Array.from_buffers(pa.binary(8), len(values), [None, markers.buffers()[1]])
        table = _read_file(self._head + self._block(values, markers), ["marker", *self._in_file], len(values))
        if table.num_rows != len(values) or not table.column("marker").combine_chunks().equals(markers):
            raise UnreadableError(_NO_END)
        return {
            name: _physical(_chunk(table.column(name)), kind) if name in self._in_file else pa.nulls(len(values))
            for name, kind in self._columns.items()
        }

    def read_each(self, values: pa.Array) -> tuple[dict[str, pa.Array], dict[int, str]]:
        """Return the columns of the readable ones among values, and for each other one what is wrong with it."""
        rows: list[dict[str, Any]] = []
        wrong: dict[int, str] = {}
        for place, value in enumerate(values.to_pylist()):
            try:
                rows.append(self._read_single(value))
            except Exception as error:
                wrong[place] = _reason(error)
        try:
            return self._arrays(rows), wrong
        except (pa.ArrowException, OverflowError):
            # fastavro returns an int of more than 32 bits. Which values have one shows each alone.
            places = iter([place for place in range(len(values)) if place not in wrong])
            return self._arrays([row for row in rows if self._fits(row, next(places), wrong)]), wrong

    def _fits(self, row: dict[str, Any], place: int, wrong: dict[int, str]) -> bool:
        try:
            self._arrays([row])
        except (pa.ArrowException, OverflowError):
            wrong[place] = "an int has more than 32 bits"
        return place not in wrong

    def _arrays(self, rows: list[dict[str, Any]]) -> dict[str, pa.Array]:
        return {name: pa.array([row.get(name) for row in rows], kind.physical) for name, kind in self._columns.items()}

    def _read_single(self, value: bytes) -> dict[str, Any]:
        import fastavro

        read = fastavro.schemaless_reader
        if self._is_recursive and len(value) > _SHALLOW_BYTES:
            # The same in Python, which has a limit of its own for functions that call themselves.
            from fastavro._read_py import schemaless_reader as read

        def whole(text_errors: str) -> dict[str, Any]:
            stream = io.BytesIO(value)
            row: Any = read(stream, self._parsed, None, handle_unicode_errors=text_errors)
            if rest := len(value) - stream.tell():
                raise UnreadableError(f"{rest} bytes follow it")
            return cast("dict[str, Any]", row)

        try:
            return whole("strict")
        except UnicodeDecodeError:
            # The vectorized reader does not look into fields that are no columns. What is no text differs if it is
            # replaced or left out.
            replaced, left_out = whole("replace"), whole("ignore")
            if any(repr(replaced.get(name)) != repr(left_out.get(name)) for name in self._columns):
                raise
            return replaced

    @cached_property
    def _in_file(self) -> list[str]:
        return [name for name, kind in self._columns.items() if kind.kind != "null"]

    @cached_property
    def _fields(self) -> list[dict[str, Any]]:
        if self._kind.kind == "record":
            return WireSchema().fields(self._kind)
        return [{"name": "f0", "type": WireSchema().of(self._kind)}]

    @cached_property
    def _parsed(self) -> Any:
        import fastavro

        if self._kind.kind == "record":
            return fastavro.parse_schema(WireSchema().of(self._kind))
        return fastavro.parse_schema({"type": "record", "name": "value", "fields": self._fields})

    @cached_property
    def _head(self) -> bytes:
        marker = {"name": "marker", "type": {"type": "fixed", "name": "marker", "size": 8}}
        fields = [*self._fields, marker]
        schema = json.dumps({"type": "record", "name": "value", "fields": fields}).encode()
        entries = _bytes(b"avro.schema") + _bytes(schema) + _bytes(b"avro.codec") + _bytes(b"null")
        return b"Obj\x01" + _long(2) + entries + _long(0) + _SYNC

    def _block(self, values: pa.Array, markers: pa.Array) -> bytes:
        joined = pc.binary_join_element_wise(values, markers.cast(pa.binary()), b"")
        data = memoryview(joined.buffers()[2]) if len(joined) else memoryview(b"")
        return b"".join([_long(len(values)), _long(len(data)), data, _SYNC])


def _reason(error: Exception) -> str:
    """Return the reason for what fastavro stumbles over, without its own text, which could hold values."""
    if isinstance(error, UnreadableError):
        return str(error)
    if isinstance(error, IndexError):
        return "it has a branch of a union that does not exist"
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return "it holds text that is not UTF-8" if isinstance(error, UnicodeDecodeError) else _NO_END


def _field(kind: Type, name: str) -> Type:
    return kind.fields[int(name[1:])].type if kind.kind == "record" else kind


def _long(number: int) -> bytes:
    """Return a number that is not negative as Avro writes it."""
    number <<= 1
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    return bytes([*written, number])


def _bytes(value: bytes) -> bytes:
    return _long(len(value)) + value


@cache
def _context() -> Any:
    from datafusion import SessionConfig, SessionContext

    # One partition keeps the order of the values; the process has one core of Spark's.
    return SessionContext(SessionConfig().with_target_partitions(1).with_batch_size(1 << 16))


def _read_file(content: bytes, columns: list[str], count: int) -> pa.Table:
    """Read a file.

    The reader waits forever where bytes of a block are left after its last value. It does not look for them where a
    batch is full.
    """
    _context().sql(f"SET datafusion.execution.batch_size = {count}").collect()
    with tempfile.NamedTemporaryFile(prefix="kafka-offsets-", suffix=".avro") as file:
        file.write(content)
        file.flush()
        try:
            batches = _context().read_avro(file.name).select(*columns).limit(count).collect()
        except BaseException as error:
            # A panic of Rust code is no Exception. Whatever has another cause than the values must not make records
            # bad.
            if type(error).__name__ == "PanicException" or str(error).startswith(_OF_VALUES):
                raise UnreadableError(_NO_END) from None
            if not isinstance(error, Exception):
                raise
            raise StagingError(f"The reader of Avro failed: {shortened(str(error))}") from error
    return pa.Table.from_batches(batches) if batches else pa.table({name: pa.array([], pa.null()) for name in columns})


def _chunk(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def _physical(array: pa.Array, kind: Type) -> pa.Array:
    """Return what the vectorized reader returned as the physical type."""
    wanted: Any = kind.physical
    if array.type == wanted:
        return array
    if kind.kind == "union":
        return _physical(array, kind.branches[0])
    if kind.kind in ("array", "map"):
        items = array.flatten()
        if kind.kind == "map":
            key, value = items.flatten()
            items = pa.StructArray.from_arrays([key, _physical(value, kind.parts[0])], fields=list(wanted.value_type))
        else:
            items = _physical(items, kind.parts[0])
        return relisted(array, items, wanted)
    if kind.kind == "record":
        found = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        children = [
            _physical(found[name], part.type) if name in found else pa.nulls(len(array))
            for name, part in ((f"f{place}", part) for place, part in enumerate(kind.fields))
        ]
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=array.is_null())
    return array.cast(wanted)
