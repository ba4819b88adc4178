"""Protobuf records as producers write them: the schemas of three versions, messages, and what google.protobuf reads in
them.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_tools import protoc
from hypothesis import strategies as st

from airflow_kafka_offsets.core.templates import with_values
from airflow_kafka_offsets.formats.protobuf_format import Protobuf
from airflow_kafka_offsets.formats.protobuf_schema import compile_schemas
from airflow_kafka_offsets.formats.record_format import Decoded
from airflow_kafka_offsets.formats.schema_registry import RegisteredSchema
from tests.support.decoding import decoded_as, record_batch

_HEAD = """
syntax = "proto3";
package shop.v1;
import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Kind { UNKNOWN = 0; PAID = 1; SENT = 2; }
message Place {
  sint32 x = 1;
  optional string label = 2;
  repeated double sizes = 3;
  map<string, Place.Corner> corners = 4;
  message Corner { float angle = 1; bool is_round = 2; }
}
message Order {
"""

_SHARED = """
  double ratio = 10;
  optional bool ok = 11;
  bytes data = 12;
  uint64 large = 13;
  sint64 signed = 14;
  sfixed32 fixed = 15;
  fixed32 code = 16;
  float share = 17;
  google.protobuf.Timestamp seen = 18;
  google.protobuf.Duration took = 19;
  google.protobuf.Int64Value boxed = 20;
  Kind kind = 21;
  repeated string tags = 22;
  map<string, int64> counts = 23;
  Place place = 24;
  oneof either {
    string text = 25;
    int64 number = 26;
    Place spot = 27;
  }
  repeated sint32 steps = 28;
  repeated Place places = 29;
  map<int32, Place> by_number = 30;
  google.protobuf.Struct more = 31;
  repeated Kind kinds = 32;
  google.protobuf.StringValue title = 33;
  uint32 pieces = 34;
  repeated google.protobuf.Timestamp stops = 35;
}
"""

VERSIONS = {
    1: f"{_HEAD} int32 id = 1; string first_name = 2; {_SHARED}",
    2: f"{_HEAD} string gone = 3; string name = 2; int64 id = 1; {_SHARED}",
    3: f"{_HEAD} int64 id = 1; string name = 2; int32 level = 4; optional string note = 5; {_SHARED}",
}
"""Three versions of a schema; the last one is the reader's."""


@cache
def compiled(text: str) -> str:
    """The descriptor set of a schema, as the worker makes it."""
    (found,) = compile_schemas({"1": RegisteredSchema("PROTOBUF", text)}).values()
    assert isinstance(found, str), found
    return found


def as_base64(**texts: str) -> dict[str, str]:
    """Files as confluent-kafka's ProtobufSerializer registers them: each its FileDescriptorProto, as Base64.

    :param texts: by names, without `.proto`
    """
    with tempfile.TemporaryDirectory() as directory:
        for name, text in texts.items():
            Path(directory, f"{name}.proto").write_text(text)
        out = Path(directory, "out")
        known = str(resources.files("grpc_tools").joinpath("_proto"))
        names = [f"{name}.proto" for name in texts]
        assert not protoc.main(["protoc", f"-I{directory}", f"-I{known}", f"--descriptor_set_out={out}", *names])
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    return {
        file.name.removesuffix(".proto"): base64.standard_b64encode(file.SerializeToString()).decode("ascii")
        for file in files
    }


@cache
def message_class(text: str, name: str) -> Any:
    """The class of a message, without any help of the package's."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(compiled(text))).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def order_class(version: int) -> Any:
    return message_class(VERSIONS[version], "shop.v1.Order")


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_float32 = st.floats(width=32)


def _int(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


_instants = st.fixed_dictionaries(
    {"seconds": st.integers(-62_135_596_800, 253_402_300_799), "nanos": st.integers(0, 999_999_999)}
)
_durations = st.builds(
    lambda sign, seconds, nanos: {"seconds": sign * seconds, "nanos": sign * nanos},
    st.sampled_from([-1, 1]),
    st.integers(0, 315_576_000_000),
    st.integers(0, 999_999_999),
)
_corner = st.fixed_dictionaries({}, optional={"angle": _float32, "is_round": st.booleans()})
_place = st.fixed_dictionaries(
    {},
    optional={
        "x": _int(32),
        "label": _text,
        "sizes": st.lists(st.floats(), max_size=2),
        "corners": st.dictionaries(_text, _corner, max_size=2),
    },
)
_json = st.recursive(
    st.none() | st.booleans() | st.floats(-1e9, 1e9) | _text,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_text, inner, max_size=2),
    max_leaves=4,
)
_either = st.sampled_from(["text", "number", "spot"]).flatmap(
    lambda name: st.fixed_dictionaries({name: {"text": _text, "number": _int(64), "spot": _place}[name]})
)
_shared = {
    "ratio": st.floats(),
    "ok": st.booleans(),
    "data": st.binary(max_size=8),
    "large": _int(64, signed=False),
    "signed": _int(64),
    "fixed": _int(32),
    "code": _int(32, signed=False),
    "share": _float32,
    "seen": _instants,
    "took": _durations,
    "boxed": _int(64).map(lambda value: {"value": value}),
    "kind": st.integers(0, 5),
    "tags": st.lists(_text, max_size=3),
    "counts": st.dictionaries(_text, _int(64), max_size=3),
    "place": _place,
    "steps": st.lists(_int(32), max_size=3),
    "places": st.lists(_place, max_size=2),
    "by_number": st.dictionaries(_int(32), _place, max_size=2),
    "more": st.dictionaries(_text, _json, max_size=2),
    "kinds": st.lists(st.integers(0, 5), max_size=3),
    "title": _text.map(lambda value: {"value": value}),
    "pieces": _int(32, signed=False),
    "stops": st.lists(_instants, max_size=2),
}
_of_version: dict[int, dict[str, st.SearchStrategy[Any]]] = {
    1: {"id": _int(32), "first_name": _text},
    2: {"id": _int(64), "name": _text, "gone": _text},
    3: {"id": _int(64), "name": _text, "level": _int(32), "note": _text},
}


def values(version: int) -> st.SearchStrategy[dict[str, Any]]:
    """Values of a version, of which any field may be missing."""
    fields = st.fixed_dictionaries({}, optional=_shared | _of_version[version])
    return st.builds(lambda first, second: first | second, fields, st.just({}) | _either)


def encode(version: int, value: dict[str, Any]) -> bytes:
    """A message without anything before it."""
    plain = {name: item for name, item in value.items() if name != "more"}
    message = order_class(version)(**plain)
    if "more" in value:
        message.more.update(value["more"])
    encoded: bytes = message.SerializeToString()
    return encoded


def zigzag(*numbers: int) -> bytes:
    written = bytearray()
    for number in numbers:
        number = (number << 1) ^ (number >> 63)
        while number > 127:
            written.append(number & 127 | 128)
            number >>= 7
        written.append(number)
    return bytes(written)


def wire(number: int, datum: bytes, *path: int) -> bytes:
    """A message in Confluent's wire format.

    :param path: its index path; by default that of the second message, which is the order of the versions
    """
    indexes = path or (1,)
    return b"\0" + number.to_bytes(4, "big") + (b"\0" if indexes == (0,) else zigzag(len(indexes), *indexes)) + datum


def reference_row(version: int, datum: bytes) -> dict[str, Any]:
    """What google.protobuf reads with a version's class, in the types of the columns."""
    return as_row(order_class(version).FromString(datum))


def as_row(message: Any) -> dict[str, Any]:
    return {field.name: _as_column(message, field) for field in message.DESCRIPTOR.fields}


def _as_column(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of_value = field.message_type.fields_by_name["value"]
        return [{"key": key, "value": _as_item(value[key], of_value)} for key in sorted(value)]
    if field.is_repeated:
        return [_as_item(item, field) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return field.default_value if field.has_default_value else None
    return _as_item(value, field)


def _as_item(value: Any, field: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    if field.message_type is None:
        return Decimal(value) if field.type in (field.TYPE_UINT64, field.TYPE_FIXED64) else value
    name = field.message_type.name
    if field.message_type.file.package != "google.protobuf":
        return as_row(value)
    if name == "Timestamp":
        return datetime(1970, 1, 1, tzinfo=ZoneInfo("UTC")) + timedelta(
            seconds=value.seconds, microseconds=value.nanos // 1000
        )
    if name == "Duration":
        return (Decimal(value.seconds) + Decimal(value.nanos).scaleb(-9)).quantize(Decimal("1e-9"))
    if name in ("Struct", "Value", "ListValue"):
        return json.dumps(json_format.MessageToDict(value), ensure_ascii=False)
    return value.value


def ordered(value: Any) -> Any:
    """A value with the entries of its maps by their keys, and the fields of its JSON by their names, in a form that can
    be compared.
    """
    if isinstance(value, dict):
        return {name: _ordered_json(item) if name == "more" else ordered(item) for name, item in value.items()}
    if isinstance(value, list):
        items = [ordered(item) for item in value]
        if items and isinstance(items[0], dict) and set(items[0]) == {"key", "value"}:
            return sorted(items, key=lambda item: item["key"])
        return items
    return repr(value)


def _ordered_json(text: str | None) -> str:
    return repr(None) if text is None else json.dumps(json.loads(text), sort_keys=True)


def known(texts: dict[int, str] | None = None, **options: Any) -> Protobuf:
    """A format that has the schemas already, and asks no registry."""
    found = {str(number): compiled(text) for number, text in (texts or VERSIONS).items()}
    latest = options.pop("latest", None if "ddl" in options else max(found))
    return with_values(Protobuf(registry_conn_id="registry", **options), schemas=found, latest=latest)


def given(proto: str, **options: Any) -> Protobuf:
    """A format of plain messages, as the worker prepares it."""
    latest = None if "ddl" in options else "given"
    return with_values(Protobuf(proto=proto, **options), schemas={"given": compiled(proto)}, latest=latest)


def decoded(record_format: Protobuf, records: Iterable[bytes | None]) -> Decoded:
    """What a task makes of values."""
    return decoded_as(record_format, record_batch(list(records)))


def own_columns(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if not name.startswith("_kafka_")} for row in rows.to_pylist()]
