"""Corrupted records among sound ones: rows and dead letters are all records, no row shifts, and fastavro judges alike
but for a few.
"""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from airflow_kafka_offsets.formats.avro_format import Avro
from tests.support.avro import decoded, encode, own_columns
from tests.support.corruption import corrupted

# Without logical types, for which fastavro makes Python values that have limits of their own.
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "data", "type": "bytes"},
        {"name": "counts", "type": {"type": "map", "values": ["null", "int"]}},
        {"name": "kind", "type": ["null", {"type": "enum", "name": "kind", "symbols": ["NEW", "PAID"]}]},
        {"name": "ok", "type": "boolean"},
        {"name": "code", "type": {"type": "fixed", "name": "code", "size": 4}},
        {
            "name": "place",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "place",
                    "fields": [
                        {"name": "x", "type": "int"},
                        {"name": "sizes", "type": {"type": "array", "items": "float"}},
                    ],
                },
            ],
        },
        {"name": "mixed", "type": {"type": "array", "items": ["null", "long"]}},
    ],
}
PARSED = fastavro.parse_schema(json.loads(json.dumps(SCHEMA)))


def some_value(number: int, chance: random.Random) -> dict[str, Any]:
    pick = chance.choice
    return {
        "id": pick([number, -(2**63), 2**63 - 1]),
        "name": pick([None, "", "größer😀", "x" * 30]),
        "data": pick([b"", b"\0\xff", b"y" * 70]),
        "counts": pick([{}, {"a": 1, "b": None}, {"é": -1}]),
        "kind": pick([None, "NEW", "PAID"]),
        "ok": pick([True, False]),
        "code": pick([b"1234", b"\0\0\0\0"]),
        "place": pick([None, {"x": 1, "sizes": [1.0, float("inf")]}, {"x": -(2**31), "sizes": []}]),
        "mixed": pick([[], [None, 1], [-(2**63)]]),
    }


def judged_by_fastavro(datum: bytes) -> str:
    """Its verdict: `good`, `unusual` for a good one that it writes in other bytes itself, `branch` or `bad`."""
    stream = io.BytesIO(datum)
    try:
        value = fastavro.schemaless_reader(stream, PARSED, None)
    except Exception as error:
        return "branch" if isinstance(error, IndexError) else "bad"
    if stream.tell() != len(datum):
        return "bad"
    try:
        return "good" if encode(SCHEMA, value) == datum else "unusual"
    except Exception:
        return "unusual"


@pytest.mark.parametrize("records", [2_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_corrupted_records_harm_no_other_and_are_judged_as_by_fastavro(records: int) -> None:
    chance = random.Random(records)
    record_format = Avro(schema=json.dumps(SCHEMA))
    differences: Counter[tuple[str, bool]] = Counter()
    for first in range(0, records, 500):
        sound = [encode(SCHEMA, some_value(first + place, chance)) for place in range(500)]
        is_corrupted = [chance.random() < 0.5 for _ in sound]
        batch = [corrupted(datum, chance) if bad else datum for datum, bad in zip(sound, is_corrupted, strict=True)]

        rows, bad = decoded(record_format, batch)

        assert rows.num_rows + len(bad) == len(batch)
        refused = {record.row for record in bad}
        accepted = [place for place in range(len(batch)) if place not in refused]
        assert not [place for place in refused if not is_corrupted[place]]
        kept = pa.array([not is_corrupted[place] for place in accepted])
        expected, none = decoded(
            record_format, [datum for datum, bad in zip(sound, is_corrupted, strict=True) if not bad]
        )
        assert not none
        assert repr(own_columns(rows.filter(kept))) == repr(own_columns(expected))
        for place, datum in enumerate(batch):
            differences[judged_by_fastavro(datum), place not in refused] += 1

    # A branch that does not exist, of a union of null and one type, is taken for the type.
    assert {verdict for verdict, accepted in differences if accepted} <= {"good", "unusual", "branch"}
    assert differences["branch", True] <= 0.03 * records
    # A number in more bytes than it can have is refused, and so is an int of more than 32 bits.
    assert {verdict for verdict, accepted in differences if not accepted} <= {"bad", "unusual", "branch"}
    assert differences["unusual", False] <= 0.01 * records
