"""What reads bytes of others, and how it may answer. A target returns a word for the outcome; it must not raise."""

from __future__ import annotations

import base64
import json
import os
import random
import tempfile
import urllib.parse
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa

from airflow_kafka_offsets.core.templates import with_values
from airflow_kafka_offsets.exceptions import ConfigurationError, KafkaOffsetsError
from fuzz.mutation import damaged, damaged_json

Reader = Callable[[bytes], str]


class Target(NamedTuple):
    """What is fed.

    :param prepare: returns the reader, and what it is fed first
    :param damage: returns what it is fed next
    """

    prepare: Callable[[], tuple[Reader, Sequence[bytes]]]
    damage: Callable[[random.Random, Sequence[bytes]], bytes] = damaged


# Between the records of a batch.
_BETWEEN = b"\xfe\xfd\xfc"


def _decoder(record_format: Any, *, keys: bool = False) -> Reader:
    """Return a reader of batches, of which each record is a row or bad."""
    from airflow_kafka_offsets.formats.record_format import RefusedSchemasError, decoder_of
    from tests.support.decoding import record_batch

    columns = record_format.columns()
    decode = decoder_of(record_format, columns, {})

    def read(data: bytes) -> str:
        values = data.split(_BETWEEN)[:50]
        records = record_batch(values)
        if keys:
            records = records.set_column(records.schema.get_field_index("key"), "key", records.column("value"))
            header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            headers = [[{"key": value[:9].decode("utf-8", "replace"), "value": value}] for value in values]
            records = records.append_column("headers", pa.array(headers, header))
        try:
            rows, bad = decode(records)
        except RefusedSchemasError:
            return "too many ids"
        assert rows.num_rows + len(bad) == len(values), (rows.num_rows, bad)
        assert rows.schema == columns
        rows.validate(full=True)
        for record in bad:
            record.reason.encode()
        return "; ".join(sorted({record.reason for record in bad})) or f"{rows.num_rows} rows"

    return read


def _several(readers: Sequence[Reader]) -> Reader:
    """Return a reader of which the first byte chooses another."""
    return lambda data: f"{data[0] % len(readers)} {readers[data[0] % len(readers)](data[1:])}" if data else ""


_DDLS = (
    "id BIGINT NOT NULL, name STRING, ratio DOUBLE, share FLOAT, ok BOOLEAN, price DECIMAL(38,10), tax DECIMAL(5,2)",
    "id INT, day DATE, seen TIMESTAMP, local TIMESTAMP_NTZ, tags ARRAY<STRING>",
    "id SMALLINT, place STRUCT<x: INT, in: STRUCT<y: ARRAY<STRUCT<z: DECIMAL(10,3), at: TIMESTAMP>>>>",
)
_JSONS = (
    b'{"id": 1, "name": "a", "ratio": 1.5, "share": 1e3, "ok": true, "price": 1.25, "tax": "1.5"}',
    b'{"id": 1, "day": "2026-02-28", "seen": "2026-02-28T10:00:00.123456789Z", "local": "2026-02-28", "tags": ["a"]}',
    b'{"id": 1, "place": {"x": 1, "in": {"y": [{"z": 1.123, "at": "2026-01-01 00:00:00+01:00"}, null]}}}',
)


def _json_values() -> tuple[Reader, Sequence[bytes]]:
    from airflow_kafka_offsets.formats.simple_formats import Json

    corpus = [bytes([place]) + _BETWEEN.join([value] * 2) for place, value in enumerate(_JSONS)]
    return _several([_decoder(Json(ddl)) for ddl in _DDLS]), corpus


def _whole_records() -> tuple[Reader, Sequence[bytes]]:
    from airflow_kafka_offsets.formats.extra_columns import Header, whole_record
    from airflow_kafka_offsets.formats.simple_formats import Json, Raw, Text

    metadata: Any = {"at": "timestamp", "trace": Header("a"), "all": Header("a", "all", "BINARY")}
    formats = [whole_record(Text("text"), Json("id INT"), metadata), Raw(headers=True)]
    return _several([_decoder(each, keys=True) for each in formats]), [b"\0a\xfe\xfd\xfc{}", b'\0{"id": 1}', b"\1x"]


_AVRO: Any = {
    "type": "record", "name": "r", "namespace": "n",
    "fields": [
        {"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": ["null", "int"]}, "aliases": ["numbers"]},
        {"name": "kind", "type": {"type": "enum", "name": "e", "symbols": ["A", "B"]}, "default": "A"},
        {"name": "code", "type": {"type": "fixed", "name": "f", "size": 3}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "line", "fields": [
            {"name": "n", "type": "int"}, {"name": "x", "type": ["null", "double"]}]}}},
    ],
}  # fmt: skip
_UNIONS: Any = {"type": "record", "name": "u", "fields": [
    {"name": "id", "type": ["int", "string", {"type": "array", "items": "double"}]},
    {"name": "note", "type": "string", "default": "x"}]}  # fmt: skip
_LIST: Any = {"type": "record", "name": "node", "fields": [
    {"name": "id", "type": "int"}, {"name": "next", "type": ["null", "node"]},
    {"name": "more", "type": {"type": "array", "items": "node"}}]}  # fmt: skip
_WIDE: Any = {"type": "record", "name": "w", "fields": [{"name": "items", "type": {"type": "array", "items": [
    "null", {"type": "record", "name": "i", "fields": [
        {"name": f"f{i}", "type": ["null", "string"]} for i in range(900)]}]}}]}  # fmt: skip


def _avro_values() -> tuple[Reader, Sequence[bytes]]:
    from airflow_kafka_offsets.formats.avro_format import Avro
    from tests.support.avro import encode

    values: list[tuple[Any, str | None, Any]] = [
        (_AVRO, None, {"id": 1, "name": "a", "price": b"\x01\x02", "tags": ["x", "y"], "counts": {"a": 1, "b": None},
                       "kind": "B", "code": b"abc", "at": 1, "lines": [{"n": 1, "x": 2.5}, {"n": 2, "x": None}]}),
        (_UNIONS, "id STRUCT<member0: INT, member1: STRING, member2: ARRAY<DOUBLE>>, note STRING", {"id": "x",
                                                                                                "note": "y"}),
        (_LIST, "id INT", {"id": 1, "next": {"id": 2, "next": None, "more": []}, "more": []}),
        (_WIDE, None, {"items": [None, None]}),
    ]  # fmt: skip
    readers, corpus = list[Reader](), list[bytes]()
    for schema, ddl, value in values:
        text = json.dumps(schema)
        with_id = with_values(Avro(ddl, registry_conn_id="r"), schemas={"1": [text]}, latest="1")
        readers += [_decoder(Avro(ddl, schema=text)), _decoder(with_id)]
        data = encode(schema, value)
        corpus += [bytes([len(corpus)]) + data, bytes([len(corpus) + 1]) + b"\0\0\0\0\1" + data + _BETWEEN + b"\0\0"]
    return _several(readers), corpus


def _avro_schemas() -> tuple[Reader, Sequence[bytes]]:
    from airflow_kafka_offsets.formats.avro_format import Avro, _parsed
    from airflow_kafka_offsets.formats.record_format import SchemaError

    def read(data: bytes) -> str:
        text = data.decode("utf-8", "replace")
        try:
            kind = _parsed([text])
        except SchemaError as error:
            return str(error)
        try:
            found = _decoder(Avro(schema=text))
        except (ConfigurationError, SchemaError) as error:
            return str(error)
        return f"{kind.kind} {found(_BETWEEN.join([b'', bytes(20), b'x' * 50, b'00000000000']))}"

    return read, [json.dumps(schema).encode() for schema in (_AVRO, _UNIONS, _LIST, ["null", "int"], "string")]


_PROTO = """
syntax = "proto3"; package p;
import "google/protobuf/timestamp.proto"; import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto"; import "google/protobuf/duration.proto";
enum Kind { NONE = 0; PAID = 1; }
message Line { int32 n = 1; repeated double x = 2; map<string, int64> c = 3; }
message Order {
  int64 id = 1; optional string name = 2; bytes data = 3; Kind kind = 4; repeated Kind kinds = 5;
  google.protobuf.Timestamp at = 6; google.protobuf.Struct more = 7; google.protobuf.Int64Value boxed = 8;
  google.protobuf.Duration took = 9; repeated Line lines = 10; map<int32, Line> by = 11;
  oneof either { string text = 12; Line line = 13; } Line one = 14; repeated sint32 steps = 15; uint64 large = 16;
}
"""
_GROUPS = 'syntax = "proto2"; message Old { optional int32 id = 1; repeated group In = 2 { optional string a = 3; } }'
_WIDE_PROTO = f"""syntax = "proto3"; message W {{ repeated I items = 1; }}
message I {{ {" ".join(f"string f{i} = {i + 1};" for i in range(900))} }}"""


def _protobuf_values() -> tuple[Reader, Sequence[bytes]]:
    from airflow_kafka_offsets.formats.protobuf_format import Protobuf
    from tests.support.protobuf import compiled

    order = (
        b"\x08\x01\x12\x01a\x1a\x02\0\xff\x20\x01\x2a\x02\1\2\x32\x04\x08\x01\x10\x05\x3a\x0b\x0a\x09\x0a\x01k\x12\x04"
        b"\x1a\x02hi\x42\x02\x08\x07\x4a\x02\x08\x03\x52\x0d\x08\1\x12\x08\0\0\0\0\0\0\xf0\x3f\x1a\0\x5a\x06\x08\1\x12\2"
        b"\x08\1\x62\1x\x72\2\x08\1\x7a\2\1\2\x80\1\5"
    )
    readers, corpus = list[Reader](), list[bytes]()
    for text, name, value in (
        (_PROTO, "Order", order), (_GROUPS, "Old", b"\x08\1\x13\x1a\1x\x14"), (_WIDE_PROTO, "W", b"\x0a\0" * 3)
    ):  # fmt: skip
        encoded = compiled(text)
        known = Protobuf(registry_conn_id="r", message=name)
        readers.append(_decoder(with_values(known, schemas={"1": encoded}, latest="1")))
        path = b"\2\2" if name == "Order" else b"\0"
        corpus.append(bytes([len(corpus)]) + b"\0\0\0\0\1" + path + value)
        corpus.append(corpus[-1] + _BETWEEN + corpus[-1][1:7] + b"\x13" * 30)
    return _several(readers), corpus


def _protobuf_schemas() -> tuple[Reader, Sequence[bytes]]:
    from airflow_kafka_offsets.formats.protobuf_format import Protobuf
    from airflow_kafka_offsets.formats.protobuf_schema import compile_schemas
    from airflow_kafka_offsets.formats.record_format import SchemaError
    from airflow_kafka_offsets.formats.schema_registry import RegisteredSchema
    from tests.support.protobuf import compiled

    def read(data: bytes) -> str:
        if data[:1] == b"c":
            # A text, which takes a process; rarely.
            (found,) = compile_schemas(
                {"1": RegisteredSchema("PROTOBUF", data[1:].decode("utf-8", "replace"))}
            ).values()
            if isinstance(found, SchemaError):
                return str(found)
        else:
            found = base64.b64encode(data).decode()
        try:
            decode = _decoder(with_values(Protobuf(registry_conn_id="r"), schemas={"1": found}, latest="1"))
        except (SchemaError, ConfigurationError) as error:
            return str(error)
        return decode(b"\0\0\0\0\1\0" + _BETWEEN + b"\0\0\0\0\1\0\x08\1\x12\2\x08\1" + _BETWEEN + b"\0\0\0\0\1\2\2")

    texts = (
        _PROTO,
        _GROUPS,
        'syntax = "proto3"; message A { B b = 1; } message B { C c = 1; } message C { int32 x = 1; }',
    )
    return read, [*(base64.b64decode(compiled(text)) for text in texts), *(b"c" + text.encode() for text in texts)]


def _damaged_protobuf(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    some = [each for each in corpus if (each[:1] == b"c") == (rng.random() < 0.02)]
    return damaged(rng, some or corpus)


_JSON_SCHEMA: Any = {
    "type": "object",
    "properties": {"a": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/d"}]}, "c": {"enum": ["x"]},
                   "b": {"type": "array", "items": {"type": "string", "format": "date"}}, "d": {"$ref": "other#/x"}},
    "$defs": {"d": {"type": ["null", "integer"]}, "e": {"type": "object", "properties": {"f": {"type": "number"}}}},
}  # fmt: skip


def _json_schemas() -> tuple[Reader, Sequence[bytes]]:
    from airflow_kafka_offsets.formats.json_schema import columns_of, property_names, property_type
    from airflow_kafka_offsets.formats.record_format import SchemaError
    from airflow_kafka_offsets.formats.schema_limits import Budget
    from airflow_kafka_offsets.formats.schema_registry import Reference, RegisteredSchema

    def read(data: bytes) -> str:
        text = data.decode("utf-8", "replace")
        known = RegisteredSchema("JSON", text, (Reference("other", '{"x": {"type": "integer"}, "y": ' + text + "}"),))
        found = list[str]()
        try:
            for name in property_names(known):
                with suppress(SchemaError):
                    property_type(known, name, Budget())
            found.append("columns")
            columns_of(known)
            found.append("columns")
        except SchemaError as error:
            found.append(str(error))
        return "; ".join(found)

    return read, [json.dumps(_JSON_SCHEMA).encode()]


def _registry_answers() -> tuple[Reader, Sequence[bytes]]:
    from airflow_kafka_offsets.formats.record_format import SchemaError
    from airflow_kafka_offsets.formats.schema_registry import NotFoundError, SchemaRegistry

    references = [{"name": "a", "subject": "s", "version": 2}, {"name": "b", "subject": "s", "version": 1}]
    first = [{"schema": '"int"', "id": 1, "references": references}, {"schema": '"int"', "id": 2}, [1, 2]]

    def read(data: bytes) -> str:
        class Client:
            count = 0

            def stream(self, _: str, path: str) -> Any:
                self.count += 1
                parts = data.split(_BETWEEN)
                content = parts[self.count % len(parts)]
                return _Response(content)

        registry = SchemaRegistry({"url": "http://127.0.0.1:1"})
        client = registry.__dict__["_client"] = Client()
        found = []
        for ask in (lambda: registry.by_id(1), lambda: registry.version("s", 1), lambda: registry.versions("s")):
            try:
                found.append(type(ask()).__name__)
            except (SchemaError, KafkaOffsetsError, NotFoundError) as error:
                found.append(str(error))
        assert client.count <= 1_100
        return "; ".join(found)

    return read, [_BETWEEN.join(json.dumps(each).encode() for each in first), json.dumps(first[1]).encode()]


class _Response:
    status_code = 200

    def __init__(self, content: bytes) -> None:
        # What no JSON begins with is a damaged gzip.
        self.headers = {"Content-Encoding": "gzip"} if content[:1] == b"\x1f" else {}
        self._content = content

    def __enter__(self) -> _Response:
        return self

    def __exit__(self, *_: object) -> None: ...

    def iter_raw(self) -> Sequence[bytes]:
        return [self._content]


def _damaged_answers(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    parts = rng.choice(corpus).split(_BETWEEN)
    place = rng.randrange(len(parts))
    with suppress(ValueError):
        parts[place] = damaged_json(rng, [parts[place]])
    return _BETWEEN.join(parts)


def _manifests() -> tuple[Reader, Sequence[bytes]]:
    from airflow_kafka_offsets.loading.stage import find_staged
    from airflow_kafka_offsets.staging.manifest import MANIFEST, Manifest, StagedFile, _digest
    from tests.support.staged import RANGE, WANTED, batch
    from tests.support.staged import read as slice_read

    root = Path(tempfile.mkdtemp(prefix="fuzz-"))
    attempt = root / f"batch-1-{'0f' * 16}"
    attempt.mkdir()
    (attempt / "part-1.arrow").write_bytes(b"rows")
    (attempt / "dead-1.arrow").write_bytes(b"letters")
    planned = replace(batch(RANGE), state="staged", staging_uri=str(attempt))
    read_whole = slice_read(10, 30, dead_letters=1, dead_letters_file=StagedFile("dead-1.arrow", 1, 7, "d"))
    whole = Manifest(1, WANTED, (StagedFile("part-1.arrow", 4, 4, "f"),), (read_whole,))
    plain = asdict(whole)

    def read(data: bytes) -> str:
        text = data
        with suppress(ValueError, RecursionError):
            if isinstance(forged := json.loads(data), dict):
                text = json.dumps({"sha256": _digest(forged), **forged}).encode()
        (attempt / MANIFEST).write_bytes(text)
        found = find_staged(planned, WANTED, str(root))
        return "refused" if found is None else f"{found.records} {found.dead_letters}"

    return read, [json.dumps(plain).encode()]


def _lake_entries() -> tuple[Reader, Sequence[bytes]]:
    from airflow_kafka_offsets.sinks.lake.left_files import read_entries
    from tests.sinks.lake.test_changed_tables import connect
    from tests.sinks.lake.test_zombies import output, staged

    readers, corpus = list[Reader](), list[bytes]()
    for number, kind in enumerate(("delta", "iceberg")):
        directory = Path(tempfile.mkdtemp(prefix="fuzz-"))
        table: Any = connect(kind, directory)
        rows = staged(table, output(2, "a"), directory)
        snapshot, (file,) = table.snapshot(), rows.files
        shape = snapshot.shape(None)

        def read(data: bytes, file: Any = file, snapshot: Any = snapshot, shape: Any = shape) -> str:
            changed = replace(file, data=data.decode("utf-8", "replace"))
            try:
                (found,) = read_entries("t", [changed], lambda each: snapshot.entry(each, shape))
            except KafkaOffsetsError as error:
                return str(error)
            return type(found).__name__

        readers.append(read)
        corpus.append(bytes([number]) + file.data.encode())
    return _several(readers), corpus


def _damaged_entries(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    chosen = rng.choice(corpus)
    try:
        return chosen[:1] + damaged_json(rng, [chosen[1:]])
    except ValueError:
        return damaged(rng, corpus)


def _iceberg_metadata() -> tuple[Reader, Sequence[bytes]]:
    """What the next load reads of a table: its metadata, the list of its manifests, and one of these."""
    import sqlalchemy as sa

    from airflow_kafka_offsets.sinks.lake.snapshot import KnownRollbacks
    from tests.sinks.lake.test_zombies import output, staged
    from tests.support.iceberg import iceberg_sink, open_table

    directory, engine = Path(tempfile.mkdtemp(prefix="fuzz-")), sa.create_engine("sqlite://")
    properties = {"write.avro.compression-codec": "null"}
    sink = iceberg_sink("sql", directory, properties=properties, partition_by=("truncate(10, id)",), upsert_key=("id",))
    table: Any = sink.connect(engine)
    for number in (1, 2):
        rows = staged(table, output(number, "a"), directory)
        with table.publish(None, output(number, "a")) as target:
            target.write(rows)
    native = open_table(sink, engine)
    snapshot: Any = native.current_snapshot()
    names = [native.metadata_location, snapshot.manifest_list, snapshot.manifests(native.io)[0].manifest_path]
    files = [Path(name.removeprefix("file://")) for name in names]
    whole = [file.read_bytes() for file in files]

    def reader(number: int) -> Reader:
        def read(data: bytes) -> str:
            files[number].write_bytes(data)
            try:
                found = table.snapshot()
                found.check()
                found.check_history("loader", KnownRollbacks(None))
                return str(len(found.files([{"id": (3, 90)}])))
            except (FileNotFoundError, KafkaOffsetsError) as error:  # what others removed is looked for again
                return str(error)
            finally:
                files[number].write_bytes(whole[number])

        return read

    return _several([reader(number) for number in range(3)]), [bytes([n]) + data for n, data in enumerate(whole)]


def _headers() -> tuple[Reader, Sequence[bytes]]:
    from airflow_kafka_offsets.dead_letters.selection import Excerpt
    from airflow_kafka_offsets.plugin.rendering import _ENVIRONMENT
    from airflow_kafka_offsets.staging.dead_letters import header_text
    from airflow_kafka_offsets.staging.dead_letters import headers_of as stored_headers

    page = _ENVIRONMENT.from_string("{{ headers | headers_of }} {{ (value | text_of)[0] }} {{ (value | text_of)[1] }}")

    def read(data: bytes) -> str:
        headers = [{"key": part[:5].decode("utf-8", "ignore"), "value": part} for part in data.split(_BETWEEN)]
        text = header_text(headers)
        assert stored_headers(text, "orders", 0, 0) == [(each["key"], each["value"]) for each in headers]
        stored = data.decode("utf-8", "replace") if data[:1] == b"[" else str(text)
        shown = page.render(value=Excerpt(data, len(data)), headers=Excerpt(stored, len(stored)))
        assert b"<script" not in shown.encode()
        return shown[-40:]

    return read, [
        b"[]",
        b'[["a", "MQ=="], ["b", null]]',
        b'{"a": "\\ud800"}',
        b"a\xfe\xfd\xfcb",
        b'{"a": [1, {"b": 2}]}',
    ]


def _previews() -> tuple[Reader, Sequence[bytes]]:
    from airflow_kafka_offsets.rewinding.preview import RewindPreview, _checksum
    from tests.rewinding.test_preview import PREVIEW

    saved = PREVIEW.as_dict()
    del saved["checksum"]

    def read(data: bytes) -> str:
        text = data.decode("utf-8", "replace")
        with suppress(ValueError, RecursionError):
            if isinstance(forged := json.loads(text), dict):
                text = json.dumps(forged | {"checksum": _checksum(forged)})
        try:
            found = RewindPreview.from_json(text)
        except ConfigurationError as error:
            return str(error)[:40]
        json.dumps(found.as_dict())
        return "preview"

    return read, [json.dumps(saved).encode()]


def _forms() -> tuple[Reader, Sequence[bytes]]:
    from devstack.airflow import AirflowHome

    home = AirflowHome()
    os.environ.update(home.env)
    home.migrate()
    import pytest
    import sqlalchemy as sa

    from airflow_kafka_offsets.ledger.batch_rows import TaskRun
    from airflow_kafka_offsets.plugin.access import Caller
    from devstack.topics import create_topic
    from tests.support.clients import produce
    from tests.support.inline import InlineLauncher
    from tests.support.loads import Loader, names
    from tests.support.memory_log import MemoryLog
    from tests.support.verifying import LEFT_OUT
    from tests.support.web import Web, of_group, readings, ticket_of

    directory = tempfile.mkdtemp(prefix="fuzz-")
    engine = sa.create_engine(f"sqlite:///{directory}/w.db", hide_parameters=True)
    patch = pytest.MonkeyPatch()
    log = MemoryLog().install(patch)
    create_topic(log.bootstrap_servers, "orders", 1)
    produce(log, "orders", [*names(0, 3), b"[]"])
    Loader(log, engine, InlineLauncher())("orders", run=TaskRun("r", "shop", "t", -1, 1), **LEFT_OUT)
    patch.setattr(Caller, "edited_dags", lambda *_: ["shop"])
    patch.setattr(Caller, "sees_records", lambda *_: True)
    web = Web(readings({"warehouse": engine}, log))
    group = of_group("loader")
    client = web.client("operator")
    base = "/kafka-offsets"
    tickets = {"preview": ticket_of(web.get("/rewind", "operator", **group))}

    def read(data: bytes) -> str:
        # The client of the tests refuses longer addresses.
        form = dict(urllib.parse.parse_qsl(data[:4_000].decode("utf-8", "replace"), keep_blank_values=True))
        path = form.pop("path", "")
        query = urllib.parse.urlencode({name[2:]: text for name, text in form.items() if name.startswith("q-")})
        sent = {name: text for name, text in form.items() if not name.startswith("q-")}
        with suppress(ValueError):
            if path in ("rewind/preview", "rewind/execute", "verify"):
                sent = {"ticket": tickets["preview"], **sent}
                answer = client.post(
                    f"{base}/{path}?{query}",
                    data=sent,
                    headers={"Sec-Fetch-Site": "same-origin"},
                    follow_redirects=False,
                )
            else:
                answer = client.get(f"{base}/{urllib.parse.quote(path)}?{query}", follow_redirects=False)
            assert answer.status_code < 500, answer.text
            return f"{path[:10]} {answer.status_code}"
        return "no address"

    found = "q-conn_id=warehouse&q-group=loader"
    pages = ("rewind", "group", "batch", "dead-letters", "history", "", "static/style.css")
    corpus = [f"path={page}&{found}&q-batch=1&q-page=1&q-scenario=to-offset&q-value=1" for page in pages]
    for scenario, value in (("to-offset", "0"), ("shift-by", "-1"), ("to-datetime", "2026-01-01T00:00:00Z"),
                            ("by-duration", "P1DT12H"), ("from-file", "orders%2C0%2C1"), ("to-batch", "1"),
                            ("to-group", "x"), ("undo", ""), ("import", "y")):  # fmt: skip
        corpus.append(f"path=rewind/preview&{found}&scenario={scenario}&value-{scenario}={value}&scope=orders:0"
                      "&kafka_conn_id=kafka_default&isolation_level=read_committed&replace=1&abandon=1")  # fmt: skip
    return read, [each.encode() for each in corpus]


def _child_answers() -> tuple[Reader, Sequence[bytes]]:
    from airflow_kafka_offsets.spark import isolation
    from tests.support.decoding import record_batch

    records = record_batch([b"1"])
    rows = isolation._to_bytes(records)
    job: Any = SimpleNamespace(has_dead_letters=True, max_dead_letters=None, decode_timeout=1.0, batch_transform=None)

    def read(data: bytes) -> str:
        class Child:
            def ask(self, *_: object) -> Any:
                ours = SimpleNamespace(recv_bytes=lambda *_: data)
                return isolation._receive(ours)  # type: ignore[arg-type]

            def end(self) -> None: ...

        isolated = isolation.Isolation(job, None)  # type: ignore[arg-type]
        isolated._child = Child()  # type: ignore[assignment]
        try:
            found = isolated(records)
        except KafkaOffsetsError as error:
            return str(error)
        assert all(bad.row == 0 for bad in found.bad)
        return f"{found.rows.num_rows} {[bad.reason for bad in found.bad]}"

    good = {"bad": [], "schemas": [{"part": "value", "schema_id": 1, "type": "avro", "text": ["x"]}]}
    return read, [
        json.dumps(good).encode() + b"\n" + rows,
        json.dumps({"bad": [{"row": 0, "reason": "x", "part": "value"}], "schemas": []}).encode() + b"\n",
        b'{"ended": -11}\n',
        b'{"raised": "ValueError"}\n',
        b'{"error": "RecordError", "message": "m", "reason": "r", "topic": "t", "partition": 0, "offset": 1}\n',
    ]


def _damaged_frames(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    header, mark, body = rng.choice(corpus).partition(b"\n")
    if rng.random() < 0.5:
        return header + mark + (damaged(rng, [body]) if body else body)
    with suppress(ValueError):
        return damaged_json(rng, [header]) + mark + body
    return damaged(rng, corpus)


def _job_lines() -> tuple[Reader, Sequence[bytes]]:
    import socket

    from airflow_kafka_offsets.spark.jobs import SocketJobs

    path = f"{tempfile.mkdtemp(prefix='fuzz-')}/s"

    def read(data: bytes) -> str:
        with suppress(FileNotFoundError):
            Path(path).unlink()
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
            server.listen()
            jobs = SocketJobs(path)
            peer, _ = server.accept()
        with peer, suppress(OSError):
            peer.settimeout(5)
            peer.sendall(data[:100_000])
        count = sum(1 for _ in jobs.lines())
        jobs._socket.close()
        return str(count > 0)

    return read, [b"{}\nabc\n", b"x"]


def _mailbox_objects() -> tuple[Reader, Sequence[bytes]]:
    """Objects that another writes into a mailbox: in place of the driver's key, and of its first message."""
    from airflow_kafka_offsets.spark.mailbox import Mailbox
    from airflow_kafka_offsets.staging.directory import StagingDirectory

    directory = StagingDirectory(tempfile.mkdtemp(prefix="fuzz-"))
    worker = Mailbox.of_worker(directory, "7" * 64)
    driver = Mailbox.of_driver(directory, "7" * 64)
    assert worker.meet()
    driver.send("abegun")
    key, message = (Path(directory.path, f"driver-{number:08}") for number in range(2))
    corpus = [key.read_bytes(), message.read_bytes(), b"no cryptography"]

    def read(data: bytes) -> str:
        found = []
        worker._received = 0
        for place, reads in ((key, lambda: worker._read_key(worker._public_key)), (message, worker._read)):
            place.write_bytes(data)
            try:
                found.append(str(reads()))
            except KafkaOffsetsError as error:
                found.append(str(error))
        return " ".join(found)

    return read, corpus


TARGETS: dict[str, Target] = {
    "json": Target(_json_values),
    "records": Target(_whole_records),
    "avro": Target(_avro_values),
    "protobuf": Target(_protobuf_values),
    "avro-schemas": Target(_avro_schemas, damaged_json),
    "json-schemas": Target(_json_schemas, damaged_json),
    "protobuf-schemas": Target(_protobuf_schemas, _damaged_protobuf),
    "registry": Target(_registry_answers, _damaged_answers),
    "manifests": Target(_manifests, damaged_json),
    "lake-entries": Target(_lake_entries, _damaged_entries),
    "iceberg": Target(_iceberg_metadata),
    "headers": Target(_headers),
    "previews": Target(_previews, damaged_json),
    "forms": Target(_forms),
    "child-answers": Target(_child_answers, _damaged_frames),
    "job-lines": Target(_job_lines),
    "mailbox": Target(_mailbox_objects),
}
