"""Which of the two readers of Protobuf takes a message, and that neither harms the neighbours of a message or its
merged parts.
"""

from __future__ import annotations

import pytest

from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.formats import protobuf_reader
from tests.support.protobuf import decoded, given, own_columns

V1 = 'syntax = "proto3"; message Order { int32 id = 1; }'
GROUPS = 'syntax = "proto2"; message Order { optional int32 id = 1; optional group Old = 2 { optional int32 x = 3; } }'


def test_groups_can_be_columns() -> None:
    rows, bad = decoded(given(GROUPS), [b"\x08\x01\x13\x18\x05\x14", b""])
    assert (own_columns(rows), bad) == ([{"id": 1, "old": {"x": 5}}, {"id": None, "old": None}], [])


@pytest.mark.parametrize("records", [1, 200])
def test_unknown_groups_and_oneofs_that_are_set_twice_are_left_to_googles_reader(records: int) -> None:
    text = 'syntax = "proto3"; message M { int32 id = 1; oneof o { int32 a = 2; string b = 3; } }'
    group, both = b"\x08\x01\x7b\x7c", b"\x08\x02\x10\x05\x1a\x01x"
    rows, bad = decoded(given(text), [group, both, b"\x08\x03\x0a"] + [b"\x08\x04\x10\x01"] * records)
    assert [record.row for record in bad] == [2]
    assert own_columns(rows)[:3] == [
        {"id": 1, "a": None, "b": None},
        {"id": 2, "a": None, "b": "x"},
        {"id": 4, "a": 1, "b": None},
    ]


def test_a_oneof_is_judged_by_members_that_are_no_columns() -> None:
    text = 'syntax = "proto3"; message M { oneof o { int32 a = 2; string b = 3; M c = 4; } }'
    rows, _ = decoded(given(text, ddl="a INT"), [b"\x10\x05\x1a\x01x", b"\x1a\x01x\x10\x05", b"\x10\x05\x22\x00"])
    assert own_columns(rows) == [{"a": None}, {"a": 5}, {"a": None}]


def test_messages_merge_as_protobuf_says() -> None:
    text = (
        'syntax = "proto3"; message M { P p = 1; map<string, int32> m = 2; } '
        "message P { int32 x = 1; repeated int32 y = 2; }"
    )
    twice = b"\x0a\x04\x08\x01\x10\x02\x0a\x04\x08\x03\x10\x04" + b"\x12\x05\x0a\x01k\x10\x01\x12\x05\x0a\x01k\x10\x02"
    expected = {"p": {"x": 3, "y": [2, 4]}, "m": [{"key": "k", "value": 2}]}
    assert own_columns(decoded(given(text), [twice, b""]).rows)[0] == expected
    as_bytes = decoded(given(text, ddl="p BINARY"), [twice, b""])
    assert own_columns(as_bytes.rows) == [{"p": b"\x08\x01\x10\x02\x08\x03\x10\x04"}, {"p": None}]


def test_a_failure_that_is_not_of_the_values_makes_no_record_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def array_to_record_batch(self, _: object) -> None:
            raise MemoryError("no memory")

    found = given(V1)
    monkeypatch.setattr(protobuf_reader.ProtobufReader, "is_vectorized", True)
    monkeypatch.setattr(protobuf_reader.ProtobufReader, "_handler", Broken())
    with pytest.raises(StagingError, match="The reader of Protobuf failed"):
        decoded(found, [b""])


def test_what_one_of_the_readers_takes_is_good_whatever_its_neighbours_are() -> None:
    text = 'syntax = "proto3"; message M { int32 id = 1; }'
    # Only the quick reader takes a number of a field in six bytes, and only Google's takes a group.
    long_tag, group, cut = b"\x88\x80\x80\x80\x80\x00\x05", b"\x08\x06\x7b\x7c", b"\x08"
    good = b"\x08\x07"
    assert [decoded(given(text), [record]).rows.num_rows for record in (long_tag, group, cut)] == [1, 1, 0]
    rows, bad = decoded(given(text), [long_tag, good, cut, group, good, long_tag])
    assert [row["id"] for row in own_columns(rows)] == [5, 7, 6, 7, 5]
    assert [record.row for record in bad] == [2]
