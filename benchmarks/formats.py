"""What decoding costs: processor time of Avro, Protobuf and JSON Schema beside JSON of the same values, in interleaved
rounds.
"""

from __future__ import annotations

import io
import json
import random
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf.message_factory import GetMessageClass

from airflow_kafka_offsets.core.templates import with_values
from airflow_kafka_offsets.formats.avro_format import Avro
from airflow_kafka_offsets.formats.json_schema_format import JsonSchema
from airflow_kafka_offsets.formats.protobuf_format import Protobuf
from airflow_kafka_offsets.formats.protobuf_schema import compile_schemas, schema_of
from airflow_kafka_offsets.formats.schema_registry import RegisteredSchema
from airflow_kafka_offsets.formats.simple_formats import Json

RECORDS, ROUNDS, REPEATS = 10_000, 7, 4

DDL = "id BIGINT, customer STRING, amount DECIMAL(10,2), created TIMESTAMP, note STRING, pieces INT, ratio DOUBLE"

FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "customer", "type": "string"},
    {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
    {"name": "created", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "note", "type": ["null", "string"]},
    {"name": "pieces", "type": "int"},
    {"name": "ratio", "type": "double"},
]


def schema(*more: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "order", "fields": [*FIELDS, *more]}


SCHEMAS = {
    1: schema(),
    2: schema({"name": "second", "type": ["null", "string"], "default": None}),
    3: schema({"name": "third", "type": "int", "default": 0}),
    4: schema({"name": "next", "type": ["null", "order"], "default": None}),
}


# Protobuf has no decimals: an amount is text, as in the JSON that is compared.
PROTO_DDL = DDL.replace("DECIMAL(10,2)", "STRING")

PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1;
  string customer = 2;
  string amount = 3;
  google.protobuf.Timestamp created = 4;
  optional string note = 5;
  int32 pieces = 6;
  double ratio = 7;
  %s
}
"""

PROTOS = {
    1: PROTO % "",
    2: PROTO % "optional string second = 8;",
    3: PROTO % "int32 third = 9;",
    # A number that the quick reader does not take.
    4: PROTO % "int32 far = 200000;",
}


def values() -> list[dict[str, Any]]:
    chance = random.Random(1)
    return [
        {
            "id": number,
            "customer": f"customer-{number % 997}",
            "amount": Decimal(chance.randrange(10**7)) / 100,
            "created": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number),
            "note": None if number % 3 else "handle with care",
            "pieces": number % 100,
            "ratio": chance.random(),
            "third": number,
        }
        for number in range(RECORDS)
    ]


def as_avro(value: dict[str, Any], number: int) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(SCHEMAS[number]), value)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def as_json(value: dict[str, Any]) -> bytes:
    plain = {name: item for name, item in value.items() if name != "third"}
    return json.dumps(plain | {"amount": float(value["amount"]), "created": value["created"].isoformat()}).encode()


def compiled() -> dict[str, str]:
    """The descriptor sets of the schemas."""
    texts = {str(number): RegisteredSchema("PROTOBUF", text) for number, text in PROTOS.items()}
    return {number: found for number, found in compile_schemas(texts).items() if isinstance(found, str)}


def as_protobuf(value: dict[str, Any], message: Any, number: int) -> bytes:
    plain = {name: item for name, item in value.items() if item is not None and name != "third"}
    created = {"seconds": int(value["created"].timestamp())}
    encoded: bytes = message(**plain | {"amount": str(value["amount"]), "created": created}).SerializeToString()
    return b"\0" + number.to_bytes(4, "big") + b"\0" + encoded


def main() -> None:
    orders = values()
    schemas = {str(number): [json.dumps(plain)] for number, plain in SCHEMAS.items()}
    avro, plain_json = with_values(Avro(DDL, registry_conn_id="registry"), schemas=schemas), Json(DDL)
    one = [as_avro(value, 1) for value in orders]
    sets = compiled()
    messages = {int(number): GetMessageClass(schema_of(encoded).named("Order")) for number, encoded in sets.items()}
    protobuf = with_values(Protobuf(PROTO_DDL, registry_conn_id="registry"), schemas=sets)
    far = with_values(Protobuf(f"{PROTO_DDL}, far INT", registry_conn_id="registry"), schemas=sets)
    protobuf_one = [as_protobuf(value, messages[1], 1) for value in orders]
    json_schema = with_values(
        JsonSchema(DDL, registry_conn_id="registry"),
        schemas={number: {"text": "{}", "references": []} for number in "123"},
    )
    batches: dict[str, tuple[Callable[[pa.RecordBatch], Any], list[bytes]]] = {
        "Json": (plain_json.decoder(plain_json.columns()), [as_json(value) for value in orders]),
        "Avro, one schema": (avro.decoder(avro.columns()), one),
        "Avro, three schemas": (
            avro.decoder(avro.columns()),
            [as_avro(value, 1 + i % 3) for i, value in enumerate(orders)],
        ),
        "Avro, one bad record": (avro.decoder(avro.columns()), [*one[:5000], one[5000][:-1], *one[5001:]]),
        "Avro, recursive": (avro.decoder(avro.columns()), [as_avro(value, 4) for value in orders]),
        "Protobuf, one schema": (protobuf.decoder(protobuf.columns()), protobuf_one),
        "Protobuf, three schemas": (
            protobuf.decoder(protobuf.columns()),
            [as_protobuf(value, messages[1 + i % 3], 1 + i % 3) for i, value in enumerate(orders)],
        ),
        "Protobuf, one bad record": (
            protobuf.decoder(protobuf.columns()),
            [*protobuf_one[:5000], protobuf_one[5000][:-1], *protobuf_one[5001:]],
        ),
        "Protobuf, one by one": (
            far.decoder(far.columns()),
            [as_protobuf(value, messages[4], 4) for value in orders],
        ),
        "JsonSchema, one schema": (
            json_schema.decoder(json_schema.columns()),
            [b"\0\0\0\0\1" + as_json(value) for value in orders],
        ),
        "JsonSchema, three schemas": (
            json_schema.decoder(json_schema.columns()),
            [b"\0\0\0\0" + bytes([1 + i % 3]) + as_json(value) for i, value in enumerate(orders)],
        ),
    }
    records = {
        name: pa.RecordBatch.from_pydict({"value": pa.array(data, pa.binary())}) for name, (_, data) in batches.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in batches}
    for _ in range(ROUNDS):
        for name, (decode, _) in batches.items():
            began = time.process_time()
            for _ in range(REPEATS):
                decode(records[name])
            seconds[name].append(time.process_time() - began)
    print(f"{RECORDS:,} records a batch, {ROUNDS} interleaved rounds, processor time, medians")
    for name, found in seconds.items():
        ratios = [of_json / own for of_json, own in zip(seconds["Json"], found, strict=True)]
        rate = REPEATS * RECORDS / statistics.median(found)
        print(f"{name:26} {rate:12,.0f} records/s {statistics.median(ratios):6.2f} of Json")


if __name__ == "__main__":
    main()
