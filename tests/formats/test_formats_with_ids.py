"""What is the same for every format whose records begin with the id of a schema: tombstones, keys, empty and large
values, headers.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from airflow_kafka_offsets.core.templates import with_values
from airflow_kafka_offsets.formats.avro_format import Avro
from airflow_kafka_offsets.formats.extra_columns import Header, whole_record
from airflow_kafka_offsets.formats.json_schema_format import JsonSchema
from airflow_kafka_offsets.formats.protobuf_format import Protobuf
from airflow_kafka_offsets.formats.record_format import RecordFormat
from tests.support import avro, protobuf
from tests.support.decoding import decoded_as, record_batch

FIELDS = [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}]
SCHEMA = {"type": "record", "name": "order", "fields": FIELDS}
PROTO = 'syntax = "proto3"; message Order { optional int64 id = 1; optional string note = 2; }'


KEY = "number"
"""The name of the field `id` in keys, whose columns need names of their own."""


def as_avro(value: dict[str, Any]) -> bytes:
    return avro.encode(SCHEMA, value)


def as_protobuf(value: dict[str, Any]) -> bytes:
    plain = {name: item for name, item in value.items() if item is not None}
    encoded: bytes = protobuf.message_class(PROTO, "Order")(**plain).SerializeToString()
    return b"\0" + encoded


def as_json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


ENCODERS = {"Avro": as_avro, "Protobuf": as_protobuf, "JsonSchema": as_json}


def format_of(name: str, ddl: str, number: str = "id") -> RecordFormat:
    schema = json.dumps(SCHEMA).replace('"id"', f'"{number}"')
    known: dict[str, RecordFormat] = {
        "Avro": with_values(Avro(ddl, registry_conn_id="r"), schemas={"1": [schema]}),
        "Protobuf": with_values(
            Protobuf(ddl, registry_conn_id="r"),
            schemas={"1": protobuf.compiled(PROTO.replace("id =", f"{number} ="))},
        ),
        "JsonSchema": with_values(
            JsonSchema(ddl, registry_conn_id="r"), schemas={"1": {"text": "{}", "references": []}}
        ),
    }
    return known[name]


def record(name: str, number: int, note: str | None) -> bytes:
    return b"\0\0\0\0\1" + ENCODERS[name]({"id": number, "note": note})


def key(name: str, number: int) -> bytes:
    """A record whose field `id` has the name that it has in keys."""
    found = record(name, number, None)
    return found.replace(b'"id"', f'"{KEY}"'.encode()) if name == "JsonSchema" else found


@pytest.fixture(params=ENCODERS)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def own(rows: pa.RecordBatch) -> list[Any]:
    return [tuple(row[column] for column in row if not column.startswith("_kafka_")) for row in rows.to_pylist()]


def test_a_null_value_is_nulls_and_bad_where_a_column_is_not_null(name: str) -> None:
    batch = record_batch([None, record(name, 1, "é"), None])
    rows, bad = decoded_as(format_of(name, "id BIGINT, note STRING"), batch)
    assert (own(rows), bad) == ([(None, None), (1, "é"), (None, None)], [])
    rows, bad = decoded_as(format_of(name, "id BIGINT NOT NULL, note STRING"), batch)
    assert own(rows) == [(1, "é")]
    reason = "column 'id' is declared NOT NULL, and is missing or null"
    assert [(found.row, found.reason) for found in bad] == [(0, reason), (2, reason)]


def test_only_protobuf_has_a_message_without_bytes(name: str) -> None:
    prefix = b"\0\0\0\0\1" + (b"\0" if name == "Protobuf" else b"")
    rows, bad = decoded_as(format_of(name, "id BIGINT, note STRING"), record_batch([b"", prefix, prefix[:4]]))
    assert own(rows) == ([(None, None)] if name == "Protobuf" else [])
    assert [found.row for found in bad] == ([0, 2] if name == "Protobuf" else [0, 1, 2])


def test_a_record_of_ten_megabytes_is_read_beside_small_ones(name: str) -> None:
    large = record(name, 2, "é" * 5_000_000)
    batch = record_batch([record(name, 1, None), large, large[:-1], record(name, 3, "")])
    rows, bad = decoded_as(format_of(name, "id BIGINT, note STRING"), batch)
    assert [(number, len(note or "")) for number, note in own(rows)] == [(1, 0), (2, 5_000_000), (3, 0)]
    assert [found.row for found in bad] == [2]
    assert len(bad[0].reason) < 200


def test_keys_headers_and_values_come_from_the_same_record(name: str) -> None:
    record_format = whole_record(
        format_of(name, "id BIGINT, note STRING"),
        format_of(name, "number BIGINT", KEY),
        {"first": Header("h", which="first"), "all": Header("h", which="all")},
    )
    headers = pa.array(
        [[("h", b"1"), ("x", b"-"), ("h", b"2")], [], [("h", None)], [("h", b"4")]],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    keys = [key(name, 7), None, key(name, 9), b"\0\0"]
    values = [record(name, 1, "a"), record(name, 2, "b"), None, record(name, 4, "d")]

    rows, bad = decoded_as(record_format, record_batch(values, key=pa.array(keys, pa.binary()), headers=headers))

    assert own(rows) == [
        (7, 1, "a", "1", ["1", "2"]),
        (None, 2, "b", None, []),
        (9, None, None, None, [None]),
    ]
    assert [(found.row, found.part) for found in bad] == [(3, "key")]
