"""Records of every format, as producers write them, with the rows that independent readers find in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from airflow_kafka_offsets.formats.avro_format import Avro
from airflow_kafka_offsets.formats.json_schema_format import JsonSchema
from airflow_kafka_offsets.formats.protobuf_format import Protobuf
from airflow_kafka_offsets.formats.record_format import RecordFormat
from airflow_kafka_offsets.formats.simple_formats import Json, Text
from tests.support import avro, protobuf

Row = dict[str, Any]
Sample = tuple[int, bytes, Row]
"""The version of a schema, a value without its prefix, and the row that it becomes."""


@dataclass(frozen=True)
class Written:
    """A format, and values that are written in it.

    :param versions: the schemas that are registered, if there is a registry
    :param kind: of the schemas, as registries name it
    :param wire: puts the id of a schema before a value
    """

    record_format: RecordFormat
    samples: st.SearchStrategy[Sample]
    versions: Mapping[int, str] = field(default_factory=dict)
    kind: str = ""
    wire: Callable[[int, bytes], bytes] = lambda _, value: value


def text_of_nested(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with JSON in place of arrays and structs, which a table cannot have."""
    columns = {
        name: pa.array(list(map(nested_text, column.to_pylist())), pa.string()) if is_nested(column.type) else column
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    }
    return pa.RecordBatch.from_pydict(columns)


def is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind))


def nested_text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, default=str, sort_keys=True)


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_long = st.integers(-(2**63), 2**63 - 1)
_instants = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)).map(lambda value: value.replace(tzinfo=UTC))
_nested = st.lists(
    st.none()
    | st.fixed_dictionaries({"x": st.none() | _long, "labels": st.none() | st.lists(st.none() | _text, max_size=2)}),
    max_size=2,
)
_JSON_FIELDS = {
    "id": _long,
    "name": _text,
    "price": st.decimals(-(10**28) + 1, 10**28 - 1, places=10),
    "ok": st.booleans(),
    "ratio": st.floats(allow_nan=False, allow_infinity=False),
    "day": st.dates(),
    "seen": st.datetimes(datetime(1678, 1, 1), datetime(2262, 1, 1)).map(lambda value: value.replace(tzinfo=UTC)),
    "nested": _nested,
}
_JSON = (
    "id BIGINT, name STRING, price DECIMAL(38,10), ok BOOLEAN, ratio DOUBLE, day DATE, seen TIMESTAMP, "
    "nested ARRAY<STRUCT<x: BIGINT, labels: ARRAY<STRING>>>"
)


def _json_text(value: Any) -> str:
    if isinstance(value, Decimal):
        return json.dumps(f"{value:f}")
    if isinstance(value, datetime):
        return json.dumps(value.isoformat(timespec="microseconds").replace("+00:00", "Z"))
    if isinstance(value, date):
        return json.dumps(value.isoformat())
    return json.dumps(value)


def _json_sample(value: Row) -> Sample:
    written = ", ".join(f"{json.dumps(name)}: {_json_text(item)}" for name, item in value.items())
    return 1, f"{{{written}}}".encode(), dict.fromkeys(_JSON_FIELDS) | value


def _versioned(
    encode: Callable[[int, Any], bytes],
    row: Callable[[int, bytes], Row],
    values: Callable[[int], st.SearchStrategy[Any]],
) -> st.SearchStrategy[Sample]:
    def sample(version: int, value: Any) -> Sample:
        datum = encode(version, value)
        return version, datum, row(version, datum)

    return st.sampled_from([1, 2, 3]).flatmap(lambda version: values(version).map(lambda value: sample(version, value)))


_JSON_SAMPLES = st.fixed_dictionaries(
    {}, optional={name: st.none() | values for name, values in _JSON_FIELDS.items()}
).map(_json_sample)

FORMATS = {
    "json": Written(Json(_JSON), _JSON_SAMPLES),
    "json_schema": Written(
        JsonSchema(_JSON, registry_conn_id="registry"),
        _JSON_SAMPLES,
        {1: '{"type": "object", "properties": {"id": {"type": "integer"}}}'},
        "JSON",
        avro.wire,
    ),
    "text": Written(Text("line"), _text.map(lambda line: (1, line.encode(), {"line": line}))),
    "avro": Written(
        Avro(registry_conn_id="registry"),
        _versioned(avro.encode, avro.expected_row, avro.values),
        {version: json.dumps(schema) for version, schema in avro.VERSIONS.items()},
        "AVRO",
        avro.wire,
    ),
    "protobuf": Written(
        Protobuf(registry_conn_id="registry", message="Order"),
        _versioned(protobuf.encode, lambda _, datum: protobuf.reference_row(3, datum), protobuf.values),
        protobuf.VERSIONS,
        "PROTOBUF",
        protobuf.wire,
    ),
}
