"""Batches of records of several writers' schemas against fastavro, record by record: no row ever comes from another
record.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.formats import avro_decoder, wire_format
from airflow_kafka_offsets.formats.avro_decoder import AvroReader
from airflow_kafka_offsets.formats.avro_format import Avro
from tests.support.avro import VERSIONS, decoded, encode, expected_row, known, own_columns, values, wire
from tests.support.corruption import mutated
from tests.support.decoding import FIRST_OFFSET, STEP
from tests.support.examples import examples

_NO_ROW: dict[str, Any] = dict.fromkeys(known().columns().names)

_versions = st.sampled_from(sorted(VERSIONS))
_records = _versions.flatmap(lambda version: values(version).map(lambda value: (version, encode(version, value))))


def readable(rows: list[dict[str, Any]]) -> list[str]:
    """Rows in a form in which a number that is not a number equals itself."""
    return [repr(row) for row in rows]


@examples(150)
@given(batch=st.lists(st.none() | _records, min_size=1, max_size=12))
def test_three_versions_of_a_schema_and_tombstones_in_any_order(batch: list[tuple[int, bytes] | None]) -> None:
    rows, bad = decoded(known(), [None if record is None else wire(*record) for record in batch])

    assert not bad
    expected = [_NO_ROW if record is None else _NO_ROW | expected_row(*record) for record in batch]
    assert readable(own_columns(rows)) == readable(expected)
    assert rows.column("_kafka_offset").to_pylist() == [FIRST_OFFSET + STEP * place for place in range(len(batch))]


@examples(100)
@given(batch=st.lists(values(3), min_size=1, max_size=8))
def test_plain_values_of_a_given_schema(batch: list[dict[str, Any]]) -> None:
    data = [encode(3, value) for value in batch]

    rows, bad = decoded(Avro(schema=json.dumps(VERSIONS[3])), data)

    assert not bad
    assert readable(own_columns(rows)) == readable([_NO_ROW | expected_row(3, datum) for datum in data])


# Records that may be no longer ones.
_mutated = _records.flatmap(lambda record: mutated(record[1]).map(lambda datum: wire(record[0], datum)))


@examples(60)
@given(
    batch=st.lists(
        _records.map(lambda record: wire(*record)) | _mutated | st.binary(max_size=12), min_size=2, max_size=20
    )
)
def test_mixed_batch_decodes_each_record_as_alone(batch: list[bytes]) -> None:
    decode_as = known()
    alone = [decoded(decode_as, [record]) for record in batch]

    rows, bad = decoded(decode_as, batch)

    assert readable(own_columns(rows)) == readable([row for one in alone for row in own_columns(one.rows)])
    assert [record.row for record in bad] == [place for place, one in enumerate(alone) if one.bad]
    assert rows.num_rows + len(bad) == len(batch)


def test_invalid_utf_8_is_bad_only_in_columns() -> None:
    schema = {
        "type": "record",
        "name": "order",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
    }
    # The number 7, and a text of one byte.
    odd, cut = wire(1, b"\x0e\x02\xff"), wire(1, b"\x0e")

    without = known({1: schema}, ddl="id BIGINT")
    for batch in ([odd], [odd, cut]):
        rows, bad = decoded(without, batch)
        assert own_columns(rows) == [{"id": 7}]
        assert [record.row for record in bad] == [1] * (len(batch) - 1)

    with_name = known({1: schema}, ddl="id BIGINT, name STRING")
    for batch in ([odd], [odd, cut]):
        rows, bad = decoded(with_name, batch)
        assert rows.num_rows == 0
        assert [record.row for record in bad] == list(range(len(batch)))


def test_few_bytes_are_read_one_by_one_until_they_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read of single values are objects of Python's, which take much more memory than their bytes."""
    monkeypatch.setattr(wire_format, "_MOST_BYTES", 1000)
    # What is never read together.
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["int", "string"]}]}
    sizes: list[int] = []
    read_each = AvroReader.read_each

    def note(reader: AvroReader, values: pa.Array) -> Any:
        sizes.append(sum(map(len, values.to_pylist())))
        return read_each(reader, values)

    monkeypatch.setattr(AvroReader, "read_each", note)
    data = [encode(schema, {"a": "x" * size}) for size in [10, 2000, *[300] * 20]]
    data[7] += b"0"

    rows, bad = decoded(Avro("a STRING", schema=json.dumps(schema)), data)

    assert [record.row for record in bad] == [7]
    assert [len(row["a"]) for row in own_columns(rows)] == [10, 2000, *[300] * 19]
    assert max(size for size in sizes if size < 2000) <= 1000
    assert len(sizes) > 7


def test_values_are_in_no_file_that_a_killed_process_would_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found: set[bool] = set()
    context = avro_decoder._context()

    def note() -> Any:
        found.update(path.is_symlink() for path in tmp_path.iterdir())
        return context

    monkeypatch.setattr(avro_decoder, "_context", note)
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}
    rows, bad = decoded(Avro(schema=json.dumps(schema)), [encode(schema, {"a": 1})] * 2)

    assert (rows.num_rows, bad) == (2, [])
    assert found == {True}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("datum", "reason"),
    [
        (b"\0\0\0", "it does not end where its schema says, at byte 3 of 3"),
        (b"\0\0\0\0\0", "1 bytes follow it, at byte 4 of 5"),
        (b"\x02\x02\0\0", "it does not end where its schema says, at byte 4 of 4"),
        (b"\x04\x02\0\x02", "it ends within a number, or has a branch of a union that does not exist, at byte 1 of 4"),
        (b"\x02\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\0\0\0", "column 'at': a value of type timestamp-millis"),
        (b"\0\0\x02\x04\x7f\x7f\0", "column 'price': a decimal does not fit DECIMAL(3,1)"),
        (b"\0\xfe\xff\xff\xff\xff\x0f\0\0", "an int has more than 32 bits, or a long more than 64"),
    ],
)
def test_thousands_of_bad_values_are_not_read_once_more_each(
    datum: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    price = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}
    kinds = {"at": {"type": "long", "logicalType": "timestamp-millis"}, "id": "int", "price": price, "note": "string"}
    fields = [{"name": name, "type": kind if name == "id" else ["null", kind]} for name, kind in kinds.items()]
    reads = 0

    def counted(*arguments: Any) -> pa.Table:
        nonlocal reads
        reads += 1
        return read(*arguments)

    read = avro_decoder._read_file
    monkeypatch.setattr(avro_decoder, "_read_file", counted)

    rows, bad = decoded(
        Avro(schema=json.dumps({"type": "record", "name": "r", "fields": fields})), [datum, b"\0\x0a\0\0"] * 500
    )

    assert rows.column("id").to_pylist() == [5] * 500
    assert {record.reason for record in bad if reason not in record.reason} == set()
    assert [record.row for record in bad] == [*range(0, 1000, 2)]
    assert reads < 50


@pytest.mark.parametrize("short", [10_000, 0])
def test_a_branch_that_does_not_exist_is_taken_for_the_second_whatever_the_other_values_are(
    short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro_decoder, "_SHORT_BYTES", short)
    kind = {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "int"]}]}
    values = [b"\x04\x0a", b"\x02\x0a", b"\0", b"\x04"]
    for batch in ([values[0]], values[:3], values):
        rows, _ = decoded(Avro(schema=json.dumps(kind)), batch)
        assert [row["a"] for row in own_columns(rows)] == [5, 5, None][: len(batch)]


@pytest.mark.parametrize(
    ("field", "value", "row"),
    [
        # The branch -2, which is the first one from the end.
        ({"name": "u", "type": ["null", "boolean"]}, b"\x03\xff\x00", {"u": True, "a": 0}),
        ({"name": "u", "type": ["boolean", "null"]}, b"\x03\x80\x01", {"u": None, "a": 64}),
        # A block of one item with its size, and in it a text that is longer than the block.
        ({"name": "m", "type": {"type": "array", "items": "string"}}, b"\x01\x04\x12x\x00\x0e", {"a": 7}),
    ],
    ids=["null first", "null second", "an unread block"],
)
def test_a_damaged_value_is_the_same_row_beside_a_bad_one(
    field: dict[str, Any], value: bytes, row: dict[str, Any]
) -> None:
    kind = {"type": "record", "name": "r", "fields": [field, {"name": "a", "type": "long"}]}
    ddl = ", ".join({"u": "u BOOLEAN", "a": "a BIGINT"}[name] for name in row)
    for others in ([], [b"\0\x02"], [b""]):
        rows, _ = decoded(Avro(ddl, schema=json.dumps(kind)), [value, *others])
        assert own_columns(rows)[0] == row
