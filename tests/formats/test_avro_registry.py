"""What the format Avro takes from a registry before Spark starts, and what its tasks still ask for."""

from __future__ import annotations

import importlib.util
import json
import logging
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_offsets.core import libraries
from airflow_kafka_offsets.exceptions import REGISTRY, ConfigurationError, RegistryUnavailableError, StagingError
from airflow_kafka_offsets.formats import avro_decoder, registry_format, schema_registry
from airflow_kafka_offsets.formats.avro_format import Avro
from airflow_kafka_offsets.formats.json_schema_format import JsonSchema
from airflow_kafka_offsets.formats.protobuf_format import Protobuf
from airflow_kafka_offsets.formats.record_format import Decoded
from airflow_kafka_offsets.formats.schema_registry import NotFoundError, SchemaRegistry
from tests.support.avro import encode, wire
from tests.support.decoding import record_batch
from tests.support.registry import FakeRegistry, fake_registry

V1: dict[str, Any] = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "int"}]}
V2: dict[str, Any] = V1 | {"fields": [*V1["fields"], {"name": "note", "type": "string", "default": "-"}]}
POINT = {"type": "record", "name": "p", "fields": [{"name": "x", "type": "int"}]}
NODE = {
    "type": "record",
    "name": "n",
    "fields": [{"name": "id", "type": "int"}, {"name": "next", "type": ["null", "n"]}],
}
AVRO = Avro(registry_conn_id="registry")


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "_PAUSE_SECONDS", 0.0)


def prepared(server: FakeRegistry, record_format: Avro = AVRO, *topics: str) -> Avro:
    return record_format.prepared(topics or ("orders",), "value", {"registry": server.config})


def decode(server: FakeRegistry, record_format: Avro, *records: bytes) -> Decoded:
    """What a task makes of records, to which the format is sent."""
    travelled = pickle.loads(pickle.dumps(record_format))
    assert travelled == record_format
    assert isinstance(travelled, Avro)
    decoder = travelled.connected_decoder(travelled.columns(), {"registry": server.config})
    return decoder(record_batch(list(records)))


def test_the_columns_are_those_of_the_latest_schema_of_the_topics_subject(server: FakeRegistry) -> None:
    server.register("orders-value", V1)
    server.register("orders-value", V2)

    found = prepared(server)

    assert found.columns().names == ["id", "note"]
    assert sorted(found.schemas) == ["1", "2"]


def test_the_subject_is_that_of_the_part_or_the_named_one(server: FakeRegistry) -> None:
    server.register("orders-key", '"long"')
    server.register("shop.Order", V2)

    key = AVRO.prepared(["orders"], "key", {"registry": server.config})
    assert (key.columns().names, str(key.columns().types[0])) == (["value"], "int64")
    assert prepared(server, replace(AVRO, subject="shop.Order"), "a", "b").columns().names == ["id", "note"]


def test_ids_are_those_of_the_context_that_the_subject_names(server: FakeRegistry) -> None:
    eu = server.contexts[":.eu:"] = FakeRegistry(late={1})
    amount, tip, note = ({"name": name, "type": "int"} for name in ("amount", "tip", "note"))
    server.register("orders-value", V1 | {"fields": [tip, amount]})
    eu.register("orders-value", written := V1 | {"fields": [amount, tip]})
    eu.register("orders-value", V1 | {"fields": [amount, tip, note | {"default": 0}]})
    record_format = prepared(server, replace(AVRO, subject=":.eu:orders-value"))
    assert (sorted(record_format.schemas), record_format.versions) == (["2"], {":.eu:orders-value": 2})

    found = decode(server, record_format, wire(1, encode(written, {"amount": 100, "tip": 5})))

    assert found.rows.to_pylist() == [{"amount": 100, "tip": 5, "note": 0}]


@pytest.mark.parametrize("name", ["orders-value", ":.eu:orders-value"])
def test_a_newer_version_is_one_of_the_context(server: FakeRegistry, name: str) -> None:
    known = replace(AVRO, subject=":.eu:orders-value")
    eu = server.contexts[":.eu:"] = FakeRegistry()
    eu.register("orders-value", V1)
    schemas = registry_format.TaskSchemas(prepared(server, known), server.config)
    eu.register("orders-value", V2)
    eu.subjects[name] = eu.subjects.pop("orders-value")

    assert not schemas.is_new(1)
    assert schemas.is_new(2)


def test_tasks_ask_for_nothing_that_is_known_and_once_for_what_is_not(server: FakeRegistry) -> None:
    server.register("orders-value", V1)
    found = prepared(server)
    server.register("elsewhere", V2, number=70_000)
    server.requests.clear()
    old, new = wire(1, encode(V1, {"id": 1})), wire(70_000, encode(V2, {"id": 2, "note": "x"}))

    rows, bad = decode(server, found, old, new, old, new)

    assert (rows.column("id").to_pylist(), bad) == ([1, 2, 1, 2], [])
    assert server.requests == ["/schemas/ids/70000"]


def test_an_id_that_the_registry_does_not_know_is_the_records_fault_and_named(server: FakeRegistry) -> None:
    server.register("orders-value", V1)
    server.register("other", "syntax = 'proto3';", kind="PROTOBUF", number=5)
    server.register("broken", '{"type": "record"}', number=6)
    found = prepared(server)
    server.requests.clear()
    datum = encode(V1, {"id": 3})

    rows, bad = decode(server, found, wire(99, datum), wire(1, datum), wire(99, datum), wire(5, datum), wire(6, datum))

    assert rows.column("id").to_pylist() == [3]
    host = server.url.removeprefix("http://")
    assert [(record.row, record.reason) for record in bad] == [
        (0, f"schema 99: the schema registry at {host} has none with this id"),
        (2, f"schema 99: the schema registry at {host} has none with this id"),
        (3, "schema 5: it is of the type 'PROTOBUF'"),
        (4, "schema 6: it is malformed: KeyError 'name'"),
    ]
    assert server.requests.count("/schemas/ids/99") == 1


def test_a_registry_that_does_not_answer_is_an_outage_and_no_records_fault(server: FakeRegistry) -> None:
    server.register("orders-value", V1)
    found = prepared(server)
    server.answers += [503] * 4
    with pytest.raises(RegistryUnavailableError):
        decode(server, found, wire(9, b"\x02"))


def test_references_are_resolved(server: FakeRegistry) -> None:
    server.register("money", {"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]})
    whole = {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "net", "type": "Money"}, {"name": "gross", "type": ["null", "shop.Money"]}],
    }
    reference = {"name": "shop.Money", "subject": "money", "version": 1}
    server.register("orders-value", whole, [reference])

    rows, bad = decode(server, prepared(server), wire(2, b"\x02\x02\x04"), wire(2, b"\x06\x00"))

    assert not bad
    assert rows.to_pylist() == [{"net": {"cents": 1}, "gross": {"cents": 2}}, {"net": {"cents": 3}, "gross": None}]


def test_bytes_alone_have_no_length_if_clients_of_a_registry_write_them(server: FakeRegistry) -> None:
    server.register("orders-value", '"bytes"')
    sent = [b"\x04hi", b"\0", b"\x02{", b"hello", b"", b"\x0aworld"]

    rows, bad = decode(server, prepared(server), *(wire(1, value) for value in sent))

    assert (rows.column("value").to_pylist(), bad) == (sent, [])
    # In a union, and without a registry, they have one.
    server.register("orders-value", '["null", "bytes"]')
    rows, bad = decode(server, prepared(server), wire(2, b"\2\x04hi"), wire(2, b"\0"))
    assert (rows.column("value").to_pylist(), bad) == ([b"hi", None], [])
    alone = Avro(schema='"bytes"')
    rows, bad = alone.decoder(alone.columns())(record_batch([b"\x04hi", b"\x04h"]))
    assert (rows.column("value").to_pylist(), [record.row for record in bad]) == ([b"hi"], [1])


@pytest.mark.parametrize(
    ("topics", "match"),
    [
        (["unknown"], "has no Avro schema of subject 'unknown-value'"),
        (["orders", "payments"], "The latest schemas of orders-value, payments-value differ: declare the columns"),
    ],
)
def test_columns_that_no_subject_decides_have_to_be_declared(
    server: FakeRegistry, topics: list[str], match: str
) -> None:
    server.register("orders-value", V1)
    server.register("payments-value", V2)
    with pytest.raises(ConfigurationError, match=match) as raised:
        prepared(server, AVRO, *topics)
    assert raised.value.about == (REGISTRY,)
    declared = prepared(server, replace(AVRO, ddl="id BIGINT"), *topics)
    assert declared.columns().names == ["id"]


def test_slow_schema_is_logged_at_planning(server: FakeRegistry, caplog: pytest.LogCaptureFixture) -> None:
    server.register("orders-value", V1)
    server.register("orders-value", NODE)
    with caplog.at_level(logging.INFO, registry_format.__name__):
        prepared(server, replace(AVRO, ddl="id INT"))
        Avro("id INT", schema=json.dumps(NODE)).prepared(["orders"], "value", {})
    assert [message.split(" is ")[0] for message in caplog.messages] == ["Schema 2", "The Avro schema"]


def test_a_schema_that_the_quick_reader_does_not_know_is_decoded_one_by_one(
    server: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.register(
        "orders-value", {"type": "record", "name": "r", "fields": [{"name": "id", "type": ["int", "null", POINT]}]}
    )
    # As if the rules said that it could.
    monkeypatch.setattr(avro_decoder, "is_vectorized", lambda kind: True)
    rows, bad = decode(server, prepared(server, replace(AVRO, ddl="id INT")), wire(1, b"\x00\x04"), wire(1, b"\x02"))
    assert (rows.column("id").to_pylist(), bad) == ([2, None], [])


def test_a_failure_that_is_not_of_the_values_makes_no_record_bad(
    server: FakeRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.register("orders-value", V1)
    found = prepared(server)
    decoder, records = found.decoder(found.columns()), record_batch([wire(1, b"\x02")])
    assert decoder(records).rows.num_rows == 1
    monkeypatch.setattr(avro_decoder, "_file", lambda _: nullcontext(str(tmp_path / "removed.avro")))
    with pytest.raises(StagingError, match="The reader of Avro failed"):
        decoder(records)


@pytest.mark.parametrize("library", ["datafusion", "fastavro", "httpx"])
def test_a_library_that_is_missing_is_named_with_its_extra(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(libraries, "find_spec", lambda name: None if name == library else find(name))
    with pytest.raises(
        ConfigurationError, match=rf"needs {library}: install the extra 'airflow-kafka-offsets\[avro\]'"
    ):
        Avro("id INT", schema='"int"').prepared(["orders"], "value", {})


@pytest.mark.parametrize(
    ("record_format", "match"),
    [
        (lambda: Avro(), "Avro needs registry_conn_id, or a schema; got neither"),
        (lambda: Avro("id INT"), "needs registry_conn_id, or a schema"),
        (lambda: replace(AVRO, single_object=True), "single_object is for a schema without a registry"),
        (lambda: AVRO, "Avro without columns needs a schema"),
    ],
)
def test_parameters_that_cannot_work_are_refused(record_format: Callable[[], Avro], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        record_format().columns()


def test_a_registry_without_a_configuration_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'registry' has no configuration: give load or replay connections="):
        AVRO.prepared(["orders"], "value", {})


def test_the_fingerprint_is_that_of_the_reader_and_not_of_what_is_known(server: FakeRegistry) -> None:
    server.register("orders-value", V1)
    first = prepared(server)
    declared = prepared(server, replace(AVRO, ddl="id INT"))
    server.register("other-value", V2)
    assert prepared(server).fingerprint() == first.fingerprint()
    server.register("orders-value", V2)
    assert prepared(server).fingerprint() != first.fingerprint()
    assert prepared(server, replace(AVRO, ddl="id INT")).fingerprint() == declared.fingerprint()


@pytest.mark.parametrize(
    "made",
    [
        lambda **given: Avro("id INT", **given),
        lambda **given: Protobuf("id INT", **given),
        lambda **given: JsonSchema("id INT", **given),
    ],
    ids=["avro", "protobuf", "json_schema"],
)
def test_the_fingerprint_is_that_of_the_registry_and_of_the_context(
    server: FakeRegistry, made: Callable[..., Avro | Protobuf | JsonSchema]
) -> None:
    """Where one of them is corrected, a batch that is staged with the other is staged again."""
    server.contexts[":.eu:"] = FakeRegistry()
    config = server.config
    corrected = config | {"url": str(config["url"]).replace("127.0.0.1", "localhost")}
    connections = {"registry": config, "other": config}

    def printed(config: Mapping[str, Any] = config, **given: Any) -> str:
        record_format = made(**{"registry_conn_id": "registry", **given})
        return record_format.prepared(["orders"], "value", {**connections, "registry": config}).fingerprint()

    prints = [
        printed(),
        printed(corrected),
        printed(registry_conn_id="other"),
        printed(subject=":.eu:orders-value"),
        printed(subject=":.us:orders-value"),
    ]
    assert len(set(prints)) == len(prints)
    assert printed(subject="other-value") == printed(subject=":.:other-value") == prints[0]


def test_a_version_that_is_listed_and_not_given_is_left_out(
    server: FakeRegistry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.register("orders-value", V1)
    server.register("orders-value", V2)
    given = SchemaRegistry.version

    def version(self: SchemaRegistry, subject: str, number: int) -> Any:
        if number == gone:
            raise NotFoundError(f"no version {number}")
        return given(self, subject, number)

    monkeypatch.setattr(SchemaRegistry, "version", version)
    gone = 1
    assert sorted(prepared(server).schemas) == ["2"]
    assert "Version 1 of subject 'orders-value' is not a usable Avro schema: no version 1" in caplog.text
    gone = 2
    with pytest.raises(ConfigurationError, match="Version 2 of subject 'orders-value' is not a usable Avro schema"):
        prepared(server)


def test_the_plain_data_holds_no_secret(server: FakeRegistry) -> None:
    server.register("orders-value", V1)
    config = server.config | {"basic.auth.user.info": "ada:5ecret"}
    found = AVRO.prepared(["orders"], "value", {"registry": config})
    assert "5ecret" not in str((asdict(found), repr(found), found.fingerprint()))
