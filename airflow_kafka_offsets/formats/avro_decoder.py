"""The decoder of the format Avro: the values of one writer's schema, as the declared columns.

What is quick reads files, whose blocks hold values without anything between them. So each value is followed by a
marker, for which the schema of the file has a field: a value that ends too early or too late shows by its marker, and
shifts no other unnoticed.
"""

from __future__ import annotations

import io
import json
import random
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.bisection import Failure, Run, split_at_failures
from airflow_kafka_offsets.formats.avro_columns import (
    constant,
    converted,
    empty_values,
    fields_with_values,
    read_fields,
    sources,
)
from airflow_kafka_offsets.formats.avro_schema import (
    Type,
    WireSchema,
    as_record,
    has_blocks,
    has_endless_lists,
    has_endless_objects,
    is_recursive,
    is_vectorized,
    least_value,
)
from airflow_kafka_offsets.formats.record_format import SchemaError
from airflow_kafka_offsets.formats.room import most_bytes
from airflow_kafka_offsets.formats.wire_format import TwoReaders, UnreadableError, ValueReader, refusals

_NO_END = "it does not end where its schema says"

_OF_VALUES = "DataFusion error: Arrow error: "

_SYNC = b"kafka-offsets..."

# fastavro calls itself for values in values, on the stack of C, and a value that is nested too deep would end the
# process. One of so few bytes cannot be.
_SHALLOW_BYTES = 2_000

# The quick reader would take a hundred times as long for a single value of at most so many.
_SHORT_BYTES = 10_000

# How the branch -2 of a union begins: fastavro in C counts it from the end, so that it is the first one of two.
_FROM_THE_END = (b"\x03", b"\x83")

# What no type is called, and how many negative branches a byte can name.
_NO_BRANCH = "no branch"
_NEGATIVE_BRANCHES = 64

# Of fields that are no columns, in fields that are read: the quick reader gives nulls room for them.
_MOST_UNREAD_BYTES = 32 << 20


class AvroReader(ValueReader):
    """Reads fields of a record, by the names `f0`, `f1` and so on.

    :param columns: what is read of them, see `read_type`
    """

    def __init__(self, kind: Type, columns: pa.StructType) -> None:
        self._columns = {field.name: field.type for field in columns}
        unread = (field.type for place, field in enumerate(kind.fields) if f"f{place}" not in self._columns)
        # Of a field that is no column, the quick reader skips blocks of items by their size, whatever they hold.
        self.alike = -1 if any(map(has_blocks, unread)) else _SHORT_BYTES
        # The quick reader reads fields whole.
        whole = pa.struct([(name, kind.fields[int(name[1:])].type.physical) for name in self._columns])
        self._read_types = (whole, columns)
        self._kind = kind
        self._is_recursive = is_recursive(kind)

    def certain_values(self) -> list[bytes]:
        return [least_value(self._kind)] if is_vectorized(self._kind) else []

    def read(self, values: pa.Array) -> dict[str, pa.Array]:
        read, needed = (most_bytes(kind, len(values), values.nbytes) for kind in self._read_types)
        if read - needed > _MOST_UNREAD_BYTES:
            raise UnreadableError("its nulls have too many fields")
        numbers = pa.array(range(len(values)), pa.int64())
        markers = pc.bit_wise_xor(numbers, random.getrandbits(63))
        # The numbers have eight bytes each, which are seen as such.
        markers = pa.Array.from_buffers(pa.binary(8), len(values), [None, markers.buffers()[1]])
        table = _read_file(self._head + self._block(values, markers), ["marker", *self._columns], len(values))
        if table.num_rows != len(values) or not table.column("marker").combine_chunks().equals(markers):
            raise UnreadableError(_NO_END)
        return {name: _chunk(table.column(name)).cast(kind) for name, kind in self._columns.items()}

    def read_each(self, values: pa.Array) -> tuple[dict[str, pa.Array], dict[int, str]]:
        rows: list[dict[str, Any]] = []
        places: list[int] = []
        wrong: dict[int, str] = {}
        for place, value in enumerate(values.to_pylist()):
            try:
                row = self._read_single(value)
            except MemoryError:
                raise
            except Exception as error:
                wrong[place] = ", ".join([_reason(error), *getattr(error, "__notes__", [])])
            else:
                rows.append({name: row[name] for name in self._columns})
                places.append(place)
        parts = [*split_at_failures(len(rows), lambda first, end: self._arrays(rows[first:end]), UnreadableError)]
        wrong |= {places[part.position]: str(part.error) for part in parts if isinstance(part, Failure)}
        found = [self._arrays([]), *(part.result for part in parts if isinstance(part, Run))]
        return {name: pa.concat_arrays([arrays[name] for arrays in found]) for name in self._columns}, wrong

    def _arrays(self, rows: list[dict[str, Any]]) -> dict[str, pa.Array]:
        try:
            return {name: pa.array([row[name] for row in rows], kind) for name, kind in self._columns.items()}
        except (pa.ArrowException, OverflowError):
            # fastavro returns numbers of more bits.
            raise UnreadableError("an int has more than 32 bits, or a long more than 64") from None

    def _read_single(self, value: bytes) -> dict[str, Any]:
        import fastavro
        from fastavro._read_py import schemaless_reader

        if self._is_recursive and len(value) > _SHALLOW_BYTES:
            # The same in Python, which has a separate limit for functions that call themselves.
            return self._read_by(schemaless_reader, self._parsed, value)
        like_quick = self._of_any_branch if len(value) <= _SHORT_BYTES else None
        if like_quick is not None and any(start in value for start in _FROM_THE_END):
            with suppress(Exception):
                return self._read_by(schemaless_reader, like_quick, value)
            like_quick = None  # it does not read the value
        try:
            return self._read_by(fastavro.schemaless_reader, self._parsed, value)
        except Exception:
            if like_quick is not None:
                with suppress(Exception):
                    return self._read_by(schemaless_reader, like_quick, value)
            raise

    def _read_by(self, read: Callable[..., Any], schema: Any, value: bytes) -> dict[str, Any]:
        def whole(text_errors: str) -> dict[str, Any]:
            stream = io.BytesIO(value)
            try:
                row: Any = read(stream, schema, None, handle_unicode_errors=text_errors)
                if rest := len(value) - stream.tell():
                    raise UnreadableError(f"{rest} bytes follow it")
            except Exception as error:
                error.add_note(f"at byte {stream.tell():,} of {len(value):,}")
                raise
            return cast("dict[str, Any]", row)

        try:
            return whole("strict")
        except UnicodeDecodeError:
            # The vectorized reader does not look into fields without a column. What is no text differs if it is
            # replaced or left out.
            replaced, left_out = whole("replace"), whole("ignore")
            if any(repr(replaced[name]) != repr(left_out[name]) for name in self._columns):
                raise
            return replaced

    @cached_property
    def _parsed(self) -> Any:
        import fastavro

        parsed = fastavro.parse_schema(WireSchema().record(self._kind))
        return parsed if is_vectorized(self._kind) else _with_unions(parsed, _without_negative)

    @cached_property
    def _of_any_branch(self) -> Any:
        """The schema as the quick reader reads it; None where it does not."""
        return _with_unions(deepcopy(self._parsed), _Branches) if is_vectorized(self._kind) else None

    @cached_property
    def _head(self) -> bytes:
        marker = {"name": "marker", "type": {"type": "fixed", "name": "marker", "size": 8}}
        fields = [*WireSchema().fields(self._kind), marker]
        schema = json.dumps({"type": "record", "name": "value", "fields": fields}).encode()
        entries = _bytes(b"avro.schema") + _bytes(schema) + _bytes(b"avro.codec") + _bytes(b"null")
        return b"Obj\x01" + _long(2) + entries + _long(0) + _SYNC

    def _block(self, values: pa.Array, markers: pa.Array) -> bytes:
        joined = pc.binary_join_element_wise(values, markers.cast(pa.binary()), b"")
        data = memoryview(joined.buffers()[2]) if len(joined) else memoryview(b"")
        return b"".join([_long(len(values)), _long(len(data)), data, _SYNC])


class _BytesReader(ValueReader):
    """Reads values of a schema that is `bytes` alone as Confluent's clients write them: without a length."""

    def certain_values(self) -> list[bytes]:
        return [b""]

    def read(self, values: pa.Array) -> dict[str, pa.Array]:
        return {"f0": values}

    def read_each(self, values: pa.Array) -> tuple[dict[str, pa.Array], dict[int, str]]:
        return self.read(values), {}


class _Branches(list[Any]):
    """A union of null and another type as the quick reader takes it: whatever is not its first branch is the second.
    Only fastavro's reader in Python asks this.
    """

    def __getitem__(self, place: Any) -> Any:
        return list.__getitem__(self, int(place != 0))


def _without_negative(union: list[Any]) -> list[Any]:
    """Return a union with types that do not exist at its end, from where fastavro counts negative branches. One that
    goes beyond them, in two bytes or more, is the branch that it is counted to.
    """
    return union + [_NO_BRANCH] * _NEGATIVE_BRANCHES


def _with_unions(schema: Any, changed: Callable[[list[Any]], list[Any]]) -> Any:
    """Change the unions of a parsed schema."""
    if isinstance(schema, list):
        return changed([_with_unions(branch, changed) for branch in schema])
    if isinstance(schema, dict):
        for part in schema.get("fields", ()):
            part["type"] = _with_unions(part["type"], changed)
        schema |= {key: _with_unions(schema[key], changed) for key in ("type", "items", "values") if key in schema}
    return schema


def _reason(error: Exception) -> str:
    """Return the reason for what fastavro stumbles over, without its own text, which could hold values."""
    if isinstance(error, UnreadableError):
        return str(error)
    # A KeyError is about a type that does not exist, an IndexError also about a number whose bytes end.
    if isinstance(error, (IndexError, KeyError)):
        return "it ends within a number, or has a branch of a union that does not exist"
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return "it holds text that is not UTF-8" if isinstance(error, UnicodeDecodeError) else _NO_END


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
    with _file(content) as path, refusals("Avro", _NO_END, lambda error: str(error).startswith(_OF_VALUES)):
        batches = _context().read_avro(path).select(*columns).limit(count).collect()
    return pa.Table.from_batches(batches) if batches else pa.table({name: pa.array([], pa.null()) for name in columns})


@contextmanager
def _file(content: bytes) -> Iterator[str]:
    """Yield the path of a file: a link to one without a name, which is gone if the process is killed."""
    # The reader remembers files by their paths.
    path = Path(tempfile.gettempdir(), f"kafka-offsets-{uuid.uuid4().hex}.avro")
    with tempfile.TemporaryFile(prefix="kafka-offsets-") as file:
        file.write(content)
        file.flush()
        path.symlink_to(f"/dev/fd/{file.fileno()}")
        try:
            yield str(path)
        finally:
            path.unlink()


def _chunk(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


class AvroDecoder(TwoReaders):
    """Decodes the values of one writer's schema.

    :param columns: the declared columns
    :param reader: the reader's schema, with aliases and defaults, if there is one
    :param of_registry: whether values are written by clients of a registry

    :raises SchemaError: no value of the schema can become the columns
    """

    def __init__(self, kind: Type, columns: pa.Schema, reader: Type | None, *, of_registry: bool = False) -> None:
        if has_endless_lists(kind):
            raise SchemaError(
                "its schema has an array whose items take no bytes, so a few bytes could hold any number of items"
            )
        if has_endless_objects(kind):
            raise SchemaError(
                "its schema has records of one field in one another, and in themselves: a byte would be many objects"
            )
        if kind.kind != "record" and len(columns) != 1:
            raise SchemaError(
                f"its schema is of the type {kind.kind}, which is one column, but {len(columns)} are declared"
            )
        is_resolved = reader is not None and reader.kind == kind.kind == "record"
        self._record = as_record(kind, columns.names[0])
        self._sources = sources(columns, self._record, reader if is_resolved else None)
        places = {place for _, place, _ in self._sources if place is not None}
        for field, place, _ in self._sources:
            if place is not None and self._record.fields[place].type.physical is None:
                raise SchemaError(f"column {field.name!r}: it is recursive, which no column can be")
        read = {self._record.fields[place].name for place in places}
        unread = [part.name for part in fields_with_values(self._record) if part.name not in read]
        is_plain = of_registry and kind.kind == "bytes" and kind.logical is None
        fields = read_fields(self._record, columns, reader if is_resolved else None)
        super().__init__(columns, _BytesReader() if is_plain else AvroReader(self._record, fields), unread, kind.types)
        # Types that do not fit are found without values.
        self.rows({field.name: pa.array([], field.type) for field in fields}, 0)

    def column(self, place: int, found: Mapping[str, pa.Array], count: int) -> pa.Array:
        field, written_at, part = self._sources[place]
        if written_at is None:
            return constant(field.type, part, count)
        kind = self._record.fields[written_at].type
        values = empty_values(kind, count) if kind.is_empty else found[f"f{written_at}"]
        return converted(values, kind, field.type, part.type if part is not None else None)
