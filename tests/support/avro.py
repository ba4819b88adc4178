"""Avro records as producers write them, with fastavro: the schemas of three versions, values, and what they become."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, time
from typing import Any
from zoneinfo import ZoneInfo

import fastavro
import pyarrow as pa
from hypothesis import strategies as st

from airflow_kafka_offsets.core.templates import with_values
from airflow_kafka_offsets.formats.avro_format import Avro
from airflow_kafka_offsets.formats.record_format import Decoded
from tests.support.decoding import decoded_as, record_batch

_SHARED: list[dict[str, Any]] = [
    {"name": "ratio", "type": "double"},
    {"name": "ok", "type": ["null", "boolean"]},
    {"name": "data", "type": "bytes"},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}},
    {
        "name": "tax",
        "type": {"type": "fixed", "name": "tax", "size": 8, "logicalType": "decimal", "precision": 18, "scale": 4},
    },
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "sent", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
    {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
    {"name": "at", "type": {"type": "long", "logicalType": "time-micros"}},
    {"name": "ref", "type": {"type": "string", "logicalType": "uuid"}},
    {"name": "kind", "type": [{"type": "enum", "name": "kind", "symbols": ["NEW", "PAID", "SENT"]}, "null"]},
    {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
    {"name": "counts", "type": {"type": "map", "values": "long"}},
    {
        "name": "place",
        "type": [
            "null",
            {
                "type": "record",
                "name": "place",
                "fields": [
                    {"name": "x", "type": ["null", "int"]},
                    {"name": "label", "type": "string"},
                    {"name": "sizes", "type": {"type": "array", "items": {"type": "array", "items": "double"}}},
                ],
            },
        ],
    },
]


def _record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "order", "namespace": "shop.v1", "fields": list(fields)}


_ID, _NAME = {"name": "id", "type": "long"}, {"name": "name", "type": "string"}
VERSIONS = {
    1: _record({"name": "id", "type": "int"}, {"name": "first_name", "type": "string"}, *_SHARED),
    2: _record(_NAME, *reversed(_SHARED), _ID, {"name": "gone", "type": ["null", "string"]}),
    3: _record(
        _ID,
        _NAME | {"aliases": ["first_name"]},
        {"name": "level", "type": "int", "default": 7},
        {"name": "note", "type": ["null", "string"], "default": None},
        # Only this version is read value by value.
        {"name": "either", "type": ["null", "string", "long"], "default": None},
        *_SHARED,
    ),
}
"""Three versions of a schema; the last one is the reader's."""

_PARSED = {version: fastavro.parse_schema(json.loads(json.dumps(schema))) for version, schema in VERSIONS.items()}

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_long = st.integers(-(2**63), 2**63 - 1)
_int = st.integers(-(2**31), 2**31 - 1)
_instants = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)).map(lambda value: value.replace(tzinfo=UTC))
_place = st.fixed_dictionaries(
    {"x": st.none() | _int, "label": _text, "sizes": st.lists(st.lists(st.floats(), max_size=2), max_size=2)}
)
_values = {
    "ratio": st.floats(),
    "ok": st.none() | st.booleans(),
    "data": st.binary(max_size=8),
    "price": st.decimals(-(10**28) + 1, 10**28 - 1, places=10),
    "tax": st.decimals(-(10**14) + 1, 10**14 - 1, places=4),
    "day": st.dates(),
    "seen": _instants,
    "sent": st.none() | _instants.map(lambda value: value.replace(microsecond=value.microsecond // 1000 * 1000)),
    "local": st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)),
    "at": st.times(),
    "ref": st.uuids(),
    "kind": st.sampled_from([None, "NEW", "PAID", "SENT"]),
    "tags": st.lists(st.none() | _text, max_size=3),
    "counts": st.dictionaries(_text, _long, max_size=3),
    "place": st.none() | _place,
    "either": st.none() | _text | _long,
}
_of_version = {
    1: {"id": _int, "first_name": _text},
    2: {"id": _long, "name": _text, "gone": st.none() | _text},
    3: {"id": _long, "name": _text, "level": _int, "note": st.none() | _text},
}


def values(version: int) -> st.SearchStrategy[dict[str, Any]]:
    """Values of a version, as fastavro takes them."""
    return st.fixed_dictionaries(_values | _of_version[version])


def encode(schema: Any, value: Any) -> bytes:
    """A value without anything before it."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(
        stream, fastavro.parse_schema(schema) if not isinstance(schema, int) else _PARSED[schema], value
    )
    return stream.getvalue()


def wire(number: int, datum: bytes) -> bytes:
    """A value in Confluent's wire format."""
    return b"\0" + number.to_bytes(4, "big") + datum


def expected_row(version: int, datum: bytes) -> dict[str, Any]:
    """What fastavro reads with the reader's schema, in the types of the columns."""
    value: Any = fastavro.schemaless_reader(io.BytesIO(datum), _PARSED[version], _PARSED[3])
    return {name: _as_column(name, item) for name, item in value.items()}


def _as_column(name: str, value: Any) -> Any:
    if name == "counts":
        return [{"key": key, "value": item} for key, item in value.items()]
    if name == "either" and value is not None:
        return {
            "member0": value if isinstance(value, str) else None,
            "member1": value if isinstance(value, int) else None,
        }
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(ZoneInfo("UTC"))
    if isinstance(value, uuid.UUID):
        return str(value)
    return f"{value:%H:%M:%S.%f}" if isinstance(value, time) else value


def known(schemas: dict[int, Any] | None = None, **options: Any) -> Avro:
    """A format that has the schemas already, and asks no registry."""
    found = {str(number): [json.dumps(schema)] for number, schema in (schemas or VERSIONS).items()}
    latest = None if "ddl" in options else max(found)
    return with_values(Avro(registry_conn_id="registry", **options), schemas=found, latest=latest)


def decoded(record_format: Avro, records: Iterable[bytes | None]) -> Decoded:
    """What a task makes of values."""
    return decoded_as(record_format, record_batch(list(records)))


def own_columns(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if not name.startswith("_kafka_")} for row in rows.to_pylist()]


def decoded_alone(schema: Any, value: Any, **options: Any) -> dict[str, Any]:
    """The row of a plain value."""
    rows, bad = decoded(Avro(schema=json.dumps(schema), **options), [encode(schema, value)])
    assert not bad, bad
    return own_columns(rows)[0]
