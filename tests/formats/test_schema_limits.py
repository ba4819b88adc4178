"""Schemas that are small and mean much: whoever may register one must not stop a load of others' records."""

from __future__ import annotations

import base64
import gc
import json
import re
import socket
import sys
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.templates import with_values
from airflow_kafka_offsets.exceptions import ConfigurationError, RecordError, RegistryUnavailableError, StagingError
from airflow_kafka_offsets.formats import avro_schema, protobuf_schema, registry_format, schema_registry, wire_format
from airflow_kafka_offsets.formats.avro_decoder import AvroDecoder
from airflow_kafka_offsets.formats.avro_format import Avro
from airflow_kafka_offsets.formats.extra_columns import whole_record
from airflow_kafka_offsets.formats.json_schema import columns_of
from airflow_kafka_offsets.formats.json_schema_format import JsonSchema, _unread
from airflow_kafka_offsets.formats.protobuf_format import Protobuf
from airflow_kafka_offsets.formats.protobuf_schema import compile_schemas
from airflow_kafka_offsets.formats.record_format import Decoded, RecordFormat, SchemaError, decoder_of
from airflow_kafka_offsets.formats.registry_format import RegistryFormat
from airflow_kafka_offsets.formats.schema_limits import Budget
from airflow_kafka_offsets.formats.schema_registry import RegisteredSchema, SchemaRegistry
from airflow_kafka_offsets.formats.simple_formats import Text
from airflow_kafka_offsets.formats.wire_format import PrefixedDecoder
from airflow_kafka_offsets.spark.decoding import decode_rows
from tests.support.avro import encode, wire
from tests.support.decoding import FIRST_OFFSET, STEP, record_batch, slice_of
from tests.support.examples import examples
from tests.support.protobuf import compiled, zigzag
from tests.support.registry import FakeRegistry, fake_registry

AVRO: dict[str, Any] = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "int"}]}
PROTO = 'syntax = "proto3"; message Order { int32 id = 1; }'
JSON: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "integer"}}}

SCHEMAS = {"AVRO": AVRO, "PROTOBUF": PROTO, "JSON": JSON}
DECLARED: dict[str, RegistryFormat] = {
    "AVRO": Avro("id INT", registry_conn_id="r"),
    "PROTOBUF": Protobuf("id INT", registry_conn_id="r"),
    "JSON": JsonSchema("id INT", registry_conn_id="r"),
}
FORMATS: dict[str, RegistryFormat] = {
    "AVRO": Avro(registry_conn_id="r"),
    "PROTOBUF": Protobuf(registry_conn_id="r"),
    "JSON": JsonSchema(registry_conn_id="r"),
}
VALUES = {"AVRO": encode(AVRO, {"id": 1}), "PROTOBUF": b"\0\x08\x01", "JSON": b'{"id": 1}'}


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry


@pytest.fixture(params=SCHEMAS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def field(name: str, of_type: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": of_type} | more


def record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def avro_laughs(depth: int, each: int = 2) -> Any:
    """Records of which each has two of the one before."""
    inner: Any = record("R0", field("x", "int"))
    for number in range(1, depth):
        inner = record(f"R{number}", field("a0", inner), *(field(f"a{i}", f"R{number - 1}") for i in range(1, each)))
    return inner


def avro_chain(depth: int) -> Any:
    """Records of which each is in the next one, none of them nested in the text."""
    parts = [record("R0", field("x", "int")), *(record(f"R{i}", field("a", f"R{i - 1}")) for i in range(1, depth))]
    return record("all", *(field(f"f{i}", part) for i, part in enumerate(parts)))


def json_laughs(depth: int) -> Any:
    defs: dict[str, Any] = {"d0": {"type": "integer"}}
    for i in range(1, depth):
        part = {"$ref": f"#/$defs/d{i - 1}"}
        defs[f"d{i}"] = {"type": "object", "properties": {"a": part, "b": part}}
    return {"$ref": f"#/$defs/d{depth - 1}", "$defs": defs}


def json_nested(depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def json_listed(part: dict[str, Any]) -> dict[str, Any]:
    """Properties that all refer to one part, which lists much."""
    used = {f"p{i}": {"$ref": "#/$defs/part"} for i in range(20)}
    return {"type": "object", "properties": used, "$defs": {"part": part}}


def proto_laughs(depth: int) -> str:
    parts = [f"message M{i} {{ M{i + 1} a = 1; M{i + 1} b = 2; }}" for i in range(depth)]
    return f'syntax = "proto3"; {" ".join(parts)} message M{depth} {{ int32 x = 1; }}'


def proto_chain(depth: int) -> str:
    parts = [f"message M{i} {{ M{i + 1} a = 1; }}" for i in range(depth)]
    return f'syntax = "proto3"; {" ".join(parts)} message M{depth} {{ int32 x = 1; }}'


def proto_names(depth: int, count: int) -> str:
    """Messages in messages with long names, the innermost with fields."""
    fields = " ".join(f"int32 f{i} = {i};" for i in range(1, count))
    nested = "".join(f"message {'n' * 900} {{" for _ in range(depth))
    return f'syntax = "proto3"; {nested} {fields} {"}" * depth}'


def proto_messages(count: int) -> str:
    """A message with a field, and others without any."""
    return f"{PROTO} {' '.join(f'message M{i} {{}}' for i in range(count - 2))}"


def proto_enums(count: int, each: int) -> str:
    def values(i: int) -> str:
        return " ".join(f"e{i}_{j} = {j};" for j in range(each))

    return f"{PROTO} {' '.join(f'enum E{i} {{ {values(i)} }}' for i in range(count))}"


MANY, DEEP = "more than 10,000 types", "nested deeper than 60"
LONG_NAME = "the name '.*'… has more than 1,000 characters"
LONG = "x" * 10_001


OWN_TIMESTAMP = 'syntax = "proto3"; package google.protobuf; message Timestamp { string a = 1; }'

BOMBS: list[tuple[str, Any, str]] = [
    ("AVRO", avro_laughs(27), MANY),
    ("AVRO", avro_laughs(14), MANY),
    ("AVRO", avro_laughs(5, each=200), MANY),
    ("AVRO", avro_chain(61), DEEP),
    ("AVRO", avro_chain(1_000), DEEP),
    ("AVRO", "[" * 100_000, "RecursionError"),
    ("AVRO", '{"type":' * 900 + '"int"' + "}" * 900, DEEP),
    ("AVRO", record("r", field("x", {"type": "fixed", "name": "f", "size": 2**30})), "more than 16,777,216 bytes"),
    ("AVRO", record("r", field("x", {"type": "fixed", "name": "f", "size": 2**40})), "more than 16,777,216 bytes"),
    ("AVRO", record("r", field("x", {"type": "fixed", "name": "f", "size": -1})), "negative size"),
    ("AVRO", '{"type": "fixed", "name": "f", "size": 1e999}', "malformed: OverflowError"),
    ("AVRO", '{"type": "fixed", "name": "f", "size": "x"}', "malformed: ValueError"),
    ("AVRO", '{"type": "fixed", "name": "f", "size": ' + "9" * 5_000 + "}", "malformed: ValueError"),
    ("AVRO", record("r", field("x", "int"), field("x", "int")), "two fields of the record 'r' have the same name"),
    ("AVRO", record("r", field("x", "string", default=LONG)), "more than 10,000 characters"),
    ("AVRO", record("r", field("x", {"type": "enum", "name": "e", "symbols": [LONG]})), "more than 10,000 characters"),
    (
        "AVRO",
        record("r", field("x", {"type": "enum", "name": "e", "symbols": [1] * 10_001})),
        "more than 10,000 symbols in an enum",
    ),
    ("AVRO", record("r"), "the record 'r' has no fields"),
    ("AVRO", {**AVRO, "namespace": "n" * 1_000}, LONG_NAME),
    ("AVRO", record("r", field("x" * 1_001, "int")), LONG_NAME),
    ("JSON", {"type": "object", "properties": {"x" * 1_001: {"type": "integer"}}}, LONG_NAME),
    ("JSON", json_laughs(20), MANY),
    ("JSON", {"type": "object", "properties": {"a": {"type": {}}}}, "property 'a' has a type that is not a name"),
    ("JSON", json_laughs(2_000), DEEP),
    ("JSON", json_listed({"enum": ["a"] * 100_000}), MANY),
    ("JSON", json_listed({"oneOf": [{"type": "null"}] * 100_000 + [{"type": "string"}]}), MANY),
    ("JSON", json_listed({"type": ["null"] * 100_000 + ["string"]}), MANY),
    ("JSON", json_nested(62), DEEP),
    ("JSON", '{"type": "object", "properties": {"a": ' + "[" * 100_000, "it is not JSON"),
    ("JSON", {"type": "object", "properties": {"a": {"$ref": f"#/{LONG}"}}}, "more than 10,000 characters"),
    ("PROTOBUF", proto_laughs(15), MANY),
    ("PROTOBUF", proto_chain(62), DEEP),
    ("PROTOBUF", proto_chain(2_000), DEEP),
    ("PROTOBUF", f'syntax = "proto3"; message M {{ E e = 1; }} enum E {{ {LONG} = 0; }}', LONG_NAME),
    ("PROTOBUF", OWN_TIMESTAMP, "it declares types of the package google.protobuf"),
    ("PROTOBUF", f'message M {{ optional string e = 1 [default = "{LONG}"]; }}', "10,000 characters"),
    ("PROTOBUF", f'syntax = "proto3"; package {"n" * 1_001}; message M {{ int32 x = 1; }}', "name is too long"),
    ("PROTOBUF", f'syntax = "proto3"; message M {{ int32 {"x" * 1_001} = 1; }}', LONG_NAME),
    ("PROTOBUF", proto_names(20, 110), "more than 2,000,000 characters of names"),
    ("PROTOBUF", proto_messages(20_001), "more than 20,000 names"),
    ("PROTOBUF", proto_enums(200, 100), "more than 20,000 names"),
    ("PROTOBUF", "message M { " * 10_000, "Reached maximum recursion limit|recursion"),
]  # fmt: skip


def _of_every_day() -> Iterator[Any]:
    """The first bomb of each limit; the others in `make soak`."""
    seen = set()
    for kind, schema, reason in BOMBS:
        yield pytest.param(kind, schema, reason, marks=[pytest.mark.long] if (kind, reason) in seen else [])
        seen.add((kind, reason))


DAILY = list(_of_every_day())


@pytest.mark.parametrize(("kind", "schema", "reason"), DAILY)
def test_schema_bomb_is_refused_where_its_columns_are_wanted(
    server: FakeRegistry, kind: str, schema: Any, reason: str
) -> None:
    server.register("orders-value", schema, kind=kind)
    with pytest.raises(ConfigurationError, match=reason):
        FORMATS[kind].prepared(["orders"], "value", {"r": server.config}).columns()


@pytest.mark.parametrize(("kind", "schema", "reason"), DAILY)
@pytest.mark.parametrize("is_known", [True, False], ids=["on the worker", "in a task"])
def test_schema_bomb_harms_no_record_of_another_schema(
    server: FakeRegistry, kind: str, schema: Any, reason: str, is_known: bool
) -> None:
    server.register("orders-value" if is_known else "elsewhere", schema, kind=kind)
    good = server.register("orders-value", SCHEMAS[kind], kind=kind)
    prepared = DECLARED[kind].prepared(["orders"], "value", {"r": server.config})
    datum = VALUES[kind]

    rows, bad = connected(server, prepared, [wire(1, datum), wire(good, datum), wire(1, b"\0" * 20)])

    ids = rows.column("id").to_pylist()
    assert 1 in ids
    assert len(ids) + len(bad) == 3
    # With declared columns most Protobuf schemas, and all of JSON, need no type of each field.
    assert kind != "AVRO" or [record.row for record in bad] == [0, 2]


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        ("AVRO", avro_laughs(12)),
        ("AVRO", avro_chain(58)),
        ("AVRO", record("r", field("x", {"type": "fixed", "name": "f", "size": 1 << 20}))),
        ("AVRO", record("r", field("x", "string", default="x" * 9_000))),
        ("AVRO", record("r", *(field(f"f{i}", "int") for i in range(9_000)))),
        ("JSON", json_laughs(12)),
        ("JSON", json_nested(58)),
        ("PROTOBUF", proto_laughs(11)),
        ("PROTOBUF", proto_messages(20_000)),
        ("PROTOBUF", proto_chain(58)),
    ],
)  # fmt: skip
def test_schema_within_the_limits_has_columns(server: FakeRegistry, kind: str, schema: Any) -> None:
    server.register("orders-value", schema, kind=kind)
    found = FORMATS[kind].prepared(["orders"], "value", {"r": server.config})
    assert found.columns().names
    _, bad = connected(server, found, [wire(1, b"\0"), None])
    assert [record.row for record in bad] in ([], [0])


def test_large_fixed_values_are_read_one_by_one_as_a_null_takes_their_room_in_arrow() -> None:
    kind = record("r", field("x", ["null", {"type": "fixed", "name": "f", "size": 1 << 20}]))
    found = Avro(schema=json.dumps(kind))
    tracemalloc.start()
    rows, bad = found.decoder(found.columns())(record_batch([b"\0"] * 5_000))
    assert (rows.num_rows, bad) == (5_000, [])
    assert tracemalloc.get_traced_memory()[1] < 50_000_000
    tracemalloc.stop()
    reader = AvroDecoder(avro_schema.parse(json.dumps(kind)), found.columns(), None)
    assert not reader.is_vectorized


def test_a_default_counts_with_those_of_the_fields_that_its_items_leave_out() -> None:
    inner = record("i", field("x", "string", default="x" * 9_000))
    texts = [json.dumps(record("r", field("id", "int")))]
    texts += [
        json.dumps(
            record(
                "r",
                field("id", "int"),
                field("items", {"type": "array", "items": inner}, default=[{}] * count),
            )
        )
        for count in (1, 2_000)
    ]
    known = dict(zip("123", ([text] for text in texts), strict=True))
    value = wire(1, encode(json.loads(texts[0]), {"id": 1}))
    few, many = (with_values(Avro(registry_conn_id="r"), schemas=known, latest=latest) for latest in "23")

    rows, bad = few.decoder(few.columns())(record_batch([value]))
    assert (rows.column("items").to_pylist(), bad) == ([[{"x": "x" * 9_000}]], [])

    tracemalloc.start()
    rows, bad = many.decoder(many.columns())(record_batch([value]))
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()
    assert [reason.partition(", or ")[2] for _, reason, _ in bad] == [
        "has more than 10,000 characters with those of fields that it leaves out"
    ]


def connected(server: FakeRegistry, record_format: RecordFormat, values: list[bytes | None]) -> Decoded:
    """What a task makes of values."""
    return decoder_of(record_format, record_format.columns(), {"r": server.config})(record_batch(values))


def reference(subject: str, name: str = "") -> dict[str, Any]:
    return {"name": name or f"{subject}.proto", "subject": subject, "version": 1}


def diamond(server: FakeRegistry, depth: int) -> None:
    """Schemas of which each has two references that lead to the one before."""
    server.register("d0", '"int"')
    for number in range(1, depth):
        before = f"d{number - 1}"
        server.register(f"d{number}", f'"{number}"', [reference(before, "a"), reference(before, "b")])


def test_each_version_of_a_reference_is_asked_for_once(server: FakeRegistry) -> None:
    diamond(server, 25)
    registry = SchemaRegistry(server.config)
    assert len(registry.version("d24", 1)[1].references) == 48
    assert len(server.requests) == 25
    assert registry.by_id(25).text == '"24"'
    assert len(server.requests) == 26
    registry.close()


def test_references_in_a_circle_are_refused(server: FakeRegistry) -> None:
    server.register("a", '"a"', [reference("b")])
    server.register("b", '"b"', [reference("c")])
    server.register("c", '"c"', [reference("a")])
    registry = SchemaRegistry(server.config)
    for _ in range(2):
        with pytest.raises(SchemaError, match="lead back to where they began"):
            registry.by_id(1)
        with pytest.raises(SchemaError, match="lead back to where they began"):
            registry.version("b", 1)
    assert len([path for path in server.requests if path.startswith("/subjects")]) == 3
    registry.close()


@pytest.mark.parametrize(
    ("schemas", "match"),
    [
        ([[i - 1] if i else [] for i in range(70)], "nested deeper than 60"),
        ([[]] * 501 + [list(range(501))], "more than 500 references"),
        ([[], [5]], "refers to version 1 of subject 's5', which is unknown"),
    ],
)
def test_references_have_limits_and_those_of_a_good_schema_do_not_suffer(
    server: FakeRegistry, schemas: list[list[int]], match: str
) -> None:
    for number, references in enumerate(schemas):
        server.register(f"s{number}", '"int"', [reference(f"s{other}") for other in references])
    registry = SchemaRegistry(server.config)
    for _ in range(2):
        with pytest.raises(SchemaError, match=match):
            registry.by_id(len(schemas))
    assert len(server.requests) <= len(schemas) + 4
    assert registry.version("s0", 1)[1].text == '"int"'
    registry.close()


def test_a_schema_and_its_references_have_a_limit_of_bytes(server: FakeRegistry) -> None:
    server.register("large", "x" * 3_000_000)
    server.register("small", "y" * 900_000)
    server.register("both", "z" * 200_000, [reference("large"), reference("small")])
    registry = SchemaRegistry(server.config)
    with pytest.raises(SchemaError, match="more than 4,000,000 bytes, with all that it refers to"):
        registry.by_id(3)
    assert len(registry.by_id(1).text) == 3_000_000
    registry.close()


def test_references_are_fetched_until_they_are_too_large(server: FakeRegistry) -> None:
    for number in range(50):
        server.register(f"s{number}", "x" * 1_500_000)
    server.register("all", '"int"', [reference(f"s{number}") for number in range(50)])
    registry = SchemaRegistry(server.config)
    with pytest.raises(SchemaError, match="more than 4,000,000 bytes, with all that it refers to"):
        registry.by_id(51)
    assert len(server.requests) == 4
    registry.close()


def test_what_a_registry_answered_is_not_kept_for_ever(server: FakeRegistry) -> None:
    registry = SchemaRegistry(server.config)
    for number in range(30):
        server.register(f"s{number}", "\N{GRINNING FACE}" + "x" * 3_000_000)
        assert registry.version(f"s{number}", 1)[0] == number + 1
    assert sum(sys.getsizeof(registered.text) for _, registered in registry._versions.values()) < 80_000_000
    registry.close()


@pytest.mark.parametrize(
    "answer",
    [
        {},
        [],
        {"schema": None},
        {"schema": 7},
        {"schema": ["int"]},
        {"schema": "\ud800"},
        {"schema": '"int"', "schemaType": [1]},
        {"schema": '"int"', "references": 7},
        {"schema": '"int"', "references": [7]},
        {"schema": '"int"', "references": [{}]},
        {"schema": '"int"', "references": [{"name": "x", "subject": 7, "version": 1}]},
        {"schema": '"int"', "references": [{"name": "x", "subject": "y", "version": "../../x"}]},
        {"schema": '"int"', "references": [{"name": [], "subject": "good", "version": 1}]},
        {"schema": '"int"', "references": [{"name": 7, "subject": "good", "version": 1}]},
    ],
)
def test_descriptions_of_another_kind_make_records_bad(server: FakeRegistry, answer: Any) -> None:
    good = server.register("good", AVRO)
    server.schemas[7] = answer
    rows, bad = connected(server, DECLARED["AVRO"], [wire(7, b"\2"), wire(good, VALUES["AVRO"])])
    assert (rows.num_rows, [record.row for record in bad]) == (1, [0])
    assert bad[0].reason.startswith("schema 7: ")


@pytest.mark.parametrize("is_compressed", [False, True])
def test_an_answer_of_any_size_takes_little_memory(monkeypatch: pytest.MonkeyPatch, is_compressed: bool) -> None:
    read: list[int] = []

    def endless() -> Iterator[bytes]:
        packer = zlib.compressobj(wbits=31)
        while True:
            read.append(1 << 20)
            yield packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_SYNC_FLUSH) if is_compressed else bytes(1 << 20)

    headers = {"Content-Encoding": "gzip"} if is_compressed else {}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, stream=Endless(endless)))
    registry = SchemaRegistry({"url": "http://127.0.0.1:1"})
    registry.__dict__["_client"] = httpx.Client(base_url="http://127.0.0.1:1", transport=transport)
    with pytest.raises(SchemaError, match="the registry answers with more than 25,000,000 bytes"):
        registry.by_id(1)
    with pytest.raises(ConfigurationError, match=r"is not a schema registry: .* more than 25,000,000 bytes"):
        registry.versions("s")
    assert sum(read) < 60_000_000
    registry.close()


def answering(headers: dict[str, str], *parts: bytes) -> SchemaRegistry:
    """A registry whose server answers everything in the same way."""
    answer = {"headers": headers, "stream": Endless(lambda: iter(parts))}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, **answer))  # type: ignore[arg-type]
    registry = SchemaRegistry({"url": "http://127.0.0.1:1"})
    registry.__dict__["_client"] = httpx.Client(base_url="http://127.0.0.1:1", transport=transport)
    return registry


def test_an_answer_that_is_refused_is_not_kept() -> None:
    content = json.dumps({"id": 1, "schema": "x" * 10_000_000, "references": []}).encode()
    registry = answering({}, content)
    tracemalloc.start()
    for version in range(3):
        with pytest.raises(SchemaError, match="more than 4,000,000 bytes"):
            registry.version("orders", version)
    assert tracemalloc.get_traced_memory()[0] < 1_000_000
    tracemalloc.stop()


def test_what_a_schema_error_quotes_is_short_and_visible() -> None:
    with pytest.raises(SchemaError) as raised:
        avro_schema.parse(json.dumps("\x1b[2J\u202e" + "x" * 100_000))
    assert str(raised.value).startswith("the type '\\x1b[2J\\u202exxx")
    assert len(str(raised.value)) < 1_100


@pytest.mark.parametrize(
    ("encoding", "content", "reason"),
    [
        ("zstd", b"\x28\xb5\x2f\xfd", "the encoding 'zstd', which it was not asked for"),
        ("gzip", b"no gzip", "answers with what is no gzip"),
        ("gzip", zlib.compress(b"{}", wbits=31) + b"more", None),
    ],
)
def test_an_answer_in_another_encoding_makes_records_bad(encoding: str, content: bytes, reason: str | None) -> None:
    registry = answering({"Content-Encoding": encoding}, content)
    with pytest.raises(SchemaError, match=reason or "the registry describes it in an unknown way: KeyError"):
        registry.by_id(1)


def test_a_number_that_is_none_makes_records_bad() -> None:
    text = b'{"schema": "1", "references": [{"name": "n", "subject": "s", "version": 1e999}]}'
    with pytest.raises(SchemaError, match="in an unknown way: OverflowError"):
        answering({}, text).by_id(1)


@pytest.mark.parametrize("beginning", [b"X: ", b"Content-Length: 9999\r\n\r\n"], ids=["headers", "content"])
def test_an_answer_that_drips_is_an_outage(monkeypatch: pytest.MonkeyPatch, beginning: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()

        def drip(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n" + beginning)
                while not ended.wait(0.02):
                    connection.sendall(b"x")

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=drip, args=[server.accept()[0]], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        monkeypatch.setattr(schema_registry, "_TIMEOUT_SECONDS", 0.2)
        monkeypatch.setattr(schema_registry, "_PAUSE_SECONDS", 0.0)
        registry = SchemaRegistry({"url": f"http://127.0.0.1:{server.getsockname()[1]}"})
        # Of the whole answer; where the machine stops, of one wait.
        with pytest.raises(RegistryUnavailableError, match=r"4 attempts: \w+Timeout"):
            registry.by_id(1)
        ended.set()
        server.shutdown(socket.SHUT_RDWR)


class Endless(httpx.SyncByteStream):
    def __init__(self, parts: Callable[[], Iterator[bytes]]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[bytes]:
        return self._parts()


def test_references_that_cannot_be_used_make_records_bad_and_no_other(server: FakeRegistry, kind: str) -> None:
    server.register("a", SCHEMAS[kind], [reference("b")], kind=kind)
    server.register("b", SCHEMAS[kind], [reference("a")], kind=kind)
    server.register("orders-value", SCHEMAS[kind], [reference("a")], kind=kind)
    good = server.register("orders-value", SCHEMAS[kind], kind=kind)
    prepared = DECLARED[kind].prepared(["orders"], "value", {"r": server.config})
    assert list(prepared.schemas) == [str(good)]
    rows, bad = connected(server, prepared, [wire(3, VALUES[kind]), wire(good, VALUES[kind])])
    assert (rows.num_rows, [record.row for record in bad]) == (1, [0])
    assert "lead back" in bad[0].reason
    server.register("orders-value", SCHEMAS[kind], [reference("a")], kind=kind)
    with pytest.raises(ConfigurationError, match=r"Version 3 of subject 'orders-value' is not a usable .* lead back"):
        FORMATS[kind].prepared(["orders"], "value", {"r": server.config})


@pytest.mark.parametrize("ddl", ["t TIMESTAMP", None])
def test_a_schema_that_brings_its_own_timestamp_has_that_of_google(server: FakeRegistry, ddl: str | None) -> None:
    server.register("own", OWN_TIMESTAMP, kind="PROTOBUF")
    text = 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message M { google.protobuf.Timestamp t = 1; }'
    number = server.register(
        "orders-value", text, [reference("own", "google/protobuf/timestamp.proto")], kind="PROTOBUF"
    )
    found = Protobuf(ddl, registry_conn_id="r").prepared(["orders"], "value", {"r": server.config})
    rows, bad = connected(server, found, [wire(number, b"\0\x0a\x02\x08\x01")])
    assert (rows.column("t").to_pylist(), bad) == ([datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)], [])


@pytest.mark.parametrize("schema", ["true", '{"type": "object"}'])
def test_a_version_without_properties_stops_no_load_that_looks_for_new_fields(
    server: FakeRegistry, schema: str
) -> None:
    server.register("orders-value", schema, kind="JSON")
    server.register("orders-value", JSON, kind="JSON")
    found = JsonSchema("id BIGINT", registry_conn_id="r")
    assert "id" in found.prepared(["orders"], "value", {"r": server.config}).field_types()


@pytest.mark.parametrize("error", [MemoryError(), RecursionError(), SchemaError("it is none")])
def test_whatever_a_schema_raises_makes_its_records_bad(
    server: FakeRegistry, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(*_: object) -> None:
        raise error

    server.register("orders-value", AVRO)
    found = DECLARED["AVRO"].prepared(["orders"], "value", {"r": server.config})
    monkeypatch.setattr(avro_schema, "parse", failing)
    rows, bad = connected(server, found, [wire(1, b"\2"), None])
    assert (rows.num_rows, [record.row for record in bad]) == (1, [0])


@pytest.mark.parametrize("place", ["name", "symbol"])
def test_half_a_character_in_a_name_is_no_schema(place: str) -> None:
    kind: Any = {"type": "enum", "name": "e", "symbols": ["\ud800" if place == "symbol" else "a"]}
    field = {"name": "\udfff" if place == "name" else "f", "type": kind}
    with pytest.raises(SchemaError, match="a character that Unicode does not have"):
        avro_schema.parse(json.dumps({"type": "record", "name": "r", "fields": [field]}))


class TestUnknownIds:
    def test_a_task_has_one_client_and_one_request_for_each(
        self, server: FakeRegistry, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        clients: list[httpx.Client] = []
        made = httpx.Client

        def counted(**options: Any) -> httpx.Client:
            clients.append(made(**options))
            return clients[-1]

        monkeypatch.setattr(httpx, "Client", counted)
        server.register("orders-value", SCHEMAS[kind], kind=kind)
        found = DECLARED[kind].prepared(["orders"], "value", {"r": server.config})
        clients.clear()
        server.requests.clear()
        decode = found.connected_decoder(found.columns(), {"r": server.config})
        unknown = [wire(number, VALUES[kind]) for number in range(1_000, 1_100)]
        for _ in range(3):
            rows, bad = decode(record_batch([*unknown, wire(1, VALUES[kind])]))
            assert (rows.num_rows, len(bad)) == (1, 100)
        assert len(server.requests) == len(set(server.requests)) == 100
        assert len(clients) == 1

    def test_the_client_is_closed_with_its_decoder(self, server: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
        closed: list[str] = []
        close = SchemaRegistry.close

        def noted(registry: SchemaRegistry) -> None:
            close(registry)
            closed.append(registry.host)

        monkeypatch.setattr(SchemaRegistry, "close", noted)
        found = DECLARED["AVRO"]
        decode = found.connected_decoder(found.columns(), {"r": server.config})
        assert decode(record_batch([wire(7, b"")])).bad
        assert not closed
        del decode
        gc.collect()
        assert len(closed) == 1

    @pytest.mark.parametrize("part", ["value", "key"])
    def test_so_many_that_somebody_makes_them_up_end_the_load(self, server: FakeRegistry, kind: str, part: str) -> None:
        values: list[bytes | None] = [wire(number, VALUES[kind]) for number in range(1_000, 1_200)]
        record_format: RecordFormat = DECLARED[kind]
        records = record_batch(values)
        if part == "key":
            record_format = whole_record(Text("t"), record_format)
            names = records.schema.names
            records = records.set_column(names.index("key"), "key", records.column("value"))
            records = records.set_column(names.index("value"), "value", pa.nulls(len(values), pa.binary()))
        decode = decoder_of(record_format, record_format.columns(), {"r": server.config})
        with pytest.raises(RecordError) as raised:
            decode_rows(records, decode, slice_of(values))
        assert (raised.value.topic, raised.value.partition) == ("orders", 3)
        assert raised.value.offset == FIRST_OFFSET + 100 * STEP
        assert not raised.value.retriable
        for words in ("schema 1100: 100 other schema ids", "restored from a backup", "a producer writes ids"):
            assert words in raised.value.reason
        assert len(server.requests) == 100

    def test_schemas_that_records_name_have_a_limit_together(
        self, server: FakeRegistry, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each is kept, and stored with the batch."""
        monkeypatch.setattr(registry_format, "_MOST_READ_BYTES", 5_000)
        schemas: dict[str, Callable[[int], Any]] = {
            "AVRO": lambda n: AVRO | {"doc": f"{n}{'x' * 900}"},
            "PROTOBUF": lambda n: f"{PROTO} // {n}{'x' * 900}",
            "JSON": lambda n: JSON | {"title": f"{n}{'x' * 900}"},
        }
        numbers = [server.register(f"s{number}", schemas[kind](number), kind=kind) for number in range(10)]
        values: list[bytes | None] = [wire(number, VALUES[kind]) for number in numbers]
        decode = decoder_of(DECLARED[kind], DECLARED[kind].columns(), {"r": server.config})

        with pytest.raises(
            RecordError, match=r"the schemas that the records of the slice name have more than"
        ) as raised:
            decode_rows(record_batch(values), decode, slice_of(values))

        assert FIRST_OFFSET < raised.value.offset < FIRST_OFFSET + 10 * STEP
        assert not raised.value.retriable

    def test_what_is_no_id_costs_no_request_and_ends_no_load(self, server: FakeRegistry, kind: str) -> None:
        numbers = [number.to_bytes(4, "big") for number in range(3_000)]
        values: list[bytes | None] = [b"\1" + number for number in numbers]
        # Those of no registry: the answers of some say nothing of schemas.
        values += [b"\0\xff" + number[1:] for number in numbers]
        rows, bad = connected(server, DECLARED[kind], values)
        assert (rows.num_rows, len(bad), server.requests) == (0, 6_000, [])

    def test_what_the_load_may_not_read_is_bad_where_it_reads_other_subjects(
        self, server: FakeRegistry, kind: str
    ) -> None:
        foreign = server.register("payroll-value", SCHEMAS[kind], kind=kind)
        server.forbidden.add(foreign)
        values: list[bytes | None] = [wire(foreign, VALUES[kind])]
        with pytest.raises(ConfigurationError, match="refuses /schemas/ids/1 with status 403"):
            connected(server, DECLARED[kind], values)
        own = server.register("orders-value", SCHEMAS[kind], kind=kind)
        found = DECLARED[kind].prepared(["orders"], "value", {"r": server.config})
        values.append(wire(own, VALUES[kind]))
        after_others = with_values(DECLARED[kind], stored=found.schemas)
        for record_format, of in [(found, values), (DECLARED[kind], values[::-1]), (after_others, values)]:
            rows, bad = connected(server, record_format, of)
            assert (rows.num_rows, len(bad)) == (1, 1)
            assert "with status 403" in bad[0].reason

    def test_memory_does_not_grow_with_prefixes(self, server: FakeRegistry) -> None:
        found = DECLARED["PROTOBUF"]
        server.register("orders-value", PROTO, kind="PROTOBUF")
        decode = found.connected_decoder(found.columns(), {"r": server.config})

        def batch(first: int) -> list[bytes | None]:
            # Zero in more bytes than it needs, in each of which a bit of the number is hidden; and what is no prefix.
            same = [b"\0\0\0\0\1" + zigzag(1) + b"\x80" * (number % 140) + b"\0\x08\1" for number in range(150)]
            return [*same, *(b"\1" + number.to_bytes(4, "big") for number in range(first, first + 2_000))]

        decode(record_batch(batch(0)))
        gc.collect()
        tracemalloc.start()
        for first in range(2_000, 12_000, 2_000):
            rows, _ = decode(record_batch(batch(first)))
            assert set(rows.column("id").to_pylist()) == {1}
        del rows
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
        tracemalloc.stop()


class TestManyVersions:
    def test_worker_has_the_newest_ones_up_to_a_limit_of_characters(
        self, server: FakeRegistry, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        texts = [json.dumps(SCHEMAS[kind]) if kind != "PROTOBUF" else PROTO for _ in range(5)]
        numbers = [server.register("orders-value", text, kind=kind) for text in texts]

        def known(most: int) -> list[str]:
            monkeypatch.setattr(registry_format, "_MOST_CHARACTERS", most)
            return list(FORMATS[kind].prepared(["orders"], "value", {"r": server.config}).schemas)

        assert known(5 * len(texts[0])) == [str(number) for number in numbers]
        assert known(4 * len(texts[0]) - 1) == [str(number) for number in numbers[-3:]]
        assert known(1) == [str(numbers[-1])]

    def test_few_protobuf_schemas_are_in_memory_at_once(self, server: FakeRegistry) -> None:
        for number in range(40):
            server.register("orders-value", f"{PROTO} message M{number} {{}}", kind="PROTOBUF")
        protobuf_schema.schema_of.cache_clear()
        found = FORMATS["PROTOBUF"].prepared(["orders"], "value", {"r": server.config})
        types = found.field_types()
        values: list[bytes | None] = [wire(number + 1, VALUES["PROTOBUF"]) for number in range(40)]
        rows, bad = connected(server, found, values)
        assert (len(found.schemas), types["id"](Budget()), rows.num_rows, bad) == (40, pa.int32(), 40, [])
        gc.collect()
        assert len([each for each in gc.get_objects() if isinstance(each, protobuf_schema.Schema)]) <= 16

    def test_few_parsed_json_schemas_are_in_memory_at_once(self, server: FakeRegistry) -> None:
        properties = {f"p{i}": {"type": "integer"} for i in range(1_000)}
        for number in range(20):
            schema = {"type": "object", "properties": properties | {f"new{number}": {"type": "string"}}}
            server.register("orders-value", schema, kind="JSON")
        found = FORMATS["JSON"].prepared(["orders"], "value", {"r": server.config})
        found.field_types()
        tracemalloc.start()
        types = found.field_types()
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
        tracemalloc.stop()
        assert [types[name](Budget()) for name in ("new0", "p0", "new19")] == [pa.string(), pa.int64(), pa.string()]

    def test_added_columns_have_a_limit_together(
        self, server: FakeRegistry, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        for name in "ab":
            parts = [f"x{i}" for i in range(6_000)]
            numbered = " ".join(f"int32 {part} = {i};" for i, part in enumerate(parts, 1))
            schemas: dict[str, Any] = {
                "AVRO": record("r", field(name, record("inner", *(field(part, "int") for part in parts)))),
                "JSON": {
                    "type": "object",
                    "properties": {
                        name: {"type": "object", "properties": {part: {"type": "integer"} for part in parts}}
                    },
                },
                "PROTOBUF": f'syntax = "proto3"; message R {{ Inner {name} = 1; }} message Inner {{ {numbered} }}',
            }
            server.register("orders-value", schemas[kind], kind=kind)
        found = DECLARED[kind].prepared(["orders"], "value", {"r": server.config})
        assert found.with_fields("add", "target", lambda: None).columns().names == ["id", "b"]
        assert re.search(f"Fields of older schemas cannot become columns: 'a' .*{MANY}", caplog.text)

    def test_decoders_are_forgotten_by_the_characters_of_their_schemas(
        self, server: FakeRegistry, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        numbers = [server.register("orders-value", SCHEMAS[kind], kind=kind) for _ in range(9)]
        decode: Any = decoder_of(DECLARED[kind], DECLARED[kind].columns(), {"r": server.config})
        values = [wire(number, VALUES[kind]) for number in numbers]
        monkeypatch.setattr(wire_format, "_MOST_CHARACTERS", 1)
        assert decode(record_batch(values)).rows.column("id").to_pylist() == [1] * 9
        assert len(decode._decoders) == 1
        monkeypatch.setattr(wire_format, "_MOST_CHARACTERS", 1 << 20)
        assert decode(record_batch(values)).rows.column("id").to_pylist() == [1] * 9
        assert len(decode._decoders) == 9


@pytest.mark.parametrize("kind", ["JSON", "PROTOBUF"])  # one of Avro has a limit for all of its types
def test_many_fields_of_a_type_that_cannot_be_a_column_are_no_work_for_each(
    server: FakeRegistry, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"f{i}" for i in range(50)]
    parts: dict[str, Any] = {f"x{i}": {"type": "integer"} for i in range(1_000)} | {"z": {}}
    fields = " ".join(f"P {name} = {i};" for i, name in enumerate(names, 1))
    numbered = " ".join(f"int32 x{i} = {i};" for i in range(1, 1_000))
    schemas: dict[str, Any] = {
        "JSON": {
            "type": "object",
            "properties": {name: {"$ref": "#/part"} for name in names},
            "part": {"type": "object", "properties": parts},
        },
        "PROTOBUF": f'syntax = "proto3"; message R {{ {fields} }} message P {{ {numbered} P z = 1000; }}',
    }
    server.register("orders-value", schemas[kind], kind=kind)
    server.register("orders-value", SCHEMAS[kind], kind=kind)
    found = DECLARED[kind].prepared(["orders"], "value", {"r": server.config})
    looks: list[int] = []
    take = Budget.take

    def counted(budget: Budget, *args: Any, **kwargs: Any) -> None:
        looks.append(1)
        take(budget, *args, **kwargs)

    monkeypatch.setattr(Budget, "take", counted)
    assert found.with_fields("add", "target", lambda: None).columns().names == ["id"]
    assert len(looks) < 40_000  # 100,000 if each field had a limit of its own


def test_decoders_are_forgotten_by_the_types_that_they_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_format, "_MOST_CHARACTERS", 100_000)
    columns = pa.schema([("id", pa.int64())])
    text = json.dumps({**AVRO, "fields": [*AVRO["fields"], field("rest", avro_laughs(9))]})
    decode = PrefixedDecoder(columns, lambda _: AvroDecoder(avro_schema.parse(text), columns, None))
    values = [wire(number, b"\x02" + b"\x00" * 256) for number in range(9)]

    assert decode(record_batch(values)).rows.column("id").to_pylist() == [1] * 9
    # Each has 770 types.
    assert len(decode._decoders) < 5


class TestCompiler:
    def test_no_module_of_the_current_directory_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("grpc_tools", "signal", "google"):
            (tmp_path / f"{name}.py").write_text("import pathlib; pathlib.Path('ran').touch(); raise SystemExit(7)")
        monkeypatch.chdir(tmp_path)
        (found,) = compile_schemas({"1": RegisteredSchema("PROTOBUF", PROTO)}).values()
        assert isinstance(found, str)
        assert not (tmp_path / "ran").exists()

    def test_a_schema_that_ends_the_compiler_is_alone_in_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        dying = protobuf_schema._COMPILE.replace(
            "    if protoc.main",
            "    text = open(directory + '/' + name).read()\n"
            "    'crash' in text and signal.raise_signal(signal.SIGKILL)\n"
            "    while 'hang' in text: pass\n"
            "    'greedy' in text and bytearray(2 << 30)\n"
            "    if protoc.main",
        )
        monkeypatch.setattr(protobuf_schema, "_COMPILE", dying)
        monkeypatch.setattr(protobuf_schema, "_COMPILE_SECONDS", 1)
        texts = {"1": PROTO, "2": f"{PROTO} // crash", "3": f"{PROTO} // hang", "4": PROTO, "5": "message {"}
        texts["6"] = f"{PROTO} // greedy"
        found = compile_schemas({key: RegisteredSchema("PROTOBUF", text) for key, text in texts.items()})
        assert found["1"] == found["4"]
        assert isinstance(found["1"], str)
        assert {str(found[key]) for key in "236"} == {"it ended the compiler, which has 1 seconds of CPU and 1,024 MiB"}
        assert "line 1:9: Expected message name" in str(found["5"])

    @pytest.mark.parametrize("word", ["reserved", "extensions"])
    @pytest.mark.parametrize("is_compiled", [False, True])
    def test_numbers_that_the_compiler_compares_with_each_other_are_limited(self, word: str, is_compiled: bool) -> None:
        def found(count: int) -> str | SchemaError:
            ranges = ", ".join(str(2 * number) for number in range(1, count + 1))
            text = f'syntax = "proto2"; message Outer {{ message Order {{ optional int64 id = 1; {word} {ranges}; }} }}'
            if is_compiled:
                with pytest.MonkeyPatch.context() as unlimited:
                    unlimited.setattr(protobuf_schema, "_MOST_NUMBERS", 1_000_000)
                    files = FileDescriptorSet.FromString(base64.b64decode(compiled(text))).file
                text = base64.b64encode(files[-1].SerializeToString()).decode()
            return compile_schemas({"1": RegisteredSchema("PROTOBUF", text)})["1"]

        assert isinstance(found(24_000), str)
        assert str(found(26_000)) == "it has more than 25,000 numbers"

    def test_only_the_beginning_of_what_the_compiler_says_is_read(self) -> None:
        tracemalloc.start()
        found = compile_schemas({"1": RegisteredSchema("PROTOBUF", PROTO + "a;" * 100_000)})
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        tracemalloc.stop()
        assert "Expected top-level statement" in str(found["1"])
        assert len(str(found["1"])) < 1_000

    def test_a_compiler_that_does_not_start_makes_no_record_bad(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(protobuf_schema, "_COMPILE", "raise ImportError('libstdc++')")
        with pytest.raises(StagingError, match=r"The compiler of Protobuf failed: (?s:.*)ImportError: libstdc"):
            compile_schemas({"1": RegisteredSchema("PROTOBUF", PROTO)})


_JSON = st.recursive(
    st.sampled_from([None, True, -1, 0, 1e999, 2**70, "", "int", "record", "string", "null", "fixed", "enum", "#"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "name", "fields", "items", "values", "symbols", "size", "default", "aliases", "namespace",
                 "logicalType", "precision", "scale", "properties", "$ref", "oneOf", "anyOf", "enum", "format", "$defs"]
            ),
            inner,
        )
    ),
)  # fmt: skip


@st.composite
def _damaged(draw: st.DrawFn, schema: Any) -> Any:
    """A schema of which some part is another."""
    if isinstance(schema, dict) and schema and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(sorted(schema)))
        return schema | {key: draw(_damaged(schema[key]))}
    if isinstance(schema, list) and schema and draw(st.integers(0, 4)):
        place = draw(st.integers(0, len(schema) - 1))
        return [*schema[:place], draw(_damaged(schema[place])), *schema[place + 1 :]]
    return draw(_JSON)


_LOGICAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
_WHOLE = record(
    "r",
    field("a", ["null", {"type": "enum", "name": "e", "symbols": ["A", "B"]}], default=None),
    field("b", {"type": "array", "items": record("p", field("x", _LOGICAL), field("y", "r"))}),
    field("c", {"type": "map", "values": ["null", "int", "string"]}, aliases=["d"], default={}),
    field("f", {"type": "fixed", "name": "f", "size": 3}, default="abc"),
)


@examples(1_000)
@given(schema=_damaged(_WHOLE))
def test_any_json_is_an_avro_schema_or_a_schema_error(schema: Any) -> None:
    try:
        kind = avro_schema.parse(json.dumps(schema))
    except SchemaError:
        return
    found = Avro(schema=json.dumps(schema))
    try:
        columns = found.columns()
    except ConfigurationError:
        return
    try:
        AvroDecoder(kind, columns, kind)
    except SchemaError:
        return
    rows, bad = found.decoder(columns)(record_batch([b"", b"\0" * 20, b"\2" * 20]))
    assert rows.num_rows + len(bad) == 3


@examples(1_000)
@given(schema=_damaged({"type": "object", "properties": {"a": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/d"}]},
                        "b": {"type": "array", "items": {"type": "string", "format": "date"}}, "c": {"enum": ["x"]}},
                        "$defs": {"d": {"type": ["null", "integer"]}}}))  # fmt: skip
def test_any_json_is_a_json_schema_or_a_schema_error(schema: Any) -> None:
    try:
        columns_of(RegisteredSchema("JSON", json.dumps(schema)))
    except SchemaError:
        return


class Counted:
    """A schema that counts how often its names are asked for: Arrow makes a list of all of them each time."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema, self.asked = schema, 0

    @property
    def names(self) -> list[str]:
        self.asked += 1
        return list(self._schema.names)

    def field(self, name: str) -> pa.Field:
        return self._schema.field(name)


@pytest.mark.parametrize("odd", ["a.b", "l.element", "s", "deep", "id\0", "x\nFAKE"])
def test_a_field_of_an_older_schema_that_another_would_hide_is_no_column(odd: str) -> None:
    def schema(**properties: Any) -> dict[str, Any]:
        return {"text": json.dumps({"type": "object", "properties": properties}), "references": []}

    text: dict[str, Any] = {"type": "string"}
    parts = {"x.y": text, "x": {"type": "object", "properties": {"y": text}}}
    nested: dict[str, Any] = {"type": "object", "properties": parts}
    of_odd = {"s": nested, "deep": {"type": "array", "items": nested}}.get(odd, text)
    newest = {"id": text, "a": {"type": "object", "properties": {"b": text}}, "l": {"type": "array", "items": text}}
    schemas = {"1": schema(**{odd: of_odd, "note": text}), "2": schema(**newest)}
    found = with_values(JsonSchema(registry_conn_id="r"), schemas=schemas, latest="2")

    assert found.with_fields("add", "orders", lambda: None).columns().names == ["id", "a", "l", "note"]


def test_the_names_of_columns_are_not_listed_for_each_field(monkeypatch: pytest.MonkeyPatch) -> None:
    older, newest = (
        {
            "text": json.dumps({"type": "object", "properties": {name: {"type": "string"} for name in names}}),
            "references": [],
        }
        for names in (map(str, range(50)), ["id"])
    )
    found = with_values(JsonSchema(registry_conn_id="r"), schemas={"1": older, "2": newest}, latest="2")
    counted = Counted(found.columns())
    monkeypatch.setattr(JsonSchema, "columns", lambda _: counted)

    with_fields = found.with_fields("add", "orders", lambda: None)

    assert counted.asked < 5
    assert with_fields.ddl is not None
    assert with_fields.ddl.count("STRING") == 51
    counted.asked = 0
    assert len(_unread(older, counted)) == 50
    assert counted.asked < 5
