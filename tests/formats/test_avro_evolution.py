"""Schemas that evolve: what any writer wrote becomes what fastavro reads with the reader's schema."""

from __future__ import annotations

import io
import json
from itertools import count
from typing import Any

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from tests.support.avro import decoded, encode, known, own_columns, wire
from tests.support.examples import examples

_PROMOTED = {
    "int": ["int", "long", "float", "double"],
    "long": ["long", "float", "double"],
    "float": ["float", "double"],
    "string": ["string", "bytes"],
}
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    # As a float a larger one is rounded.
    "int": st.integers(-(2**24), 2**24),
    "long": st.integers(-(2**24), 2**24),
    "float": st.floats(width=32),
    "double": st.floats(),
    "bytes": st.binary(max_size=5),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
}
_DEFAULTS: dict[str, Any] = {
    "boolean": True,
    "int": -1,
    "long": 2**40,
    "float": 0.5,
    "double": 1e300,
    "bytes": "\x00ÿ",
    "string": "é",
}


@st.composite
def _types(draw: st.DrawFn, names: count[int], depth: int = 0) -> tuple[Any, Any, st.SearchStrategy[Any]]:
    """A type of a writer, that of a reader, and values of the writer's."""
    shape = draw(st.sampled_from(["scalar"] * 3 + ["null", "array", "map", "record", "enum"][: 5 if depth < 3 else 0]))
    if shape == "scalar":
        kind = draw(st.sampled_from(sorted(_VALUES)))
        return kind, draw(st.sampled_from(_PROMOTED.get(kind, [kind]))), _VALUES[kind]
    if shape == "record":
        return draw(_records(names, depth + 1))
    if shape == "enum":
        schema = {"type": "enum", "name": f"e{next(names)}", "symbols": ["A", "B"]}
        return schema, schema | {"symbols": ["B", "C", "A"]}, st.sampled_from("AB")
    own, wanted, values = draw(_types(names, depth + 1))
    if shape == "array":
        return {"type": shape, "items": own}, {"type": shape, "items": wanted}, st.lists(values, max_size=3)
    if shape == "map":
        maps = st.dictionaries(_VALUES["string"], values, max_size=2)
        return {"type": shape, "values": own}, {"type": shape, "values": wanted}, maps
    if isinstance(own, list):
        return own, wanted, values
    optional = wanted if isinstance(wanted, list) else draw(st.permutations(["null", wanted]))
    if draw(st.booleans()):
        return own, optional, values
    return draw(st.permutations(["null", own])), optional, st.none() | values


@st.composite
def _records(draw: st.DrawFn, names: count[int], depth: int = 0) -> tuple[Any, Any, st.SearchStrategy[Any]]:
    """A record of a writer, and that of a reader with fields that are renamed, gone, new and in another order."""
    own, wanted, values = [], [], {}
    for _ in range(draw(st.integers(1, 4))):
        name = f"f{next(names)}"
        part, other, of_part = draw(_types(names, depth))
        own.append({"name": name, "type": part})
        values[name] = of_part
        if (fate := draw(st.sampled_from(["same", "same", "gone", "renamed"]))) == "renamed":
            wanted.append({"name": f"new_{name}", "type": other, "aliases": [name]})
        elif fate == "same":
            wanted.append({"name": name, "type": other})
    kind = draw(st.sampled_from(sorted(_DEFAULTS)))
    wanted.append({"name": f"g{next(names)}", "type": kind, "default": _DEFAULTS[kind]})
    record = {"type": "record", "name": f"r{next(names)}"}
    return record | {"fields": own}, record | {"fields": draw(st.permutations(wanted))}, st.fixed_dictionaries(values)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Any, Any, list[Any]]:
    own, wanted, values = draw(_records(count()))
    return own, wanted, draw(st.lists(values, min_size=1, max_size=4))


def as_column(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, list):
        return as_column(next(part for part in kind if part != "null"), value)
    if isinstance(kind, str) or kind["type"] == "enum":
        # fastavro returns the default of bytes as the text that stands for it.
        return value.encode("latin-1") if kind == "bytes" and isinstance(value, str) else value
    if kind["type"] == "record":
        return {part["name"]: as_column(part["type"], value[part["name"]]) for part in kind["fields"]}
    if kind["type"] == "array":
        return [as_column(kind["items"], item) for item in value]
    return [{"key": key, "value": as_column(kind["values"], item)} for key, item in value.items()]


@examples(600)
@given(case=_cases())
def test_a_value_becomes_what_fastavro_reads_with_the_readers_schema(case: tuple[Any, Any, list[Any]]) -> None:
    own, wanted, values = case
    data = [encode(json.loads(json.dumps(own)), value) for value in values]
    writer, reader = (fastavro.parse_schema(json.loads(json.dumps(schema))) for schema in (own, wanted))
    expected = [
        as_column(wanted, fastavro.schemaless_reader(io.BytesIO(datum), writer, reader, return_record_name=False))
        for datum in data
    ]

    rows, bad = decoded(known({1: own, 2: wanted}), [wire(1, datum) for datum in data])

    assert not bad
    assert list(map(repr, own_columns(rows))) == list(map(repr, expected))
