"""Avro schemas as trees of types, and the forms in which readers get them.

A schema is text from a registry or a DAG file: https://avro.apache.org/docs/1.12.0/specification/
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from airflow_kafka_offsets.formats.record_format import SchemaError
from airflow_kafka_offsets.formats.schema_limits import check_name, check_size, check_text

_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")

_PHYSICAL = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "fixed": pa.binary(),
    "enum": pa.int32(),
}

# More than any record of Kafka has.
_MOST_VALUE_BYTES = 1 << 24

# The time of the vectorized reader grows with the square of the types.
_MOST_VECTORIZED = 1_000

# Records of one field in one another that are read as objects.
_MOST_WRAPPERS = 3

LARGEST_VECTORIZED = 64
"""The size of fixed types that are read together: in Arrow a null takes as much room as a value."""


class Field(NamedTuple):
    """A field of a record.

    :param default: as in JSON; only if `has_default`
    """

    name: str
    type: Type
    aliases: tuple[str, ...] = ()
    has_default: bool = False
    default: Any = None


@dataclass(frozen=True)
class Type:
    """A type of a schema.

    :param kind: `null`, `boolean`, `int`, `long`, `float`, `double`, `bytes`, `string`, `fixed`, `enum`, `record`,
        `array`, `map`, `union`, or `recursive`
    :param logical: the logical type, where it fits; `decimal` has a precision and a scale
    :param name: of a record, an enum or a fixed type, with its namespace; of `recursive`, the record that the type is a
        part of
    :param aliases: of a record, an enum or a fixed type, with their namespaces
    :param fields: of a record
    :param symbols: of an enum
    :param parts: the items of an array, the values of a map, the branches of a union
    """

    kind: str
    logical: str | None = None
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    symbols: tuple[str, ...] = ()
    parts: tuple[Type, ...] = ()
    size: int = 0
    precision: int = 0
    scale: int = 0

    @property
    def branches(self) -> tuple[Type, ...]:
        """The branches of a union but null; of another type, the type itself."""
        return tuple(part for part in self.parts if part.kind != "null") if self.kind == "union" else (self,)

    @cached_property
    def types(self) -> int:
        """The number of its types, each counted as often as it is used."""
        return 1 + sum(part.types for part in self.inner)

    @cached_property
    def depth(self) -> int:
        """How deep its types are nested."""
        return 1 + max((part.depth for part in self.inner), default=0)

    @property
    def inner(self) -> tuple[Type, ...]:
        """The types that it has."""
        return self.parts + tuple(part.type for part in self.fields)

    @cached_property
    def bytes(self) -> int:
        """The least number of bytes that a value takes."""
        if self.kind in ("null", "recursive"):
            return 0
        if self.kind == "record":
            return sum(part.type.bytes for part in self.fields)
        return {"float": 4, "double": 8, "fixed": self.size}.get(self.kind, 1)

    @cached_property
    def is_empty(self) -> bool:
        """Whether a value takes no bytes. No reader gets such fields, of which a byte could have thousands."""
        if self.kind == "record":
            return all(part.type.is_empty for part in self.fields)
        return self.kind == "null" or (self.kind == "fixed" and self.size == 0)

    @cached_property
    def only(self) -> Type | None:
        """The type that a record is read as: that of its only field with bytes, if its values are never null. A reader
        of single values would make an object of each of 60 records in one another, which are a byte.
        """
        kinds = [part.type for part in self.fields if not part.type.is_empty]
        is_other = len(kinds) != 1 or kinds[0].kind == "union" or is_recursive(self)
        return None if is_other else kinds[0]

    @property
    def physical_fields(self) -> pa.StructType:
        """What the fields of a record are read as, by the names `f0`, `f1` and so on."""
        kinds = {f"f{place}": part.type.physical for place, part in enumerate(self.fields) if not part.type.is_empty}
        return pa.struct([(name, kind) for name, kind in kinds.items() if kind is not None])

    @cached_property
    def physical(self) -> pa.DataType | None:
        """What both readers return values as; None where the type is recursive, or has a part that is."""
        if self.kind in _PHYSICAL:
            return _PHYSICAL[self.kind]
        if self.kind == "record":
            return self.physical_fields if self.only is None else self.only.physical
        parts = [part.physical for part in (self.branches if self.kind == "union" else self.parts)]
        if self.kind == "recursive" or None in parts:
            return None
        if self.kind == "array":
            return pa.list_(parts[0])
        if self.kind == "map":
            return pa.list_(pa.struct([("key", pa.string()), ("value", parts[0])]))
        if len(parts) == 1:
            return parts[0]
        return pa.struct([(f"member{i}", part) for i, part in enumerate(parts)]) if parts else pa.null()


def parse(text: str, references: Sequence[str] = ()) -> Type:
    """Return the type that a schema describes.

    :param references: schemas that define names which it uses, those that others use first
    :raises SchemaError: it is not a schema, or too large
    """
    parser = _Parser()
    try:
        for reference in references:
            parser.type(json.loads(reference), "")
        return parser.type(json.loads(text), "")
    except SchemaError:
        raise
    except json.JSONDecodeError as error:
        raise SchemaError(f"it is not JSON: {error}") from None
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError) as error:
        raise SchemaError(f"it is malformed: {type(error).__name__} {error}") from None


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, Type] = {}
        self._depth = 0

    def type(self, schema: Any, namespace: str) -> Type:
        self._depth += 1
        check_size(0, self._depth)
        found = self._type(schema, namespace)
        self._depth -= 1
        check_size(found.types, found.depth)
        if found.bytes > _MOST_VALUE_BYTES:
            raise SchemaError(f"a value of it has more than {_MOST_VALUE_BYTES:,} bytes")
        return found

    def _type(self, schema: Any, namespace: str) -> Type:
        if isinstance(schema, str):
            return Type(schema) if schema in _PRIMITIVES else self._use(schema, namespace)
        if isinstance(schema, list):
            if not schema:
                raise SchemaError("a union has no branch")
            return Type("union", parts=tuple(self.type(branch, namespace) for branch in schema))
        return self._object(schema, namespace)

    def _use(self, name: str, namespace: str) -> Type:
        found = self._named.get(_full(name, namespace)) or self._named.get(name)
        if found is None:
            raise SchemaError(f"the type {name!r} is not defined")
        return found

    def _object(self, schema: Mapping[str, Any], namespace: str) -> Type:
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._define(schema, namespace)
        if kind == "array":
            return Type("array", parts=(self.type(schema["items"], namespace),))
        if kind == "map":
            return Type("map", parts=(self.type(schema["values"], namespace),))
        if kind in _PRIMITIVES:
            return _with_logical(Type(kind), schema)
        return self.type(kind, namespace)

    def _define(self, schema: Mapping[str, Any], namespace: str) -> Type:
        kind, name = schema["type"], schema["name"]
        namespace = name.rpartition(".")[0] if "." in name else schema.get("namespace", namespace) or ""
        name = check_name(_full(name, namespace))
        aliases = tuple(_full(str(alias), namespace) for alias in schema.get("aliases", ()))
        if kind == "enum":
            symbols = schema["symbols"]
            check_size(len(symbols), 0, what="symbols in an enum")
            made = Type("enum", name=name, symbols=tuple(check_text(str(symbol)) for symbol in symbols))
        elif kind == "fixed":
            size = int(schema["size"])
            if size < 0:
                raise SchemaError(f"the fixed type {name!r} has a negative size")
            made = _with_logical(Type("fixed", name=name, size=size), schema)
        else:
            self._named[name] = Type("recursive", name=name)
            fields = tuple(self._field(part, namespace) for part in schema["fields"])
            if len({part.name for part in fields}) < len(fields):
                raise SchemaError(f"two fields of the record {name!r} have the same name")
            made = Type("record", name=name, fields=fields)
        self._named[name] = made = replace(made, aliases=aliases)
        return made

    def _field(self, schema: Mapping[str, Any], namespace: str) -> Field:
        aliases = tuple(map(str, schema.get("aliases", ())))
        kind = self.type(schema["type"], namespace)
        check_text(json.dumps(schema.get("default")))
        return Field(check_name(str(schema["name"])), kind, aliases, "default" in schema, schema.get("default"))


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


TIMESTAMP_UNITS = ("millis", "micros", "nanos")

_LOGICAL = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    **{f"{local}timestamp-{unit}": "long" for local in ("", "local-") for unit in TIMESTAMP_UNITS},
}


def _with_logical(kind: Type, schema: Mapping[str, Any]) -> Type:
    """Return a type with its logical type; one that does not fit is ignored, as Avro says."""
    logical = schema.get("logicalType")
    if logical == "decimal" and kind.kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= 76 and precision > 0:
            return replace(kind, logical="decimal", precision=precision, scale=scale)
    is_uuid = logical == "uuid" and (kind.kind == "string" or (kind.kind == "fixed" and kind.size == 16))
    if isinstance(logical, str) and (is_uuid or _LOGICAL.get(logical) == kind.kind):
        return replace(kind, logical=logical)
    return kind


def as_record(kind: Type, column: str) -> Type:
    """Return a record that has the same bytes as a type: itself, or a record with a field of the type.

    :param column: the name of the field
    """
    return kind if kind.kind == "record" else Type("record", fields=(Field(column, kind),))


def is_recursive(kind: Type) -> bool:
    """Return whether a value of a type can hold another one of the same type."""
    return kind.kind == "recursive" or any(map(is_recursive, kind.inner))


def has_blocks(kind: Type) -> bool:
    """Return whether a type has arrays or maps, which are written in blocks that may begin with their size."""
    return kind.kind in ("array", "map") or any(map(has_blocks, kind.inner))


def has_endless_lists(kind: Type) -> bool:
    """Return whether a type has an array whose items take no bytes: a record of ten bytes could have a billion of
    them.
    """
    is_endless = kind.kind == "array" and kind.parts[0].kind != "recursive" and kind.parts[0].bytes == 0
    return is_endless or any(map(has_endless_lists, kind.inner))


def has_endless_objects(kind: Type) -> bool:
    """Return whether records of one field with bytes are in one another, which `Type.only` leaves, because they have
    themselves: each would be an object of Python, whose record has no byte.
    """
    inner, wrappers = kind, 0
    while inner.kind == "record" and inner.only is None and sum(not part.type.is_empty for part in inner.fields) == 1:
        inner, wrappers = next(part.type for part in inner.fields if not part.type.is_empty), wrappers + 1
    is_endless = wrappers > _MOST_WRAPPERS or (wrappers > 0 and inner.kind == "recursive")
    return is_endless or any(map(has_endless_objects, kind.inner))


def is_vectorized(kind: Type) -> bool:
    """Return whether the vectorized reader is certain of a type, and quick: it has no unions but of null and another
    type, and no recursion.
    """
    if kind.kind == "recursive" or kind.is_empty:
        return False
    if kind.kind == "union" and (len(kind.parts), len(kind.branches)) != (2, 1):
        return False
    if kind.types > _MOST_VECTORIZED or kind.size > LARGEST_VECTORIZED:
        return False
    fields = (part.type for part in kind.fields if not part.type.is_empty)
    return all(map(is_vectorized, fields)) and all(is_vectorized(part) for part in kind.parts if part.kind != "null")


def least_value(kind: Type) -> bytes:
    """Return a value of a type that is not recursive: zeros, which are also the first branches of unions and empty
    lists.
    """
    if kind.kind == "record":
        return b"".join(least_value(part.type) for part in kind.fields)
    if kind.kind == "union":
        return b"\0" + least_value(kind.parts[0])
    return bytes(kind.bytes)


class WireSchema:
    """A schema of which values have the same bytes as of another one, and which every reader reads as `Type.physical`.

    Names are made up, enums are numbers, maps are arrays of entries; logical types, fields without bytes, and records
    of a single other field are left out. A branch of a union of several types is a record of one field, which has no
    bytes: the value then says which branch it is.
    """

    def __init__(self) -> None:
        self._names = 0
        self._records: dict[str, str] = {}

    def of(self, kind: Type) -> Any:
        """Return the schema of a type as JSON."""
        if kind.kind == "enum":
            return "int"
        if kind.kind == "array":
            return {"type": "array", "items": self.of(kind.parts[0])}
        if kind.kind == "map":
            entry = [{"name": "key", "type": "string"}, {"name": "value", "type": self.of(kind.parts[0])}]
            return {"type": "array", "items": self._record(entry)}
        if kind.kind == "recursive":
            return self._records[kind.name]
        if kind.only is not None:
            return self.of(kind.only)
        if kind.kind == "record":
            return self.record(kind)
        if kind.kind == "union":
            return self._union(kind)
        return {"type": "fixed", "name": self._name(), "size": kind.size} if kind.kind == "fixed" else kind.kind

    def record(self, kind: Type) -> dict[str, Any]:
        """Return the schema of a record with its fields."""
        record = self._record([])
        self._records[kind.name] = record["name"]
        record["fields"] = self.fields(kind)
        return record

    def fields(self, kind: Type) -> list[dict[str, Any]]:
        """Return the fields of a record: `f0`, `f1` and so on."""
        return [
            {"name": f"f{place}", "type": self.of(part.type)}
            for place, part in enumerate(kind.fields)
            if not part.type.is_empty
        ]

    def _union(self, kind: Type) -> Any:
        branches = {place: self.of(part) for place, part in enumerate(kind.parts)}
        if len(kind.branches) > 1:
            known = [place for place, part in enumerate(kind.parts) if part.kind != "null"]
            for number, place in enumerate(known):
                branches[place] = self._record([{"name": f"member{number}", "type": branches[place]}])
        return list(branches.values())

    def _record(self, fields: list[dict[str, Any]]) -> dict[str, Any]:
        return {"type": "record", "name": self._name(), "fields": fields}

    def _name(self) -> str:
        self._names += 1
        return f"t{self._names}"
