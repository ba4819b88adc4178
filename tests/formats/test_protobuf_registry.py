"""What the format Protobuf takes from a registry before Spark starts, what its tasks still ask for, and prefixes of
records.
"""

from __future__ import annotations

import base64
import importlib.util
import logging
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from airflow_kafka_offsets.core import libraries
from airflow_kafka_offsets.core.templates import with_values
from airflow_kafka_offsets.exceptions import ConfigurationError, StagingError
from airflow_kafka_offsets.formats import protobuf_schema, registry_format
from airflow_kafka_offsets.formats.protobuf_format import Protobuf
from airflow_kafka_offsets.formats.record_format import Decoded, SchemaError
from tests.support.decoding import record_batch
from tests.support.protobuf import as_base64, compiled, decoded, given, known, own_columns, wire, zigzag
from tests.support.registry import FakeRegistry, fake_registry

V1 = 'syntax = "proto3"; package shop; message Order { int32 id = 1; }'
V2 = 'syntax = "proto3"; package shop; message Order { int32 id = 1; string note = 2; }'
GROUPS = 'syntax = "proto2"; message Order { optional int32 id = 1; optional group Old = 2 { optional int32 x = 3; } }'
NESTED = """
syntax = "proto3";
message First { int32 a = 1; }
message Outer {
  map<string, int32> counts = 1;
  message Middle { message Inner { int32 b = 1; } }
}
"""
PROTOBUF = Protobuf(registry_conn_id="registry")


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry


def prepared(server: FakeRegistry, record_format: Protobuf = PROTOBUF, *topics: str) -> Protobuf:
    return record_format.prepared(topics or ("orders",), "value", {"registry": server.config})


def decode(server: FakeRegistry, record_format: Protobuf, *records: bytes | None) -> Decoded:
    """What a task makes of records, to which the format is sent."""
    travelled = pickle.loads(pickle.dumps(record_format))
    assert travelled == record_format
    assert isinstance(travelled, Protobuf)
    return travelled.connected_decoder(travelled.columns(), {"registry": server.config})(record_batch(list(records)))


def test_the_columns_are_those_of_the_latest_schema(server: FakeRegistry) -> None:
    server.register("orders-value", V1, kind="PROTOBUF")
    server.register("orders-value", V2, kind="PROTOBUF")

    found = prepared(server)
    rows, bad = decode(server, found, wire(1, b"\x08\x05", 0), wire(2, b"\x12\x01n", 0), wire(2, b"", 0), None)

    assert (found.columns().names, bad) == (["id", "note"], [])
    assert rows.to_pylist() == [
        {"id": 5, "note": ""},
        {"id": 0, "note": "n"},
        {"id": 0, "note": ""},
        {"id": None, "note": None},
    ]


def test_tasks_compile_what_they_fetch_once(server: FakeRegistry) -> None:
    server.register("orders-value", V1, kind="PROTOBUF")
    found = prepared(server)
    server.register("elsewhere", V2, kind="PROTOBUF", number=70_000)
    server.requests.clear()

    rows, bad = decode(
        server,
        found,
        *[wire(1, b"\x08\x01", 0), wire(70_000, b"\x08\x02", 0)] * 2,
        *(wire(8, b"", index) for index in range(3)),
    )

    assert rows.column("id").to_pylist() == [1, 2, 1, 2]
    assert [record.row for record in bad] == [4, 5, 6]
    assert sorted(server.requests) == ["/schemas/ids/70000", "/schemas/ids/8"]


def test_a_missing_compiler_on_executors_is_no_records_fault(
    server: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.register("orders-value", V1, kind="PROTOBUF")
    found = prepared(server)
    server.register("orders-value", V2, kind="PROTOBUF", number=7)
    server.register("elsewhere", V2, kind="PROTOBUF", number=8)

    def missing(_: object) -> None:
        raise ModuleNotFoundError("grpc_tools")

    monkeypatch.setattr(protobuf_schema, "import_module", missing)
    assert decode(server, found, wire(1, b"", 0)).rows.num_rows == 1
    with pytest.raises(StagingError, match="schema 7, which the worker did not fetch, and grpcio-tools") as raised:
        decode(server, found, wire(7, b"", 0))
    assert raised.value.retriable
    # No retry fetches this one.
    (bad,) = decode(server, found, wire(8, b"", 0)).bad
    assert "schema 8: A record has schema 8, which the worker did not fetch, and grpcio-tools" in bad.reason


def test_record_with_an_unknown_schema_id_is_bad_and_named(server: FakeRegistry) -> None:
    server.register("orders-value", V1, kind="PROTOBUF")
    server.register("other", '"int"', number=5)
    server.register("broken", "message {", kind="PROTOBUF", number=6)
    found = prepared(server, replace(PROTOBUF, ddl="id INT"))
    host = server.url.removeprefix("http://")

    rows, bad = decode(
        server, found, wire(99, b"", 0), wire(1, b"\x08\x03", 0), wire(5, b"", 0), wire(6, b"", 0), wire(1, b"", 3)
    )

    assert rows.to_pylist() == [{"id": 3}]
    assert [(record.row, record.reason) for record in bad] == [
        (0, f"schema 99: the schema registry at {host} has none with this id"),
        (2, "schema 5: it is of the type 'AVRO'"),
        (3, bad[2].reason),
        (4, "schema 1: it has no message with the index 3"),
    ]
    assert "schema 6: line 1:9: Expected message name" in bad[2].reason


def test_references_are_resolved_by_their_paths(server: FakeRegistry) -> None:
    server.register("cents", 'syntax = "proto3"; package m; message Cents { int64 n = 1; }', kind="PROTOBUF")
    money = 'syntax = "proto3"; package m; import "m/cents.proto"; message Money { Cents cents = 1; }'
    server.register("money", money, [{"name": "m/cents.proto", "subject": "cents", "version": 1}], kind="PROTOBUF")
    order = 'syntax = "proto3"; import "m/money.proto"; message Order { m.Money net = 1; }'
    server.register("orders-value", order, [{"name": "m/money.proto", "subject": "money", "version": 1}], "PROTOBUF")

    rows, bad = decode(server, prepared(server), wire(3, b"\x0a\x04\x0a\x02\x08\x07", 0))

    assert (rows.to_pylist(), bad) == ([{"net": {"cents": {"n": 7}}}], [])


SHOP = {
    "cents": 'syntax = "proto3"; package m; message Cents { int64 n = 1; }',
    "money": """
        syntax = "proto3"; package m;
        import "cents.proto"; import "google/protobuf/timestamp.proto";
        message Money { Cents cents = 1; google.protobuf.Timestamp at = 2; }
    """,
    "order": 'syntax = "proto3"; import "money.proto"; message Unused {} message Order { m.Money net = 1; }',
}


@pytest.mark.parametrize("encoded", ["cents money order", "order", "money", "cents order", "cents"])
def test_schemas_that_a_registry_has_as_descriptors_are_read(server: FakeRegistry, encoded: str) -> None:
    """confluent-kafka's serializer registers Base64 of a FileDescriptorProto, and Apicurio gives it back as it is."""
    texts = SHOP | {name: text for name, text in as_base64(**SHOP).items() if name in encoded.split()}
    for name, *used in (("cents",), ("money", "cents"), ("order", "money")):
        references = [{"name": f"{other}.proto", "subject": other, "version": 1} for other in used]
        server.register("orders-value" if name == "order" else name, texts[name], references, kind="PROTOBUF")
    record = wire(3, b"\x0a\x08\x0a\x02\x08\x07\x12\x02\x08\x01", 1)
    money = {"cents": {"n": 7}, "at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}

    latest = decode(server, prepared(server, replace(PROTOBUF, message="Order")), record)
    declared = decode(server, replace(PROTOBUF, ddl="net STRUCT<cents: STRUCT<n: INT>>"), record)

    assert (latest.rows.to_pylist(), latest.bad) == ([{"net": money}], [])
    assert (declared.rows.to_pylist(), declared.bad) == ([{"net": {"cents": {"n": 7}}}], [])


@pytest.mark.parametrize("text", ["", "AAAA", "CgdjLnByb3Rv/w==", base64.b64encode(b"\x0a\x01a\x1a\x01b").decode()])
def test_base64_of_no_schema_is_refused(server: FakeRegistry, text: str) -> None:
    server.register("orders-value", text, kind="PROTOBUF")
    with pytest.raises(ConfigurationError, match=r"Schema 1 is not a usable Protobuf schema|has no message"):
        prepared(server).columns()


@pytest.mark.parametrize("name", ["../evil.proto", "/evil.proto", "a/../../evil.proto"])
def test_an_import_cannot_leave_the_directory_of_the_compiler(server: FakeRegistry, name: str) -> None:
    server.register("evil", V1, kind="PROTOBUF")
    server.register("orders-value", V1, [{"name": name, "subject": "evil", "version": 1}], "PROTOBUF")
    with pytest.raises(ConfigurationError, match="its imports cannot be written as files"):
        prepared(server)


def test_the_message_index_is_read_as_a_path_of_zigzag_numbers() -> None:
    texts = {1: NESTED}
    found = known(texts, ddl="a INT, b INT")
    records = [
        wire(1, b"\x08\x01", 0),
        b"\0\0\0\0\1" + zigzag(1, 0) + b"\x08\x02",
        wire(1, b"\x08\x03", 1, 0, 0),
        b"\0\0\0\0\1",
        b"\0\0\0\0\1\2",
        b"\0\0\0\0\1\1",
        b"\0\0\0\0\1\xff\xff\xff\xff\xff",
        b"\0\0\0\0\1" + zigzag(2, 1),
        # Zero, and one, in more bytes than they need.
        b"\0\0\0\0\1\x80\0\x08\1",
        b"\0\0\0\0\1\x82\x80\0\0\x08\1",
        wire(1, b"", 1, 2),
        b"",
        b"\1\0\0\0\1\0",
        b'{"id": 1}',
    ]

    rows, bad = decoded(found, records)

    assert own_columns(rows) == [{"a": 1, "b": None}, {"a": 2, "b": None}, {"a": None, "b": 3}]
    unreadable = "schema 1: the index of its message, which follows the id of its schema, is not readable"
    no_wire = "it does not begin with the byte 0 and the id of a schema, as Confluent's wire format does"
    assert [record.reason for record in bad] == [
        *[unreadable] * 7,
        "schema 1: it has no message with the index 1.2",
        *[no_wire] * 3,
    ]


EVENT = """
syntax = "proto3";
message Event {
  map<string, string> tags = 1;
  message Paid { int32 paid = 1; }
  message Refund { int32 refund = 1; }
}
"""


def test_a_nested_message_beside_maps_has_the_index_of_any_client() -> None:
    """Clients for Java count the messages, those for Python, Go and .NET also the entries of maps."""
    records = [wire(1, b"\x08\x01", 0, 0), wire(1, b"\x08\x02", 0, 1), wire(1, b"\x08\x03", 0, 2)]
    either = "schema 1: it is the message Event.Paid or Event.Refund"

    rows, bad = decoded(known({1: EVENT}, ddl="paid INT, refund INT"), records)
    assert own_columns(rows) == [{"paid": 1, "refund": None}, {"paid": None, "refund": 3}]
    (record,) = bad
    assert record.reason.startswith(f"{either}: ")
    assert "message=" in record.reason

    rows, bad = decoded(known({1: EVENT}, ddl="paid INT", message="Paid"), records)
    assert own_columns(rows) == [{"paid": 1}, {"paid": 2}]
    assert [record.reason for record in bad] == ["schema 1: it is the message Event.Refund, and not Paid"]

    rows, bad = decoded(known({1: EVENT}, ddl="refund INT", message="Event.Refund"), records)
    assert own_columns(rows) == [{"refund": 2}, {"refund": 3}]
    assert [record.reason for record in bad] == ["schema 1: it is the message Event.Paid, and not Event.Refund"]

    rows, bad = decoded(known({1: EVENT}, ddl="paid INT", message="Event"), records[1:2])
    assert [record.reason for record in bad] == [f"{either}, and not Event"]


def test_another_message_than_the_named_one_is_bad() -> None:
    rows, bad = decoded(known({1: NESTED}, message="First", latest="1"), [wire(1, b"\x08\x01", 0), wire(1, b"", 1)])
    assert own_columns(rows) == [{"a": 1}]
    assert [record.reason for record in bad] == ["schema 1: it is the message Outer, and not First"]


def test_a_renamed_field_is_found_by_its_number_if_columns_are_taken_from_the_schema() -> None:
    texts = {1: V2.replace("note", "remark"), 2: V2}
    assert own_columns(decoded(known(texts), [wire(1, b"\x12\x01n", 0)]).rows) == [{"id": 0, "note": "n"}]
    declared = known(texts, ddl="note STRING, remark STRING")
    assert own_columns(decoded(declared, [wire(1, b"\x12\x01n", 0)]).rows) == [{"note": None, "remark": "n"}]


def test_slow_schema_is_logged_at_planning(server: FakeRegistry, caplog: pytest.LogCaptureFixture) -> None:
    server.register("orders-value", V1, kind="PROTOBUF")
    server.register("orders-value", GROUPS, kind="PROTOBUF")
    server.register("orders-value", "message Order { optional int32 id = 200000; }", kind="PROTOBUF")
    with caplog.at_level(logging.INFO, registry_format.__name__):
        found = prepared(server, replace(PROTOBUF, ddl="id INT"))
    assert [message.split(" is ")[0] for message in caplog.messages] == ["Schema 2", "Schema 3"]
    group = b"\x08\x01\x13\x18\x05\x14"
    rows, bad = decode(server, found, wire(2, group, 0), wire(2, group[:-1], 0), wire(3, b"\x80\xd4\x61\x04", 0))
    assert (rows.column("id").to_pylist(), [record.row for record in bad]) == ([1, 4], [1])


def test_a_descriptor_set_is_read_on_the_worker(tmp_path: Path) -> None:
    file = tmp_path / "orders.desc"
    file.write_bytes(base64.b64decode(compiled(V2)))
    found = Protobuf(descriptor_file=str(file)).prepared(["orders"], "value", {})
    file.unlink()
    assert own_columns(decoded(found, [b"\x08\x05"]).rows) == [{"id": 5, "note": ""}]
    with pytest.raises(ConfigurationError, match=r"orders.desc' cannot be read: No such file"):
        Protobuf(descriptor_file=str(file)).prepared(["orders"], "value", {})
    file.write_bytes(b"message Order {}")
    with pytest.raises(ConfigurationError, match=r"orders.desc' cannot be used: it is not a usable descriptor set"):
        Protobuf(descriptor_file=str(file)).prepared(["orders"], "value", {})


@pytest.mark.parametrize("name", ["key", "value"])
def test_a_descriptor_set_whose_maps_have_no_keys_or_values_is_refused(name: str, tmp_path: Path) -> None:
    text = 'syntax = "proto3"; message M { map<string, int32> tags = 1; }'
    files = FileDescriptorSet.FromString(base64.b64decode(compiled(text)))
    (entry,) = files.file[-1].message_type[0].nested_type
    (field,) = [field for field in entry.field if field.name == name]
    # One without the number is refused by Google's library.
    field.name = "other"
    file = tmp_path / "orders.desc"
    file.write_bytes(files.SerializeToString())
    with pytest.raises(ConfigurationError, match="the map entry 'TagsEntry' has not a key and a value alone"):
        Protobuf(descriptor_file=str(file)).prepared(["orders"], "value", {}).columns()


@pytest.mark.parametrize(("file", "name"), [("timestamp", "Timestamp"), ("wrappers", "Int64Value")])
def test_a_descriptor_set_with_other_well_known_types_is_refused(file: str, name: str) -> None:
    text = f'syntax = "proto3"; import "google/protobuf/{file}.proto"; message M {{ google.protobuf.{name} a = 1; }}'
    files = FileDescriptorSet.FromString(base64.b64decode(compiled(text)))
    (message,) = [message for message in files.file[0].message_type if message.name == name]
    part = message.field[0].name
    message.field[0].name = "other"
    found = with_values(
        Protobuf(registry_conn_id="r"), schemas={"1": base64.b64encode(files.SerializeToString()).decode()}
    )
    for declared in (with_values(found, ddl="a TIMESTAMP" if part == "seconds" else "a BIGINT"), found):
        with pytest.raises((SchemaError, ConfigurationError), match=f"google.protobuf.{name} has no field '{part}'"):
            declared.decoders(with_values(declared, latest="1").columns())(b"\0\0\0\0\1\0", declared.schemas["1"])


def test_the_text_of_a_schema_is_compiled_on_the_worker() -> None:
    found = Protobuf(proto=V1 + V2.replace("Order", "Other").split(";", 2)[2]).prepared(["orders"], "value", {})
    assert (found.columns().names, found.conn_ids) == (["id"], ())
    assert with_values(found, message="shop.Other").columns().names == ["id", "note"]
    with pytest.raises(ConfigurationError, match="The text is not a usable Protobuf schema: line 1:"):
        Protobuf(proto="message {").prepared(["orders"], "value", {})


@pytest.mark.parametrize("library", ["ptars", "google.protobuf", "httpx", "grpc_tools"])
def test_a_library_that_is_missing_is_named_with_its_extra(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(libraries, "find_spec", lambda name: None if name == library else find(name))
    name = {"google.protobuf": "protobuf", "grpc_tools": "grpcio-tools"}.get(library, library)
    with pytest.raises(
        ConfigurationError,
        match=rf"needs {name}: install the extra 'airflow-kafka-offsets\[protobuf\]' on the worker, and ptars, "
        "protobuf, httpx where Spark's executors run",
    ):
        Protobuf("id INT", proto=V1).prepared(["orders"], "value", {})


@pytest.mark.parametrize(
    ("record_format", "match"),
    [
        (lambda: Protobuf(), "needs registry_conn_id, or proto, or descriptor_file; got none of them"),
        (lambda: replace(PROTOBUF, proto=V1), "got registry_conn_id and proto"),
        (lambda: PROTOBUF, "Protobuf without columns needs a schema"),
        (lambda: given(V1, message="Nothing"), "it has no message 'Nothing'"),
        (lambda: given(NESTED, message="Middle"), "the message 'Outer.Middle' has no fields"),
    ],
)
def test_parameters_that_cannot_work_are_refused(record_format: Callable[[], Protobuf], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        record_format().columns()


def test_the_latest_schemas_of_several_topics_have_to_be_alike(server: FakeRegistry) -> None:
    server.register("a-value", V1, kind="PROTOBUF")
    server.register("b-value", V1.replace("Order", "Purchase"), kind="PROTOBUF")
    server.register("c-value", V2, kind="PROTOBUF")
    assert prepared(server, PROTOBUF, "a", "b").columns().names == ["id"]
    with pytest.raises(ConfigurationError, match="The latest schemas of a-value, c-value differ"):
        prepared(server, PROTOBUF, "a", "c")
    with pytest.raises(ConfigurationError, match="has no Protobuf schema of subject 'd-value'"):
        prepared(server, PROTOBUF, "d")


def test_the_fingerprint_is_that_of_the_reader_and_not_of_what_is_known(server: FakeRegistry) -> None:
    server.register("orders-value", V1, kind="PROTOBUF")
    first, declared = prepared(server), prepared(server, replace(PROTOBUF, ddl="id INT"))
    server.register("orders-value", V2, kind="PROTOBUF")
    assert prepared(server).fingerprint() != first.fingerprint()
    assert prepared(server, replace(PROTOBUF, ddl="id INT")).fingerprint() == declared.fingerprint()
    assert replace(declared, message="Order").fingerprint() != declared.fingerprint()
