"""Small records of which Arrow would make large rows: a null in a list takes the room of all fields of an item."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_kafka_offsets.formats.avro_format import Avro
from airflow_kafka_offsets.formats.columns import row_columns
from airflow_kafka_offsets.formats.protobuf_format import Protobuf
from airflow_kafka_offsets.formats.record_format import Decoded, RecordFormat
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.spark.decoding import MOST_ROOM, DecodingHere, most_room, portions
from airflow_kafka_offsets.spark.isolation import CRASH, MEMORY_BYTES, decoding_of
from tests.spark.test_isolation import job
from tests.support.avro import encode
from tests.support.decoding import record_batch
from tests.support.protobuf import compiled

WIDTH, MANY = 900, 20_000
NAMES = [f"f{number}" for number in range(WIDTH)]
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "r",
    "fields": [
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": [
                    "null",
                    {
                        "type": "record",
                        "name": "item",
                        "fields": [{"name": name, "type": ["null", "long"]} for name in NAMES],
                    },
                ],
            },
        }
    ],
}


def avro() -> tuple[RecordFormat, Any]:
    return Avro(schema=json.dumps(AVRO)), lambda count: encode(AVRO, {"items": [None] * count})


def protobuf() -> tuple[RecordFormat, Any]:
    fields = " ".join(f"optional int64 {name} = {number + 1};" for number, name in enumerate(NAMES))
    text = f'syntax = "proto3"; message R {{ repeated I items = 1; }} message I {{ {fields} }}'
    known: dict[str, Any] = {"schemas": {"1": compiled(text)}, "latest": "1"}
    return Protobuf(registry_conn_id="r", **known), lambda count: b"\0\0\0\0\1\0" + b"\x0a\0" * count


def of_json() -> tuple[RecordFormat, Any]:
    kinds = ", ".join(f"{name}: BIGINT" for name in NAMES)
    record_format = Json(f"items ARRAY<STRUCT<{kinds}>>")
    return record_format, lambda count: b'{"items": [' + b",".join([b"{}"] * count) + b"]}"


LONG = pytest.mark.long


@pytest.mark.parametrize("make", [avro, pytest.param(protobuf, marks=LONG), pytest.param(of_json, marks=LONG)])
def test_record_of_some_kilobytes_that_becomes_many_megabytes_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    record_format, value = make()
    here: list[int] = []
    decode_here = DecodingHere.__call__

    def note(decoding: DecodingHere, records: pa.RecordBatch) -> Decoded:
        here.append(most_room(records, staged.columns))
        return decode_here(decoding, records)

    monkeypatch.setattr(DecodingHere, "__call__", note)
    staged = job(tmp_path, record_format, decode_timeout=60.0)
    records = record_batch([value(1), value(MANY), *[value(1_000)] * 30])

    found: list[Decoded] = []
    with decoding_of(staged, staged.slices[0], None, is_isolated=False) as decode:
        found += map(decode, portions(records, staged.columns))

    assert sum(decoded.rows.num_rows for decoded in found) == 31
    ((bad,),) = [decoded.bad for decoded in found if decoded.bad]
    assert (bad.reason, bad.part) == ("decoding it makes rows of more than 128 MiB", CRASH)
    assert max(here) <= MOST_ROOM
    assert max(decoded.rows.nbytes for decoded in found) <= MOST_ROOM < MEMORY_BYTES


def test_usual_records_stay_together() -> None:
    columns = row_columns(Json("id BIGINT, name STRING, tags ARRAY<STRING>, places ARRAY<STRUCT<x: INT, y: INT>>"))
    records = record_batch([b"x" * 500] * 10_000)
    assert [part.num_rows for part in portions(records, columns)] == [10_000]
    assert sum(part.num_rows for part in portions(record_batch([b"x"] * 999), row_columns(of_json()[0]))) == 999
