"""Corrupted messages among sound ones: rows and dead letters are all records, no row shifts, and google.protobuf judges
alike but for a few.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from tests.support.corruption import corrupted
from tests.support.protobuf import (
    VERSIONS,
    as_row,
    decoded,
    encode,
    given,
    message_class,
    ordered,
    own_columns,
)

ORDER = message_class(VERSIONS[3], "shop.v1.Order")


def some_value(number: int, chance: random.Random) -> dict[str, Any]:
    pick = chance.choice
    place = {"x": -(2**31), "label": "größer😀", "sizes": [1.0, float("inf")], "corners": {"a": {"angle": 0.5}}}
    value = {
        "id": pick([number, -(2**63), 2**63 - 1]),
        "name": pick(["", "größer😀", "x" * 30]),
        "ratio": pick([0.0, -0.5]),
        "data": pick([b"", b"\0\xff", b"y" * 200]),
        "large": pick([0, 2**64 - 1]),
        "kind": pick([0, 1, 9]),
        "tags": pick([[], ["a", ""], ["é"] * 3]),
        "counts": pick([{}, {"a": 1, "b": -2}]),
        "steps": pick([[], [1, -1, 2**31 - 1]]),
        "places": pick([[], [place, {}]]),
        "by_number": pick([{}, {1: place, -1: {}}]),
        "kinds": pick([[], [0, 2, 7]]),
    }
    sometimes: dict[str, Any] = {
        "seen": {"seconds": -1, "nanos": 999_999_999},
        "took": {"seconds": -5, "nanos": -1},
        "boxed": {"value": 7},
        "note": "",
        "place": place,
        "more": {"a": [1.5, None, {"b": "é"}]},
        pick(["text", "number"]): None,
    }
    sometimes |= {name: {"text": "t", "number": 5}[name] for name in ("text", "number") if name in sometimes}
    return value | {name: item for name, item in sometimes.items() if chance.random() < 0.5}


def judged_by_protobuf(datum: bytes) -> tuple[str, Any]:
    """Its verdict, `good`, `unfit` for what no column can hold, or `bad`, and the row of a good one."""
    try:
        message = ORDER.FromString(datum)
    except DecodeError:
        return "bad", None
    instants = [message.seen, *message.stops]
    lasts = [message.took.nanos]
    if any(not 0 <= found.nanos < 10**9 for found in instants) or any(abs(nanos) >= 10**9 for nanos in lasts):
        return "unfit", None
    if abs(message.took.seconds) >= 10**12:
        return "unfit", None
    try:
        return "good", ordered(as_row(message))
    except (OverflowError, ValueError, json_format.Error):
        return "unfit", None


def without_maps(value: Any) -> Any:
    if isinstance(value, dict):
        maps = {"counts", "by_number", "corners"}
        return {name: without_maps(item) for name, item in value.items() if name not in maps}
    return [without_maps(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("records", [2_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_corrupted_messages_harm_no_other_and_are_judged_as_by_protobuf(records: int) -> None:
    chance = random.Random(records)
    record_format = given(VERSIONS[3], message="Order")
    differences: Counter[tuple[str, bool]] = Counter()
    for first in range(0, records, 500):
        sound = [encode(3, some_value(first + place, chance)) for place in range(500)]
        is_corrupted = [chance.random() < 0.5 for _ in sound]
        batch = [corrupted(datum, chance) if bad else datum for datum, bad in zip(sound, is_corrupted, strict=True)]

        rows, bad = decoded(record_format, batch)

        assert rows.num_rows + len(bad) == len(batch)
        refused = {record.row for record in bad}
        assert not [place for place in refused if not is_corrupted[place]]
        found = iter(own_columns(rows))
        for place, datum in enumerate(batch):
            verdict, expected = judged_by_protobuf(datum)
            differences[verdict, place not in refused] += 1
            if place in refused:
                continue
            row = ordered(next(found))
            if verdict == "good" and row != expected:
                assert without_maps(row) == without_maps(expected), datum
                differences["map", True] += 1
        kept = pa.array([not is_corrupted[place] for place in range(len(batch)) if place not in refused])
        assert rows.filter(kept).num_rows == is_corrupted.count(False)

    # Every message that google.protobuf reads is read, with the same values, but for maps: an entry with fields beside
    # key and value counts. Of the messages that it refuses a few are read: numbers of fields and lengths with more
    # bytes than they need, and packed lists of fixed size that end in a part of an item.
    assert not differences["good", False]
    assert not differences["unfit", True]
    assert differences["map", True] <= 0.002 * records, differences
    assert differences["bad", True] <= 0.001 * records, differences
