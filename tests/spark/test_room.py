"""Records that become much more memory than they have bytes: a null in a list takes the room of all fields of an item
in Arrow, and a byte of a value may be an object of Python's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_kafka_offsets.core.templates import with_values
from airflow_kafka_offsets.formats.avro_decoder import _long
from airflow_kafka_offsets.formats.avro_format import Avro
from airflow_kafka_offsets.formats.columns import row_columns
from airflow_kafka_offsets.formats.protobuf_format import Protobuf
from airflow_kafka_offsets.formats.record_format import Decoded, RecordFormat
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.spark import decoding
from airflow_kafka_offsets.spark.decoding import MOST_ROOM, DecodingHere, most_room, portions
from airflow_kafka_offsets.spark.isolation import CRASH, MEMORY_BYTES, decoding_of
from airflow_kafka_offsets.spark.tasks import read_slice
from airflow_kafka_offsets.staging.arrow_files import SCHEMA, write_records
from airflow_kafka_offsets.staging.directory import StagingDirectory
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
    known = with_values(Protobuf(registry_conn_id="r"), schemas={"1": compiled(text)}, latest="1")
    return known, lambda count: b"\0\0\0\0\1\0" + b"\x0a\0" * count


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


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records were decoded in this process, by batch."""
    counts: list[int] = []
    decode_here = DecodingHere.__call__

    def note(decode: DecodingHere, records: pa.RecordBatch) -> Decoded:
        counts.append(records.num_rows)
        return decode_here(decode, records)

    monkeypatch.setattr(DecodingHere, "__call__", note)
    monkeypatch.setattr(decoding, "LARGE_BYTES", 1000)
    return counts


def test_large_records_are_decoded_alone_in_a_child(tmp_path: Path, here: list[int]) -> None:
    staged = job(tmp_path, Json("id BIGINT"), decode_timeout=60.0)
    values = [b'{"id": %d, "x": "%s"}' % (place, b"x" * (2000 if place in (3, 4) else 300)) for place in range(16)]
    keys = pa.array([b"k" * (2000 if place == 9 else 1) for place in range(16)], pa.binary())

    with decoding_of(staged, staged.slices[0], None, is_isolated=False) as decode:
        found = [decode(part) for part in portions(record_batch(values, key=keys), staged.columns)]

    assert [row for decoded in found for row in decoded.rows.column("id").to_pylist()] == [*range(16)]
    assert sum(here) == 13


def test_replay_of_dead_letters_decodes_large_ones_in_a_child(tmp_path: Path, here: list[int]) -> None:
    staged = job(tmp_path, Json("id BIGINT"), decode_timeout=60.0, records_are_staged=True)
    records = record_batch(
        [b'{"id": 1}', b'{"id": 2, "x": "%s"}' % (b"x" * 2000)], headers=pa.nulls(2, SCHEMA.field("headers").type)
    )
    staging = StagingDirectory(staged.staging_uri)
    write_records(staging, 0, [records.select(SCHEMA.names)])

    found = list(read_slice(staged, staged.slices[0], staging))

    assert [row for rows in found for row in rows.column("id").to_pylist()] == [1, 2]
    assert here == [1]


def json_objects() -> tuple[RecordFormat, bytes]:
    return Json("id BIGINT, d DECIMAL(10,2)"), b'{"id": 1, "d": 1e-20, "x": [%s]}' % b",".join([b"1"] * 20_000_000)


def avro_objects() -> tuple[RecordFormat, bytes]:
    item = {"type": "record", "name": "i", "fields": [{"name": "b", "type": "boolean"}]}
    fields = [{"name": "id", "type": "long"}, {"name": "x", "type": {"type": "array", "items": item}}]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields})
    # The id, 20,000,000 items, and one byte too many, so that the reader of single values decides.
    return Avro("id BIGINT", schema=schema), b"\2" + _long(20_000_000) + bytes(20_000_000) + b"\0\0"


@LONG
@pytest.mark.parametrize("make", [json_objects, avro_objects])
def test_large_record_that_becomes_gigabytes_of_objects_is_bad(tmp_path: Path, make: Any) -> None:
    record_format, value = make()
    staged = job(tmp_path, record_format, decode_timeout=120.0)

    with decoding_of(staged, staged.slices[0], None, is_isolated=False) as decode:
        (decoded,) = map(decode, portions(record_batch([value]), staged.columns))

    assert [(bad.reason, bad.part) for bad in decoded.bad] == [("decoding it takes more than 2,048 MiB", CRASH)]
