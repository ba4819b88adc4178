"""Unions of several types: each branch becomes the one that Avro's rules say, as fastavro resolves it."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import fastavro
import pytest
from fastavro.schema import SchemaParseException
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.formats.avro_format import Avro
from tests.support.avro import decoded, encode, known, own_columns, wire
from tests.support.examples import examples


def record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "id", "type": "int"}, *fields]}


CREATED, UPDATED = record("Created"), record("Updated", {"name": "note", "type": ["null", "string"], "default": None})
CANCELLED = record("Cancelled", {"name": "reason", "type": "string", "default": "none"})


def event(of_type: Any) -> dict[str, Any]:
    return {"type": "record", "name": "event", "fields": [{"name": "e", "type": of_type}]}


def read(written: Any, wanted: Any, value: Any, **options: Any) -> Any:
    """The column of a value; None of the record is bad."""
    rows, bad = decoded(
        known({1: event(written), 2: event(wanted)}, **options), [wire(1, encode(event(written), {"e": value}))]
    )
    return None if bad else own_columns(rows)[0]["e"]


@pytest.mark.parametrize(
    ("written", "wanted", "value", "expected"),
    [
        (
            ["null", CREATED, CANCELLED],
            ["null", CREATED, UPDATED, CANCELLED],
            ("Cancelled", {"id": 7, "reason": "x"}),
            {"member0": None, "member1": None, "member2": {"id": 7, "reason": "x"}},
        ),
        (
            [CREATED, UPDATED],
            [UPDATED, CREATED],
            ("Created", {"id": 7}),
            {"member0": None, "member1": {"id": 7}},
        ),
        (["string", "bytes"], ["bytes", "string"], b"x", {"member0": b"x", "member1": None}),
        (
            ["null", "int", "string"],
            ["null", "int", "boolean", "string"],
            "x",
            {"member0": None, "member1": None, "member2": "x"},
        ),
        ("int", ["int", "string"], 5, {"member0": 5, "member1": None}),
        ("int", ["long", "string"], 5, {"member0": 5, "member1": None}),
        (["null", "int"], ["null", "int", "string"], None, None),
        (
            [record("Cancelled"), "string"],
            [CANCELLED, "string"],
            {"id": 5},
            {"member0": {"id": 5, "reason": "none"}, "member1": None},
        ),
    ],
)
def test_a_branch_becomes_that_of_its_name_in_the_readers_union(
    written: Any, wanted: Any, value: Any, expected: Any
) -> None:
    assert read(written, wanted, value) == expected


OLD = {"type": "record", "name": "Old", "fields": [{"name": "old", "type": "int"}]}
NEW = {
    "type": "record",
    "name": "New",
    "fields": [
        {"name": "new", "type": "int", "aliases": ["old"]},
        {"name": "more", "type": "int", "default": 9},
    ],
}
IS_NEW = NEW | {"aliases": ["Old"]}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def map_(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (OLD, {"old": 5}),
        (["null", OLD], {"old": 5}),
        (["null", OLD, "string"], {"old": 5}),
        ([CREATED, OLD], ("Old", {"old": 5})),
    ],
    ids=["alone", "or null", "or others", "or other records"],
)
@pytest.mark.parametrize("wanted", [NEW, ["null", NEW], IS_NEW], ids=["alone", "or null", "alias"])
def test_a_record_becomes_the_readers_only_type_whatever_both_are_called(written: Any, value: Any, wanted: Any) -> None:
    expected = {"new": 5, "more": 9}
    assert read(written, wanted, value) == expected
    assert read(array(written), array(wanted), [value]) == [expected]
    assert read(map_(written), map_(wanted), {"k": value}) == [{"key": "k", "value": expected}]


@pytest.mark.parametrize(
    ("of_writer", "of_reader"),
    [
        ({}, {"aliases": ["Old"]}),
        ({"namespace": "shop"}, {"aliases": ["Old"], "namespace": "shop"}),
        ({"namespace": "shop"}, {"aliases": ["shop.Old"], "namespace": "other"}),
    ],
)
@pytest.mark.parametrize("others", [[], ["null"], ["string"]], ids=["alone", "or null", "or others"])
def test_a_branch_is_found_by_an_alias(of_writer: Any, of_reader: Any, others: list[Any]) -> None:
    wanted = ["string", record("more.Old"), NEW | of_reader]
    found = read([*others, OLD | of_writer], wanted, {"old": 5})
    assert found == {"member0": None, "member1": None, "member2": {"new": 5, "more": 9}}


@pytest.mark.parametrize("ddl", ["e STRUCT<new: INT, more: INT>", "e STRUCT<old: INT>"])
def test_a_record_that_the_readers_union_does_not_have_is_bad_in_any_column(ddl: str) -> None:
    # By the names of its fields alone it would lose aliases and defaults.
    written, wanted = event(["null", OLD, "string"]), event(["null", NEW, CREATED])
    rows, bad = decoded(
        known({1: written}, ddl=ddl, schema=json.dumps(wanted)), [wire(1, encode(written, {"e": {"old": 5}}))]
    )
    assert not len(rows)
    assert "the reader's union does not have its branch" in bad[0].reason


def test_a_field_that_is_recursive_in_the_readers_schema_is_no_column() -> None:
    # A part of the recursion has neither aliases nor defaults.
    wanted = record("New", {"name": "inner", "type": ["null", "New"], "aliases": ["in"], "default": None})
    written = record("Old", {"name": "in", "type": record("In")})
    avro = known({1: written}, ddl="id INT, inner STRUCT<id: INT>", schema=json.dumps(wanted))
    rows, bad = decoded(avro, [wire(1, encode(written, {"id": 5, "in": {"id": 6}}))])
    assert not len(rows)
    assert "the reader's schema has a part of the recursive record 'New' there" in bad[0].reason


NODE = record("Node", {"name": "next", "type": ["null", "Node", "string"]})


@pytest.mark.parametrize("first", [b"\x01", b"\x03", b"\x05", b"\x7f", b"\x06", b"\x87\x01"])
@pytest.mark.parametrize(
    ("of_type", "before", "after"),
    [
        (["null", "int", "string"], b"", b"\x02a"),
        ({"type": "array", "items": ["null", "int", "string"]}, b"\x02", b"\x02a\0"),
        ({"type": "map", "values": ["null", "int", "string"]}, b"\x02\x02k", b"\x02a\0"),
        (["null", record("In", {"name": "u", "type": ["null", "int", "string"]}), "int"], b"\x02\x02", b"\x02a"),
    ],
    ids=["alone", "in a list", "in a map", "in a union"],
)
def test_a_negative_branch_is_a_bad_record(of_type: Any, before: bytes, after: bytes, first: bytes) -> None:
    avro = Avro(schema=json.dumps(event(of_type)))
    rows, bad = decoded(avro, [before + first + after, before + b"\x04" + after])
    assert [record.row for record in bad] == [0]
    assert "it ends within a number, or has a branch of a union that does not exist" in bad[0].reason
    assert len(rows) == 1


@pytest.mark.parametrize("size", [1, 3000], ids=["read in C", "read in Python"])
def test_a_negative_branch_of_a_recursive_type_is_a_bad_record(size: int) -> None:
    kind = {"type": "record", "name": "e", "fields": [{"name": "s", "type": "string"}, {"name": "n", "type": NODE}]}
    avro = Avro("s STRING", schema=json.dumps(kind))
    text = encode("string", "x" * size)
    # A node in a node, whose own next one is of the branch -3, the first from the end, and of the first itself.
    rows, bad = decoded(avro, [text + b"\x02\x02\x02" + next_ for next_ in (b"\x05", b"\0")])
    assert [record.row for record in bad] == [0]
    assert len(rows) == 1


def test_a_branch_that_the_reader_does_not_have_is_a_bad_record() -> None:
    schemas = {1: event([CREATED, CANCELLED]), 2: event([CREATED, UPDATED])}
    data = [encode(schemas[1], {"e": value}) for value in (("Created", {"id": 1}), ("Cancelled", {"id": 2}))]
    rows, bad = decoded(known(schemas), [wire(1, datum) for datum in data])
    assert own_columns(rows) == [{"e": {"member0": {"id": 1}, "member1": None}}]
    assert [found.row for found in bad] == [1]
    assert bad[0].reason == "schema 1: column 'e': the reader's union does not have its branch"


@pytest.mark.parametrize(("union", "value"), [(["int"], 5), (["null"], None), ([CREATED], {"id": 5})])
def test_a_union_of_one_type_is_read_as_the_type(union: list[Any], value: Any) -> None:
    written = record("r", {"name": "e", "type": union})
    ddl = {int: "e INT", dict: "e STRUCT<id: INT>"}.get(type(value), "e STRING")
    rows, bad = decoded(known({1: written}, ddl=ddl), [wire(1, encode(written, {"id": 1, "e": value}))] * 3)
    assert (own_columns(rows), bad) == ([{"e": value}] * 3, [])


@pytest.mark.parametrize("written", ["null", ["null"]])
def test_a_null_without_other_types_is_null_in_any_union(written: Any) -> None:
    for wanted in (["null", "int"], ["null", "int", "string"], ["null", {"type": "map", "values": "double"}, "bytes"]):
        rows, bad = decoded(
            known({1: event(written), 2: event(wanted)}), [wire(1, encode(event(written), {"e": None}))]
        )
        assert (own_columns(rows), bad) == ([{"e": None}], [])


def test_a_field_whose_name_only_begins_with_member_is_a_field() -> None:
    both = [record("A", {"name": "member_id", "type": "int"}), record("B", {"name": "member_id", "type": "int"})]
    found = read(both, both, ("B", {"id": 1, "member_id": 7}), ddl="e STRUCT<member_id: INT>")
    assert found == {"member_id": 7}


_PRIMITIVES: dict[Any, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-5, 5),
    "string": st.text("xyz", max_size=2),
}
_RECORDS = [record(name) for name in "ABC"]


@st.composite
def _cases(draw: st.DrawFn) -> tuple[list[Any], list[Any], Any]:
    unions = st.lists(st.sampled_from([*_PRIMITIVES, "null", "double", "bytes", *_RECORDS]), min_size=2, unique_by=str)
    branch: Any = draw(st.sampled_from([*_PRIMITIVES, *_RECORDS]))
    written = draw(st.permutations([branch, *(part for part in draw(unions) if part != branch)]))
    value = (
        (branch["name"], {"id": draw(st.integers(-5, 5))}) if isinstance(branch, dict) else draw(_PRIMITIVES[branch])
    )
    wanted = draw(unions)
    if branch in wanted:
        # fastavro takes the first branch that fits, also by promotion; Java's reader prefers one of the same type.
        wanted = [part for part in wanted if part != {"int": "double", "string": "bytes"}.get(str(branch))]
    return written, wanted, value


def expected(written: Any, wanted: Any, datum: bytes) -> Any:
    """What fastavro reads, as the members of the reader's union; None if it cannot."""
    writer, reader = (fastavro.parse_schema(json.loads(json.dumps(event(part)))) for part in (written, wanted))
    try:
        found: Any = fastavro.schemaless_reader(io.BytesIO(datum), writer, reader, return_record_name=True)
    except (fastavro.read.SchemaResolutionError, SchemaParseException):
        return None
    value = found["e"]
    branches = [part for part in wanted if part != "null"]
    if isinstance(value, tuple):
        return {f"member{place}": value[1] if part == record(value[0]) else None for place, part in enumerate(branches)}
    kinds: dict[Any, Any] = {"boolean": bool, "int": int, "double": float, "string": str, "bytes": bytes}
    return {
        f"member{place}": value if isinstance(part, str) and type(value) is kinds[part] else None
        for place, part in enumerate(branches)
    }


@examples(150)
@given(case=_cases())
def test_unions_are_resolved_as_fastavro_resolves_them(case: tuple[list[Any], list[Any], Any]) -> None:
    written, wanted, value = case
    branches = [part for part in wanted if part != "null"]
    if len(branches) < 2:
        return
    assert read(written, wanted, value) == expected(written, wanted, encode(event(written), {"e": value}))


def calls_to_read(branches: int) -> int:
    """Return how many functions are called to read a union of so many types."""
    written, wanted = (
        [{"type": "fixed", "name": f"{space}.n{i}", "size": 1} for i in range(branches)] for space in "ab"
    )
    calls, before = 0, sys.getprofile()

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        assert read(written, wanted, ("a.n0", b"x"))["member0"] == b"x"
    finally:
        sys.setprofile(before)
    return calls


def test_the_work_for_a_union_does_not_grow_with_the_square_of_its_branches() -> None:
    # The first one also imports modules.
    _, some, many = map(calls_to_read, (2, 100, 200))
    assert many < 3 * some
