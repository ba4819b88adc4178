"""The columns of a JSON Schema: https://json-schema.org/understanding-json-schema

Columns are taken from types and formats. What restricts values (minimum, pattern, required, …) says nothing of columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.formats.record_format import SchemaError
from airflow_kafka_offsets.formats.schema_limits import Budget, check_name, check_size, check_text
from airflow_kafka_offsets.formats.schema_registry import RegisteredSchema

_SCALARS = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_(), "string": pa.string()}

_FORMATS = {"date": pa.date32(), "date-time": pa.timestamp("us", "UTC")}

# So many values of an enum, or types that are listed, count as one type: to look at a value takes little.
_LISTED_AS_ONE = 100

# Those that may add properties to the ones of the records; the others only restrict them. Some are of older drafts.
_ADDING = (
    *("allOf", "anyOf", "oneOf", "then", "else", "dependentSchemas", "patternProperties"),
    *("$dynamicRef", "$recursiveRef", "dependencies", "extends"),
)

# Which columns come of several schemas is for a person to say.
_COMBINED = ("if", "not", "prefixItems", *(word for word in _ADDING if word not in ("anyOf", "oneOf")))

# Whose schemas each have a name.
_NAMED = ("dependentSchemas", "dependencies")

_RESTRICTING = {"required", "properties", "minProperties", "maxProperties", "not", "type", "title", "description"}


class _Place(NamedTuple):
    """A schema, and where it is.

    :param document: that it is a part of, to which its references refer
    :param path: of the property, for messages
    :param budget: of all places
    :param within: the references that lead to it
    :param depth: the number of schemas that it is in
    """

    schema: Any
    document: Any
    path: str
    budget: Budget
    within: tuple[str, ...] = ()
    depth: int = 0

    def inner(self, schema: Any, name: str = "") -> _Place:
        self.budget.take(self.depth)
        return self._replace(schema=schema, path=".".join(filter(None, (self.path, name))), depth=self.depth + 1)


def columns_of(registered: RegisteredSchema) -> pa.Schema:
    """Return the columns of the properties of an object. All are nullable: the values of tombstones are null.

    :raises SchemaError: a property has no column; the message names it
    """
    place, documents = _object(registered)
    return pa.schema(_fields(place._replace(budget=Budget()), documents))


def property_names(registered: RegisteredSchema) -> list[str]:
    """Return the names of the properties of an object.

    :raises SchemaError: it is not an object
    """
    place, _ = _object(registered)
    check_size(len(place.schema["properties"]), 0)
    return list(map(check_name, place.schema["properties"]))


def property_type(registered: RegisteredSchema, name: str, budget: Budget) -> pa.DataType:
    """Return the type of the column of a property.

    :param budget: of all properties
    :raises SchemaError: no column can have it
    """
    place, documents = _object(registered)
    return _type(place._replace(budget=budget).inner(place.schema["properties"][name], name), documents)


# A parsed document is many times as large as its text.
@lru_cache(1)
def _object(registered: RegisteredSchema) -> tuple[_Place, Mapping[str, Any]]:
    documents = {reference.name: _parsed(reference.text) for reference in registered.references}
    document = _parsed(registered.text)
    place = _resolved(_Place(document, document, "", Budget()), documents)
    if not isinstance(place.schema, dict) or not isinstance(place.schema.get("properties"), dict):
        raise SchemaError("it is not an object with properties")
    for word in _applied(place.schema, _ADDING):
        if not all(_restricts(part, place) for part in _listed(place.schema[word], word)):
            raise _undecided(place, f"has {word!r} beside 'properties'")
    return place, documents


def _applied(schema: Mapping[str, Any], words: Iterable[str]) -> list[str]:
    """Return those of some words that a schema has, and that say more of its values than which properties they have."""
    return [word for word in words if word in schema and (word not in _NAMED or _listed(schema[word], word))]


def _listed(parts: Any, word: str) -> list[Any]:
    """Return the schemas that a word has."""
    if word in _NAMED and isinstance(parts, dict):
        # A list has the names of properties that are needed.
        return [part for part in parts.values() if not isinstance(part, list)]
    return parts if isinstance(parts, list) else [parts]


def _restricts(part: Any, place: _Place) -> bool:
    """Return whether a part of a schema adds no property to those that it has."""
    if not isinstance(part, dict) or not _RESTRICTING.issuperset(part):
        return False
    named = part.get("properties", {})
    return isinstance(named, dict) and named.keys() <= place.schema["properties"].keys()


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise SchemaError("it is not JSON") from None


def _fields(place: _Place, documents: Mapping[str, Any]) -> list[pa.Field]:
    properties = place.schema["properties"]
    if not properties:
        raise SchemaError(f"{_name(place)} is an object without properties; declare the columns")
    return [
        pa.field(check_name(name), _type(place.inner(schema, name), documents)) for name, schema in properties.items()
    ]


def _type(place: _Place, documents: Mapping[str, Any]) -> pa.DataType:
    place = _resolved(place, documents)
    schema = place.schema
    if not isinstance(schema, dict):
        raise _undecided(place, "may be anything")
    # Each is looked at wherever it is used.
    listed = [schema[word] for word in ("type", "enum", "oneOf", "anyOf") if isinstance(schema.get(word), list)]
    place.budget.take(place.depth, sum(map(len, listed)) // _LISTED_AS_ONE)
    if combined := _applied(schema, _COMBINED):
        raise _undecided(place, f"has {combined[0]!r}")
    for word in ("oneOf", "anyOf"):
        if word in schema:
            if beside := [other for other in ("anyOf", "properties", "items") if other in schema and other != word]:
                raise _undecided(place, f"has {word!r} beside {beside[0]!r}")
            return _type(place.inner(_only(place, schema[word], word)), documents)
    kind = _kind(place)
    if kind == "object" and isinstance(schema.get("properties"), dict):
        return pa.struct(_fields(place, documents))
    if kind == "array" and isinstance(schema.get("items"), dict):
        return pa.list_(_type(place.inner(schema["items"]), documents))
    if kind == "string":
        return _FORMATS.get(str(schema.get("format")), pa.string())
    if kind not in _SCALARS:
        what = {None: "has no type", "object": "is an object without properties", "array": "is an array without items"}
        raise _undecided(place, what.get(kind, f"has the type {kind}"))
    return _SCALARS[kind]


def _kind(place: _Place) -> str | None:
    """Return the only type of a schema that is not null; None where it has none."""
    kind = place.schema.get("type")
    if isinstance(kind, list):
        kinds = [name for name in kind if name != "null"]
        if len(kinds) != 1:
            raise _undecided(place, f"has the types {', '.join(map(str, kind))}")
        (kind,) = kinds
    if kind is not None and not isinstance(kind, str):
        raise _undecided(place, "has a type that is not a name")
    values = place.schema.get("enum")
    if kind is None and isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return "string"
    return kind


def _only(place: _Place, schemas: Any, word: str) -> Any:
    """Return the schema of several that is not null."""
    found = [schema for schema in schemas if schema != {"type": "null"}] if isinstance(schemas, list) else []
    if len(found) != 1:
        raise _undecided(place, f"has {word!r} with {len(found)} types")
    return found[0]


def _resolved(place: _Place, documents: Mapping[str, Any]) -> _Place:
    """Return what a schema refers to."""
    while isinstance(place.schema, dict) and "$ref" in place.schema:
        # By the later drafts both are true of a value, by the earlier ones what is beside says nothing.
        if beside := _applied(place.schema, ("properties", "items", "prefixItems", *_ADDING)):
            raise _undecided(place, f"has '$ref' beside {beside[0]!r}")
        reference = check_text(str(place.schema["$ref"]))
        name, _, fragment = reference.partition("#")
        # Two documents may use the same reference for things of their own.
        mark = f"{id(place.document)} {reference}"
        if mark in place.within:
            raise _undecided(place, "is recursive")
        document = place.document if not name else _document(name, documents, place)
        place = place.inner(_at(document, fragment, place))._replace(document=document, within=(*place.within, mark))
    return place


def _document(name: str, documents: Mapping[str, Any], place: _Place) -> Any:
    if name not in documents:
        raise _undecided(place, f"refers to {name!r}, which the registry does not list among the references")
    return documents[name]


def _at(document: Any, fragment: str, place: _Place) -> Any:
    """Return what a JSON pointer leads to."""
    if fragment and not fragment.startswith("/"):
        raise _undecided(place, f"refers to the anchor '#{fragment}', and only '#/…' is followed")
    found = document
    for part in unquote(fragment).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(key)] if isinstance(found, list) else found[key]
        except (KeyError, IndexError, TypeError, ValueError):
            raise _undecided(place, f"refers to '#{fragment}', which is not in the schema") from None
    return found


def _name(place: _Place) -> str:
    return f"property {shortened(place.path)!r}" if place.path else "the schema"


def _undecided(place: _Place, what: str) -> SchemaError:
    return SchemaError(f"{_name(place)} {shortened(what)}; declare the columns")
