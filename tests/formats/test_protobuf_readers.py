"""Which of the two readers of Protobuf takes a message, and that neither harms the neighbours of a message or its
merged parts.
"""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from hypothesis import example
from hypothesis import given as given_values
from hypothesis import strategies as st

from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.formats import protobuf_decoder
from airflow_kafka_offsets.formats.protobuf_decoder import ProtobufDecoder
from airflow_kafka_offsets.formats.protobuf_fields import columns_of
from airflow_kafka_offsets.formats.protobuf_schema import Schema
from airflow_kafka_offsets.formats.record_format import SchemaError
from airflow_kafka_offsets.formats.wire_format import UnreadableError
from tests.support.examples import examples
from tests.support.protobuf import as_row, decoded, given, known, message_class, ordered, own_columns, wire

V1 = 'syntax = "proto3"; message Order { int32 id = 1; }'
GROUPS = 'syntax = "proto2"; message Order { optional int32 id = 1; optional group Old = 2 { optional int32 x = 3; } }'


def test_groups_can_be_columns() -> None:
    rows, bad = decoded(given(GROUPS), [b"\x08\x01\x13\x18\x05\x14", b""])
    assert (own_columns(rows), bad) == ([{"id": 1, "old": {"x": 5}}, {"id": None, "old": None}], [])


@pytest.mark.parametrize("records", [1, 200])
def test_unknown_groups_and_oneofs_that_are_set_twice_are_left_to_googles_reader(records: int) -> None:
    text = 'syntax = "proto3"; message M { int32 id = 1; oneof o { int32 a = 2; string b = 3; } }'
    group, both = b"\x08\x01\x7b\x7c", b"\x08\x02\x10\x05\x1a\x01x"
    rows, bad = decoded(given(text), [group, both, b"\x08\x03\x0a"] + [b"\x08\x04\x10\x01"] * records)
    assert [record.row for record in bad] == [2]
    assert own_columns(rows)[:3] == [
        {"id": 1, "a": None, "b": None},
        {"id": 2, "a": None, "b": "x"},
        {"id": 4, "a": 1, "b": None},
    ]


def test_a_oneof_is_judged_by_members_that_are_no_columns() -> None:
    text = 'syntax = "proto3"; message M { oneof o { int32 a = 2; string b = 3; M c = 4; } }'
    rows, _ = decoded(given(text, ddl="a INT"), [b"\x10\x05\x1a\x01x", b"\x1a\x01x\x10\x05", b"\x10\x05\x22\x00"])
    assert own_columns(rows) == [{"a": None}, {"a": 5}, {"a": None}]


def test_messages_merge_as_protobuf_says() -> None:
    text = (
        'syntax = "proto3"; message M { P p = 1; map<string, int32> m = 2; } '
        "message P { int32 x = 1; repeated int32 y = 2; }"
    )
    twice = b"\x0a\x04\x08\x01\x10\x02\x0a\x04\x08\x03\x10\x04" + b"\x12\x05\x0a\x01k\x10\x01\x12\x05\x0a\x01k\x10\x02"
    expected = {"p": {"x": 3, "y": [2, 4]}, "m": [{"key": "k", "value": 2}]}
    assert own_columns(decoded(given(text), [twice, b""]).rows)[0] == expected
    as_bytes = decoded(given(text, ddl="p BINARY"), [twice, b""])
    assert own_columns(as_bytes.rows) == [{"p": b"\x08\x01\x10\x02\x08\x03\x10\x04"}, {"p": None}]


@pytest.mark.parametrize(
    ("kind", "column", "unfit", "fit", "value"),
    [
        ("uint64", "BIGINT", b"\x10" + b"\xff" * 9 + b"\x01", b"\x10\x05", 5),
        ("google.protobuf.Value", "STRING", b"\x12\x09\x11" + b"\0" * 6 + b"\xf8\x7f", b"\x12\x02\x20\x01", "true"),
    ],
    ids=["integer", "json"],
)
def test_a_value_of_a_map_that_is_replaced_need_not_fit(
    kind: str, column: str, unfit: bytes, fit: bytes, value: Any
) -> None:
    text = f'syntax = "proto3"; import "google/protobuf/struct.proto"; message M {{ map<string, {kind}> m = 1; }}'
    first, second, other = (
        b"\x0a" + bytes([3 + len(each)]) + b"\x0a\x01" + key + each
        for key, each in ((b"k", unfit), (b"k", fit), (b"l", unfit))
    )
    rows, bad = decoded(
        given(text, ddl=f"m ARRAY<STRUCT<key: STRING, value: {column}>>"), [first + second, second + first, other]
    )
    assert own_columns(rows) == [{"m": [{"key": "k", "value": value}]}]
    assert [record.row for record in bad] == [1, 2]


def test_a_failure_that_is_not_of_the_values_makes_no_record_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def array_to_record_batch(self, _: object) -> None:
            raise MemoryError("no memory")

    found = given(V1)
    monkeypatch.setattr(protobuf_decoder.ProtobufReader, "is_vectorized", True)
    monkeypatch.setattr(protobuf_decoder.ProtobufReader, "_handler", Broken())
    with pytest.raises(StagingError, match="The reader of Protobuf failed"):
        decoded(found, [b""])


class Another:
    """A version of ptars that does not read some fields, as if they were not set."""

    def __init__(self, real: Any, *lost: str) -> None:
        self._real, self._lost = real, lost

    def array_to_record_batch(self, values: pa.Array) -> pa.RecordBatch:
        found = self._real.array_to_record_batch(values)
        arrays = [
            array.filter(pa.array([False] * len(array))).take(pa.nulls(len(array), pa.int64()))
            if name in self._lost
            else array
            for name, array in zip(found.schema.names, found.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=found.schema)


@pytest.mark.parametrize(
    "kind", [
        "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
        "sfixed64", "bool", "string", "bytes", "E", "P", "google.protobuf.Timestamp", "google.protobuf.StringValue",
        "repeated P", "repeated int32", "map<string, P>",
    ],
)  # fmt: skip
def test_a_version_of_ptars_that_reads_a_type_otherwise_is_not_used(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text = (
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto"; '
        f"message M {{ int32 id = 1; {kind} field = 2; }} message P {{ int32 x = 1; }} enum E {{ A = 0; B = 1; }}"
    )
    found = given(text)
    message = Schema(found.schemas["given"]).named(None)
    assert found.slow_reason(found.schemas["given"]) is None
    handler: Any = vars(protobuf_decoder.ProtobufReader)["_handler"]
    monkeypatch.setattr(
        protobuf_decoder.ProtobufReader, "_handler", property(lambda reader: Another(handler.func(reader), "f2"))
    )
    own = GetMessageClass(message)(id=5)
    assert own_columns(decoded(found, [own.SerializeToString()] * 200).rows)[0]["id"] == 5
    assert "otherwise than protobuf" in (found.slow_reason(found.schemas["given"]) or "")
    assert "decodes one by one" in caplog.text


@pytest.mark.parametrize("batch", [{"id": [5]}, [5]])
def test_a_version_of_ptars_with_another_interface_is_not_used(batch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Changed:
        def array_to_record_batch(self, values: pa.Array) -> Any:
            return pa.RecordBatch.from_pydict(batch) if isinstance(batch, dict) else batch

    monkeypatch.setattr(protobuf_decoder.ProtobufReader, "_handler", Changed())
    assert own_columns(decoded(given(V1), [b"\x08\x05"]).rows) == [{"id": 5}]


def test_readers_agree_whatever_the_other_records_are() -> None:
    text = 'syntax = "proto3"; message M { int32 id = 1; }'
    # Only the quick reader takes a number of a field in six bytes, and only Google's takes a group.
    long_tag, group, cut = b"\x88\x80\x80\x80\x80\x00\x05", b"\x08\x06\x7b\x7c", b"\x08"
    good = b"\x08\x07"
    assert [decoded(given(text), [record]).rows.num_rows for record in (long_tag, group, cut)] == [1, 1, 0]
    rows, bad = decoded(given(text), [long_tag, good, cut, group, good, long_tag])
    assert [row["id"] for row in own_columns(rows)] == [5, 7, 6, 7, 5]
    assert [record.row for record in bad] == [2]


@pytest.mark.parametrize("start", [b"\x13", b"\x0b", b"\x93\x01"])
@pytest.mark.parametrize("neighbours", [0, 1, 200])
def test_groups_without_end_are_a_bad_record(start: bytes, neighbours: int) -> None:
    """ptars calls itself for each, and ends the process with a segmentation fault."""
    good = [wire(7, b"\x08\x01", 0)] * neighbours
    rows, bad = decoded(known({7: V1}), [*good, b"\0\0\0\0\7\0" + start * 110_000, *good])
    assert (rows.num_rows, [record.row for record in bad]) == (2 * neighbours, [neighbours])
    assert [record.reason for record in bad] == ["schema 7: it is not a message of its schema"]


@pytest.mark.parametrize("depth", [50, 99, 1_001, 60_000])
def test_groups_that_are_not_read_are_nested_as_deep_as_google_reads_them(depth: int) -> None:
    datum = b"\x08\x01" + b"\x13" * depth + b"\x14" * depth
    rows, bad = decoded(given(V1), [datum])
    try:
        message_class(V1, "Order").FromString(datum)
    except DecodeError:
        assert (rows.num_rows, len(bad)) == (0, 1)
    else:
        assert depth < 100
        assert (rows.num_rows, len(bad)) == (1, 0)


def test_thousands_of_bad_values_are_not_read_once_more_each(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message M { google.protobuf.Timestamp at = 1; }'
    )
    reads = 0

    def counted(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(*arguments)

    read = protobuf_decoder.ProtobufReader.read
    monkeypatch.setattr(protobuf_decoder.ProtobufReader, "read", counted)

    rows, bad = decoded(given(text), [b"\x0a\x07\x08\xff\xff\xff\xff\xff\x7f", b"\x0a\x02\x08\x05"] * 500)

    assert rows.num_rows == 500
    assert {record.reason for record in bad} == {"column 'at': it lies outside of the years 1 to 9999"}
    assert [record.row for record in bad] == [*range(0, 1000, 2)]
    assert reads < 5


def test_large_messages_are_read_together() -> None:
    text = 'syntax = "proto3"; message Order { int32 id = 1; string note = 2; }'
    message = message_class(text, "Order")
    data = [message(id=number, note="x" * number).SerializeToString() for number in range(0, 9_000, 300)]
    decoder = decoder_of(descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(given(text).schemas["given"])))
    assert decoder.read(pa.array(data))[0][1].to_pylist() == ["x" * number for number in range(0, 9_000, 300)]


def decoder_of(files: descriptor_pb2.FileDescriptorSet) -> ProtobufDecoder:
    message = Schema(base64.b64encode(files.SerializeToString()).decode()).named(None)
    return ProtobufDecoder(message, columns_of(message), message)


_SCALARS = {
    1: st.floats(),
    2: st.floats(width=32),
    3: st.integers(-(2**63), 2**63 - 1),
    4: st.integers(0, 2**64 - 1),
    5: st.integers(-(2**31), 2**31 - 1),
    6: st.integers(0, 2**64 - 1),
    7: st.integers(0, 2**32 - 1),
    8: st.booleans(),
    9: st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    12: st.binary(max_size=5),
    13: st.integers(0, 2**32 - 1),
    14: st.integers(-3, 3),
    15: st.integers(-(2**31), 2**31 - 1),
    16: st.integers(-(2**63), 2**63 - 1),
    17: st.integers(-(2**31), 2**31 - 1),
    18: st.integers(-(2**63), 2**63 - 1),
}
"""Values of each type of a field, by its number in descriptor.proto."""


@st.composite
def schemas(draw: st.DrawFn) -> tuple[descriptor_pb2.FileDescriptorSet, dict[str, dict[str, Any]]]:
    """A file with three messages, each of which may hold the next ones, and strategies for the values of each."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="m.proto", syntax="proto3")
    kind = file.enum_type.add(name="E")
    for number in (0, 1, -2):
        kind.value.add(name=f"N{number % 5}", number=number)
    strategies: dict[str, dict[str, Any]] = {}
    for name, inner in (("A", ["B", "C"]), ("B", ["C"]), ("C", [])):
        message = file.message_type.add(name=name)
        own = strategies.setdefault(name, {})
        in_oneof = draw(st.sets(st.integers(1, 6), max_size=3))
        for place, number in enumerate(draw(st.lists(st.integers(1, 40), min_size=1, max_size=6, unique=True)), 1):
            of_type = draw(st.sampled_from([*_SCALARS, *inner, *inner]))
            field = message.field.add(name=f"f{number}", number=number, label=1)
            field.type = of_type if isinstance(of_type, int) else 11
            if isinstance(of_type, str):
                field.type_name = f".{of_type}"
            elif of_type == 14:
                field.type_name = ".E"
            if place in in_oneof:
                if not message.oneof_decl:
                    message.oneof_decl.add(name="o")
                field.oneof_index = 0
            elif draw(st.booleans()):
                field.label = 3
            own[field.name] = (field.label == 3, of_type)
    return files, strategies


def values_of(name: str, strategies: dict[str, dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    fields = {}
    for field, (is_repeated, of_type) in strategies[name].items():
        item = _SCALARS[of_type] if isinstance(of_type, int) else values_of(of_type, strategies)
        fields[field] = st.lists(item, max_size=2) if is_repeated else item
    return st.fixed_dictionaries({}, optional=fields)


@examples(150)
@given_values(
    schemas().flatmap(lambda found: st.tuples(st.just(found[0]), st.lists(values_of("A", found[1]), max_size=4)))
)
def test_both_readers_read_what_google_writes(
    case: tuple[descriptor_pb2.FileDescriptorSet, list[dict[str, Any]]],
) -> None:
    files, values = case
    decoder = decoder_of(files)
    encoded = base64.b64encode(files.SerializeToString()).decode()
    message = GetMessageClass(Schema(encoded).named(None))
    data = [message(**value).SerializeToString() for value in values]
    read, wrong = decoder._reader.read_each(pa.array(data, pa.binary()))
    each, unfit = decoder.rows(read, len(data))
    assert not wrong
    assert not unfit
    names = [field.name for field in message.DESCRIPTOR.fields]
    expected = [ordered(as_row(message.FromString(datum))) for datum in data]
    assert decoder.is_vectorized
    for columns in (each, decoder.read(pa.array(data, pa.binary()))[0]):
        found = pa.RecordBatch.from_arrays(columns, names=names).to_pylist()
        assert [ordered(row) for row in found] == expected


_HEAD = (
    'syntax = "proto3"; import "google/protobuf/struct.proto"; message P { int32 x = 1; } message M { int32 id = 9; '
)

_LABELS = ["oneof", "%s a{0} = {0};", "optional %s a{0} = {0};", "repeated %s a{0} = {0};", "other oneof", ""]


@st.composite
def versions(draw: st.DrawFn) -> tuple[str, str]:
    """Two schemas of a message, which have fields of the same types or wider ones, with other labels, in other oneofs,
    or not.
    """
    pairs = [("google.protobuf.Value",) * 2, ("int32", "int32"), ("int32", "sint32"), ("float", "double"), ("P", "P")]
    texts = []
    for kinds in zip(*(draw(st.sampled_from(pairs)) for _ in range(3)), strict=True):
        oneofs: dict[str, list[str]] = {"oneof": [], "other oneof": []}
        parts = []
        for number, kind in enumerate(kinds, start=1):
            label = draw(st.sampled_from(_LABELS))
            if label in oneofs:
                oneofs[label].append(f"{kind} a{number} = {number};")
            elif label:
                parts.append(label.format(number) % kind)
        parts += [f"oneof o{place} {{ {' '.join(of)} }}" for place, of in enumerate(oneofs.values()) if of]
        texts.append(f"{_HEAD} {' '.join(parts)} }}")
    return texts[0], texts[1]


@examples(150)
@example(
    (
        f"{_HEAD} oneof o {{ google.protobuf.Value a1 = 1; int32 a2 = 2; }} }}",
        f"{_HEAD} google.protobuf.Value a1 = 1; }}",
    ),
    [{1}, {2}, set()],
)
@given_values(versions(), st.lists(st.sets(st.integers(1, 3)), min_size=1, max_size=4))
def test_a_message_is_read_as_the_readers_schema_has_it(texts: tuple[str, str], chosen: list[set[int]]) -> None:
    written, reader = (message_class(text, "M") for text in texts)
    of_reader = columns_of(reader.DESCRIPTOR)
    added = [column for column in columns_of(written.DESCRIPTOR) if column.name not in of_reader.names]
    names = [*of_reader.names, *(column.name for column in added)]
    data = []
    for places in chosen:
        message = written(id=3)
        for field in message.DESCRIPTOR.fields:
            if field.number in places:
                fill(message, field)
        data.append(message.SerializeToString())
    try:
        decoder = ProtobufDecoder(written.DESCRIPTOR, pa.schema([*of_reader, *added]), reader.DESCRIPTOR)
    except SchemaError:
        # Of other types, one of them a list: it cannot become the column.
        assert any(each.is_repeated for each in (*written.DESCRIPTOR.fields, *reader.DESCRIPTOR.fields))
        return

    fields, others = written.DESCRIPTOR.fields_by_name, reader.DESCRIPTOR.fields_by_name
    widened = [name for name in fields if name in others and fields[name].type != others[name].type]
    expected = []
    for datum in data:
        message = written.FromString(datum)
        row = as_row(message)
        for name in widened:
            message.ClearField(name)
        read_by = as_row(reader.FromString(message.SerializeToString()))
        expected.append({**row, **read_by, **{name: row[name] for name in widened}})
    read, wrong = decoder._reader.read_each(pa.array(data, pa.binary()))
    assert not wrong
    both = [decoder.rows(read, len(data))[0]]
    with suppress(UnreadableError):  # it leaves what sets two members of the reader's oneof to the other
        both.append(decoder.read(pa.array(data, pa.binary()))[0])
    for columns in both:
        found = pa.RecordBatch.from_arrays(columns, names=names).to_pylist()
        assert [ordered(row) for row in found] == [ordered({name: row[name] for name in names}) for row in expected]


def fill(message: Any, field: Any) -> None:
    """Set a field."""
    value: Any = -0.25 if field.cpp_type == 6 else -1
    if field.message_type is not None:
        value = GetMessageClass(field.message_type)(
            **({"x": 5} if field.message_type.name == "P" else {"number_value": 1.5})
        )
    if field.is_repeated:
        getattr(message, field.name).append(value)
    elif field.message_type is None:
        setattr(message, field.name, value)
    else:
        getattr(message, field.name).CopyFrom(value)


@pytest.mark.parametrize(
    ("written", "read", "datum", "expected"),
    [
        ("string a = 1;", "repeated string a = 1;", b"\x0a\x01x", ["x"]),
        ("P a = 1;", "repeated P a = 1;", b"\x0a\x02\x08\x05", [{"x": 5}]),
        ("bytes a = 1;", "repeated bytes a = 1;", b"", []),
        ("repeated string a = 1;", "string a = 1;", b"\x0a\x01x\x0a\x01y", "y"),
        ("int32 a = 1;", "optional int32 a = 1;", b"", None),
        ("optional int32 a = 1;", "int32 a = 1;", b"", 0),
        ("int32 a = 1;", "oneof o { int32 a = 1; int32 b = 2; }", b"", None),
        ("int32 b = 2;", "repeated int32 a = 1;", b"\x10\x05", []),
        ("int64 a = 1;", "int32 a = 1;", b"\x08\x05", 5),
    ],
)
def test_a_field_is_read_with_the_label_and_the_presence_of_the_readers_schema(
    written: str, read: str, datum: bytes, expected: Any
) -> None:
    head = 'syntax = "proto3"; message M { %s } message P { int32 x = 1; }'
    rows, bad = decoded(known({1: head % written, 2: head % read}), [wire(1, datum, 0)])
    assert not bad
    assert own_columns(rows)[0]["a"] == expected


@pytest.mark.parametrize(
    ("written", "read", "datum", "expected"),
    [
        ("oneof o { int32 a = 3; string c = 4; }", "oneof o { sint32 a = 3; string c = 4; }", "1805", 5),
        ("int32 a = 3;", "oneof o { sint32 a = 3; string c = 4; }", "1805", 5),
        ("oneof o { float a = 3; string c = 4; }", "oneof o { double a = 3; string c = 4; }", "1d0000803e", 0.25),
        ("float a = 3;", "oneof o { double a = 3; string c = 4; }", "1d0000803e", 0.25),
        ("optional float a = 3;", "oneof o { double a = 3; string c = 4; }", "1d00000000", 0.0),
        ("optional float a = 3;", "oneof o { double a = 3; string c = 4; }", "", None),
    ],
)
def test_a_field_of_another_type_than_in_the_readers_oneof_is_read_as_it_was_written(
    written: str, read: str, datum: str, expected: Any
) -> None:
    texts = {number: f'syntax = "proto3"; message M {{ {fields} }}' for number, fields in ((1, written), (2, read))}
    rows, bad = decoded(known(texts), [wire(1, bytes.fromhex(datum), 0)])
    assert not bad
    assert own_columns(rows) == [{"a": expected, "c": None}]


def test_the_names_of_enums_are_those_of_the_readers_schema() -> None:
    head = 'syntax = "proto3"; message M { E a = 1; repeated E b = 2; } enum E { ZERO = 0; %s }'
    texts = {1: head % "ONE = 1;", 2: head % "UNO = 1; TWO = 2;"}
    rows, _ = decoded(known(texts), [wire(1, b"\x08\x01\x12\x02\x02\x01", 0)])
    assert own_columns(rows) == [{"a": "UNO", "b": ["TWO", "UNO"]}]
