"""Records that become much more memory than they have bytes: a null in a list takes the room of all fields of an item
in Arrow, and a byte of a value may be an object of Python's.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.templates import with_values
from airflow_kafka_offsets.exceptions import RecordError
from airflow_kafka_offsets.formats import avro_decoder, protobuf_decoder
from airflow_kafka_offsets.formats.avro_decoder import _long
from airflow_kafka_offsets.formats.avro_format import Avro
from airflow_kafka_offsets.formats.columns import format_columns, row_columns
from airflow_kafka_offsets.formats.protobuf_format import Protobuf
from airflow_kafka_offsets.formats.read_schemas import ReadSchema
from airflow_kafka_offsets.formats.record_format import Decoded, RecordFormat
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.spark import decoding, isolation
from airflow_kafka_offsets.spark.decoding import CRASH, MOST_ROOM, DecodingHere, decode_portions, decode_rows, most_room
from airflow_kafka_offsets.spark.isolation import MEMORY_BYTES, decoding_of
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.tasks import read_slice
from airflow_kafka_offsets.staging.arrow_files import SCHEMA, write_records
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.transforms.sql import Sql
from tests.spark.test_isolation import job
from tests.support.avro import encode
from tests.support.decoding import record_batch
from tests.support.examples import examples
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


def decoded(staged: StageJob, records: pa.RecordBatch) -> list[Decoded]:
    """What a task makes of records, by portion."""
    with decoding_of(staged, staged.slices[0], staged.batch_function(), is_isolated=False) as decode:
        return [rows for _, rows in decode_portions(records, staged.columns, decode)]


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

    found = decoded(staged, records)

    assert sum(part.rows.num_rows for part in found) == 31
    ((bad,),) = [part.bad for part in found if part.bad]
    assert (bad.reason, bad.part) == ("it becomes rows of more than 128 MiB", CRASH)
    assert max(here) <= MOST_ROOM
    assert max(part.rows.nbytes for part in found) <= MOST_ROOM < MEMORY_BYTES


class NoRows:
    def __call__(self, records: pa.RecordBatch) -> Decoded:
        return Decoded(pa.RecordBatch.from_pylist([]))

    def schemas_read(self) -> tuple[ReadSchema, ...]:
        return ()


def sizes(records: pa.RecordBatch, columns: pa.Schema) -> list[int]:
    return [part.num_rows for part, _ in decode_portions(records, columns, NoRows())]


def test_usual_records_stay_together() -> None:
    columns = row_columns(Json("id BIGINT, name STRING, tags ARRAY<STRING>, places ARRAY<STRUCT<x: INT, y: INT>>"))
    records = record_batch([b"x" * 500] * 10_000)
    assert sizes(records, columns) == [10_000]
    assert sum(sizes(record_batch([b"x"] * 999), row_columns(of_json()[0]))) == 999


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

    found = decoded(staged, record_batch(values, key=keys))

    assert [row for part in found for row in part.rows.column("id").to_pylist()] == [*range(16)]
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

    (found,) = decoded(staged, record_batch([value]))

    assert [(bad.reason, bad.part) for bad in found.bad] == [("decoding it takes more than 2,048 MiB", CRASH)]


TEXT = "x" * 9_900
ENUM: dict[str, Any] = {"type": "enum", "name": "e", "symbols": [TEXT, "short"]}


def avro_record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


def avro_values(kind: Any, values: Sequence[Any]) -> tuple[RecordFormat, list[bytes]]:
    """A field of a type, by the schema of its records."""
    schema = avro_record("r", ("f", kind))
    return Avro(schema=json.dumps(schema)), [encode(schema, {"f": value}) for value in values]


def avro_defaults(kind: Any, default: Any) -> tuple[RecordFormat, list[bytes]]:
    """A field that no record has, with a default in the reader's schema."""
    old = avro_record("r", ("id", "long"))
    new = {**old, "fields": [*old["fields"], {"name": "f", "type": kind, "default": default}]}
    texts = {"1": [json.dumps(old)], "2": [json.dumps(new)]}
    known = with_values(Avro(registry_conn_id="r"), schemas=texts, latest="2")
    return known, [b"\0\0\0\0\1" + encode(old, {"id": number}) for number in range(COUNT)]


def proto_values(fields: str, value: bytes, syntax: str = "proto2") -> tuple[RecordFormat, list[bytes]]:
    text = f'syntax = "{syntax}"; message R {{ optional int64 id = 1; {fields} }} enum E {{ {"E" * 990} = 0; }}'
    known = with_values(Protobuf(registry_conn_id="r"), schemas={"1": compiled(text)}, latest="1")
    return known, [b"\0\0\0\0\1\0" + value] * COUNT


COUNT = 400
INNER = f'message I {{ optional int64 x = 1; optional string t = 2 [default = "{TEXT}"]; }}'
CONSTANTS = {
    "avro default": lambda: avro_defaults("string", TEXT),
    "avro default of bytes": lambda: avro_defaults("bytes", TEXT),
    "avro default of an enum": lambda: avro_defaults(ENUM, TEXT),
    "avro default of a list": lambda: avro_defaults({"type": "array", "items": "long"}, [1] * 2_000),
    "avro default of a map": lambda: avro_defaults({"type": "map", "values": "long"}, {TEXT: 1}),
    "avro default of a record": lambda: avro_defaults(
        {"type": "record", "name": "i", "fields": [{"name": "x", "type": "string", "default": TEXT}]}, {}
    ),
    "avro enum": lambda: avro_values(ENUM, [TEXT, "short"] * (COUNT // 2)),
    "avro optional enum": lambda: avro_values(["null", ENUM], [TEXT, None] * (COUNT // 2)),
    "avro union": lambda: avro_values(["long", ENUM], [TEXT, 1] * (COUNT // 2)),
    "avro items": lambda: avro_values({"type": "array", "items": ENUM}, [[TEXT, "short"]] * COUNT),
    "avro map": lambda: avro_values({"type": "map", "values": ENUM}, [{"a": TEXT}] * COUNT),
    "proto default": lambda: proto_values(f'optional string t = 2 [default = "{TEXT}"];', b""),
    "proto default of bytes": lambda: proto_values(f'optional bytes t = 2 [default = "{TEXT}"];', b""),
    "proto default in a message": lambda: proto_values(f"{INNER} optional I i = 2;", b""),
    "proto default in items": lambda: proto_values(f"{INNER} repeated I i = 2;", b"\x12\0" * 2),
    "proto default in a map": lambda: proto_values(f"{INNER} map<int64, I> i = 2;", b"\x12\0"),
    "proto enum": lambda: proto_values("E e = 2;", b"", "proto3"),
    "proto enums": lambda: proto_values("repeated E e = 2;", b"\x12\4\0\0\0\0", "proto3"),
}


@pytest.mark.parametrize("make", CONSTANTS.values(), ids=CONSTANTS)
def test_texts_of_a_schema_are_in_memory_for_few_rows_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    record_format, values = make()
    staged = job(tmp_path, record_format)
    records = record_batch(values)
    (whole,) = decoded(staged, records)
    most = 300_000
    assert whole.rows.num_rows == COUNT
    assert whole.rows.nbytes > most

    monkeypatch.setattr(decoding, "MOST_ROOM", most)
    found = decoded(staged, records)

    assert max(part.rows.nbytes for part in found) <= most + records.nbytes + 100 * COUNT
    assert pa.Table.from_batches([part.rows for part in found]).equals(pa.Table.from_batches([whole.rows]))


@pytest.mark.parametrize("is_isolated", [False, True], ids=["here", "in a child"])
def test_record_that_a_transform_makes_many_megabytes_of_is_bad(tmp_path: Path, is_isolated: bool) -> None:
    record_format = Json("id BIGINT, note STRING, items ARRAY<BIGINT>")
    transform = Sql("SELECT id, note, unnest(items) AS item FROM records").prepared(row_columns(record_format))
    staged = job(tmp_path, record_format, decode_timeout=60.0, transform=transform)
    values = [json.dumps({"id": 1, "note": "x" * 15_000, "items": [1] * count}).encode() for count in (3, 10_000, 3)]

    with decoding_of(staged, staged.slices[0], staged.batch_function(), is_isolated=is_isolated) as decode:
        found = [part for _, part in decode_portions(record_batch(values), staged.columns, decode)]

    assert [part.rows.num_rows for part in found] == [3, 0, 3]
    ((bad,),) = [part.bad for part in found if part.bad]
    assert (bad.reason, bad.part) == ("it becomes rows of more than 128 MiB", CRASH)


MANY_NAMES = avro_values({"type": "array", "items": ENUM}, [["short"], [TEXT] * 200_000, ["short"] * 9])


@pytest.mark.parametrize("is_isolated", [False, True], ids=["here", "in a child"])
def test_record_of_many_long_names_is_bad_before_they_are_in_memory(tmp_path: Path, is_isolated: bool) -> None:
    record_format, values = MANY_NAMES
    staged = job(tmp_path, record_format, decode_timeout=60.0)
    before = pa.default_memory_pool().max_memory()

    with decoding_of(staged, staged.slices[0], None, is_isolated=is_isolated) as decode:
        found = [part for _, part in decode_portions(record_batch(values), staged.columns, decode)]

    assert [part.rows.num_rows for part in found] == [1, 0, 1]
    ((bad,),) = [part.bad for part in found if part.bad]
    assert (bad.reason, bad.part) == ("it becomes rows of more than 128 MiB", CRASH)
    assert pa.default_memory_pool().max_memory() - before < 100 << 20


def test_rows_around_a_record_that_ends_the_child_are_not_joined_if_they_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "room_of", lambda records: 1_000 if records.num_rows == 1 else 1)
    staged = job(tmp_path)
    with decoding_of(staged, staged.slices[0], None, is_isolated=True) as decode:
        found = [part for _, part in decode_portions(record_batch([b"a", b"exit", b"b"]), staged.columns, decode)]
    assert [part.rows.num_rows for part in found] == [1, 0, 1]
    assert [bad.part for part in found for bad in part.bad] == [CRASH]


@pytest.mark.parametrize("has_dead_letters", [True, False])
def test_record_of_many_long_names_is_named_or_a_dead_letter(tmp_path: Path, has_dead_letters: bool) -> None:
    record_format, values = MANY_NAMES
    staged = job(tmp_path, record_format, records_are_staged=True, has_dead_letters=has_dead_letters)
    records = record_batch(values, headers=pa.nulls(3, SCHEMA.field("headers").type))
    staging = StagingDirectory(staged.staging_uri)
    write_records(staging, 0, [records.select(SCHEMA.names)])

    read = read_slice(staged, staged.slices[0], staging)
    if has_dead_letters:
        assert [rows.column("_kafka_offset").to_pylist() for rows in read] == [[1000], [1004]]
    else:
        with pytest.raises(RecordError, match=r"'orders' partition 3 offset 1002.*more than 128 MiB"):
            list(read)


ORDER = avro_record("r", ("a", ENUM | {"symbols": ["a" * 40, "b"]}), ("b", {"type": "array", "items": "e"}))
ORDER["fields"] += [{"name": name, "type": ["null", "string"]} for name in "cd"]
ORDERS = st.lists(
    st.builds(
        lambda order, damage: encode(ORDER, order)[: -damage or None],
        st.fixed_dictionaries(
            {
                "a": st.sampled_from(["a" * 40, "b"]),
                "b": st.lists(st.sampled_from(["a" * 40, "b"]), max_size=3),
                "c": st.sampled_from(["x", "y", None]),
                "d": st.sampled_from(["x", "y", None]),
            }
        ),
        st.sampled_from([0, 0, 0, 1]),
    ),
    min_size=1,
    max_size=100,
)


@given(values=ORDERS, room=st.integers(200, 2_000))
@examples(300)
def test_rows_do_not_depend_on_how_many_are_decoded_together(values: list[bytes], room: int) -> None:
    """A null of a column that is NOT NULL is found when the names before it are counted already."""
    record_format = Avro("a STRING, b ARRAY<STRING>, c STRING NOT NULL", schema=json.dumps(ORDER))
    columns, slice_ = row_columns(record_format), Slice(0, "orders", 3, 1000, 2000)
    decode = record_format.decoder(format_columns(columns))

    class Decode(NoRows):
        def __call__(self, records: pa.RecordBatch) -> Decoded:
            return decode_rows(records, decode, slice_)

    records = record_batch(values)
    whole = decode_rows(records, decode, slice_)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "room_of", lambda _: room)
        found = list(decode_portions(records, columns, Decode()))

    rows = pa.Table.from_batches([part.rows for _, part in found], columns)
    assert rows.equals(pa.Table.from_batches([whole.rows], columns))
    bad = [(portion.column("offset")[bad.row], *bad[1:]) for portion, part in found for bad in part.bad]
    assert bad == [(records.column("offset")[bad.row], *bad[1:]) for bad in whole.bad]


EMPTY = {"type": "record", "name": "empty", "fields": []}


def test_fields_without_bytes_take_no_memory_for_each_record() -> None:
    schema = avro_record("r", ("id", "long"), ("e", EMPTY), *((name, "empty") for name in NAMES))
    inner = avro_record("r", ("id", "long"), ("s", schema | {"name": "s"}))
    for kind, ddl in ((schema, "id BIGINT"), (inner, "s STRUCT<id: BIGINT>")):
        record_format = Avro(ddl, schema=json.dumps(kind))
        records = record_batch([b"\2", b"\2\2"] * 1_000)
        decode = record_format.decoder(record_format.columns())
        decode(records.slice(0, 2))
        tracemalloc.start()
        rows, bad = decode(records)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
        tracemalloc.stop()
        assert (rows.num_rows, len(bad)) == (1_000, 1_000)


def nested(depth: int, inner: Any) -> Any:
    """Records of one field in one another, around a type."""
    for number in range(depth):
        inner = avro_record(f"n{number}", ("x", inner))
    return inner


@pytest.mark.parametrize("ddl", ["id BIGINT", None], ids=["no column", "column"])
def test_records_of_one_field_in_one_another_take_no_memory_each(ddl: str | None) -> None:
    kind = avro_record("r", ("id", "long"), ("items", {"type": "array", "items": nested(50, "boolean")}))
    record_format = Avro(ddl, schema=json.dumps(kind))
    decode = record_format.decoder(record_format.columns())
    good = b"\2" + _long(2_000) + b"\1\0" * 1_000 + b"\0"
    decode(record_batch([good[:-1]]))
    tracemalloc.start()
    # One byte too many, so that the reader of single values decides.
    rows, bad = decode(record_batch([good, good + b"\0"]))
    assert tracemalloc.get_traced_memory()[1] < 3_000_000
    tracemalloc.stop()
    assert (rows.column("id").to_pylist(), [record.row for record in bad]) == ([1], [1])
    if ddl is None:
        item: Any = True
        for _ in range(50):
            item = {"x": item}
        assert rows.column("items")[0].as_py()[:2] == [item, json.loads(json.dumps(item).replace("true", "false"))]


@pytest.mark.parametrize(("depth", "is_refused"), [(3, False), (4, True)])
def test_records_of_one_field_in_one_another_that_have_themselves_are_refused(depth: int, is_refused: bool) -> None:
    kind = nested(depth, {"type": "array", "items": ["null", *(f"n{number}" for number in range(depth))]})
    record_format = Avro("id BIGINT", schema=json.dumps(avro_record("r", ("id", "long"), ("x", kind))))
    rows, bad = record_format.decoder(record_format.columns())(record_batch([b"\2\0"]))
    assert (rows.num_rows, [record.reason for record in bad]) == (
        (0, ["its schema has records of one field in one another, and in themselves: a byte would be many objects"])
        if is_refused
        else (1, [])
    )


WIDE = avro_record("wide", ("id", "long"), *((name, ["null", "long"]) for name in NAMES))
WIDE_NULLS = {
    "nullable": ({"type": "array", "items": ["null", WIDE]}, "ARRAY<STRUCT<id: BIGINT>>", b"\0", None),
    "of a union": (
        {"type": "array", "items": ["null", "long", WIDE]},
        "ARRAY<STRUCT<member0: BIGINT, member1: STRUCT<id: BIGINT>>>",
        b"\2\2",
        {"member0": 1, "member1": None},
    ),
    "without a column": ({"type": "array", "items": ["null", "long", WIDE]}, "ARRAY<BIGINT>", b"\2\2", 1),
    "in a map": (
        {"type": "map", "values": ["null", WIDE]},
        "ARRAY<STRUCT<key: STRING, value: STRUCT<id: BIGINT>>>",
        b"\0\0",
        {"key": "", "value": None},
    ),
    "in a record": (
        {"type": "array", "items": ["null", avro_record("o", ("w", WIDE), ("n", "long"))]},
        "ARRAY<STRUCT<w: STRUCT<id: BIGINT>>>",
        b"\0",
        None,
    ),
}


# Arrow's buffers do not keep their pool.
POOLS: list[pa.MemoryPool] = []


@pytest.mark.parametrize(("kind", "column", "item", "found"), WIDE_NULLS.values(), ids=WIDE_NULLS)
def test_fields_of_nulls_that_are_no_columns_take_no_memory(
    monkeypatch: pytest.MonkeyPatch, kind: Any, column: str, item: bytes, found: Any
) -> None:
    record_format = Avro(f"x {column}", schema=json.dumps(avro_record("r", ("x", kind))))
    decode = record_format.decoder(record_format.columns())
    value = _long(MANY) + item * MANY + b"\0"
    sizes, read_file = [0], avro_decoder._read_file

    def note(*args: Any) -> pa.Table:
        table = read_file(*args)
        sizes.append(table.nbytes)
        return table

    monkeypatch.setattr(avro_decoder, "_read_file", note)
    decode(record_batch([_long(1) + item + b"\0"]))
    usual = pa.default_memory_pool()
    POOLS.append(pool := pa.proxy_memory_pool(usual))
    pa.set_memory_pool(pool)
    try:
        rows, bad = decode(record_batch([value, value + b"\0"]))
    finally:
        pa.set_memory_pool(usual)

    assert (rows.column("x")[0].as_py()[-1], [record.row for record in bad]) == (found, [1])
    assert max(sizes) < 40_000_000
    assert pool.max_memory() < 20_000_000


@pytest.mark.parametrize(("count", "is_list"), [(400, False), (400, True), (900, False), (900, True)])
def test_members_of_a_oneof_that_are_no_columns_take_little_memory(
    monkeypatch: pytest.MonkeyPatch, count: int, is_list: bool
) -> None:
    members = " ".join(f"int64 {name} = {number + 2};" for number, name in enumerate(NAMES[:count]))
    text = f'syntax = "proto3"; message R {{ oneof o {{ int64 id = 1; {members} }} repeated R rs = 2000; }}'
    ddl = "rs ARRAY<STRUCT<id: BIGINT>>" if is_list else "id BIGINT"
    known = with_values(Protobuf(ddl, registry_conn_id="r"), schemas={"1": compiled(text)})
    # Of the members that a message sets, the last one counts.
    messages = [b"\x08\1", b"\x08\1\x10\1", b"\x10\1\x08\2"] + [b"\x08\3"] * 15_000
    expected = [1, None, 2] + [3] * 15_000
    if is_list:
        messages = [b"".join(b"\x82\x7d" + bytes([len(item)]) + item for item in messages)]
    sizes = [0]
    check_oneofs = protobuf_decoder._check_oneofs

    def note(columns: dict[str, pa.Array], children: Any) -> None:
        sizes.append(sum(array.nbytes for array in columns.values()))
        check_oneofs(columns, children)

    monkeypatch.setattr(protobuf_decoder, "_check_oneofs", note)
    decode = known.decoder(known.columns())

    rows, bad = decode(record_batch([b"\0\0\0\0\1\0" + message for message in messages]))

    found = [item["id"] for item in rows.column(0)[0].as_py()] if is_list else rows.column(0).to_pylist()
    assert (found, bad) == (expected, [])
    assert max(sizes) < 40_000_000
