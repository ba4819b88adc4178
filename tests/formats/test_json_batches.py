"""Whole batches against single records: no row ever comes from another record."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.exceptions import RecordError
from airflow_kafka_offsets.formats.columns import row_columns
from airflow_kafka_offsets.formats.record_format import BadRecord
from airflow_kafka_offsets.formats.simple_formats import Json
from tests.support.decoding import FIRST_OFFSET, STEP, Row, declared, decode, refused_at, sifted
from tests.support.examples import examples

DDL = (
    "id BIGINT, name STRING, price DECIMAL(12,3), ok BOOLEAN, ratio DOUBLE, day DATE, seen TIMESTAMP, "
    "tags ARRAY<STRING>, at STRUCT<x: INT, label: STRING>"
)
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["}}\n{", '"}', "\\", '\\"', "\u2028", "\x00", "é", "😀"]
)
_whole = st.integers(-(2**63), 2**63 - 1)
_scalars = st.none() | st.booleans() | _whole | st.floats(allow_nan=False, allow_infinity=False) | _text
_json = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=8,
)
_instants = st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
_fields = {
    "id": st.none() | _whole,
    "name": st.none() | _text,
    "price": st.none() | st.decimals(-(10**8), 10**8, places=3, allow_nan=False),
    "ok": st.none() | st.booleans(),
    "ratio": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "day": st.none() | st.dates(),
    "seen": st.none() | _instants,
    "tags": st.none() | st.lists(st.none() | _text, max_size=3),
    "at": st.none()
    | st.fixed_dictionaries({"x": st.none() | st.integers(-(2**31), 2**31 - 1), "label": st.none() | _text}),
}
_objects = st.fixed_dictionaries({}, optional=_fields)
_unknown_fields = st.dictionaries(_text.filter(lambda name: name not in _fields), _json, max_size=2)


@st.composite
def records(draw: st.DrawFn) -> tuple[Row | None, bytes | None]:
    """The fields of a record, and its value in one of the spellings that writers use; or a tombstone."""
    if draw(st.integers(0, 9)) == 0:
        return None, None
    fields = draw(_objects)
    written = draw(st.permutations(list({**draw(_unknown_fields), **fields}.items())))
    more_digits = draw(st.sampled_from(["", "000", "789"]))

    def spelled(value: object) -> str:
        if isinstance(value, datetime):
            nanoseconds = more_digits if value.year >= 1970 else more_digits.replace("789", "000")
            return value.isoformat(timespec="microseconds").replace("+00:00", f"{nanoseconds}Z")
        return str(value)

    text = json.dumps(
        dict(written),
        default=spelled,
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 1])),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": ")])),
    )
    return fields, text.encode()


_NAMES = row_columns(Json(DDL)).names[:-4]


@examples(250)
@given(batch=st.lists(records(), min_size=1, max_size=8))
def test_every_row_holds_the_fields_of_its_own_record(batch: list[tuple[Row | None, bytes | None]]) -> None:
    rows = decode(DDL, *(value for _, value in batch))
    assert declared(rows) == [{name: (fields or {}).get(name) for name in _NAMES} for fields, _ in batch]
    assert [row["_kafka_offset"] for row in rows] == [FIRST_OFFSET + STEP * i for i in range(len(batch))]


_pieces = [
    b'{"a":1}',
    b'{"a":2,"b":"x"}',
    b'}\n{"a":3}',
    b'{"a":1,"b":"}',
    b'{"}',
    b"{}}",
    b'{"x":{}',
    b'"a":',
    b',"x":1',
    b"1",
    b"null",
    b"}\n",
]
_pieces += [bytes([byte]) for byte in b'{}[],"\\\n\r \x00\xff'] + [b"\xef\xbb\xbf", b"//", b"/*"]
_fragments = st.lists(st.sampled_from(_pieces), max_size=6).map(b"".join)
_sound = st.integers(-9, 9).map(lambda number: b'{"a":%d}' % number)
_values = st.none() | _sound | _fragments | st.binary(max_size=12) | _json.map(lambda one: json.dumps(one).encode())


@examples(1000)
@given(values=st.lists(_values, min_size=1, max_size=6))
def test_a_batch_of_any_bytes_decodes_as_each_record_alone_or_names_the_first_that_does_not(
    values: list[bytes | None],
) -> None:
    alone: list[Row] = []
    first_bad: int | None = None
    for place, value in enumerate(values):
        try:
            alone += declared(decode("a INT, b STRING", value))
        except RecordError:
            first_bad = place
            break
    if first_bad is None:
        rows = decode("a INT, b STRING", *values)
        assert declared(rows) == alone
        assert [row["_kafka_offset"] for row in rows] == [FIRST_OFFSET + STEP * i for i in range(len(values))]
    else:
        assert refused_at("a INT, b STRING", *values) == first_bad


@examples(500)
@given(values=st.lists(_values, min_size=1, max_size=30))
def test_mixed_batch_decodes_each_record_as_alone(values: list[bytes | None]) -> None:
    good: list[Row] = []
    reasons: dict[int, str] = {}
    for place, value in enumerate(values):
        try:
            (row,) = declared(decode("a INT, b STRING", value))
        except RecordError as error:
            reasons[place] = error.reason
        else:
            good.append(row | {"at": FIRST_OFFSET + STEP * place})

    rows, bad = sifted("a INT, b STRING", *values)

    assert [{"a": row["a"], "b": row["b"], "at": row["_kafka_offset"]} for row in rows] == good
    assert bad == [BadRecord(place, reason) for place, reason in reasons.items()]


_times = ["2024-01-02", "2024-01-02T03:04:05", "2024-01-02T03:04:05Z", "2024-01-02 03:04:05.5+02:00", "2024-01-02T03"]
_times += ["2024-01-02T03:04:05.123456789", "2024-01-02T03:04:05.123456789Z", "1969-01-02T03:04:05.000000789+0200"]
_times += ["9999-12-31T00:00:00", "9999-12-31T00:00:00Z", "0001-01-01T00:00:00.123456789Z", "2024-02-30", "soon", ""]


@pytest.mark.parametrize(
    ("ddl", "wrapped"),
    [
        ("a TIMESTAMP", '{"a": "%s"}'),
        ("a TIMESTAMP_NTZ", '{"a": "%s"}'),
        ("a ARRAY<TIMESTAMP>", '{"a": ["%s"]}'),
        ("a STRUCT<b: TIMESTAMP_NTZ>", '{"a": {"b": "%s"}}'),
    ],
)
@examples(150)
@given(data=st.data())
def test_how_a_timestamp_decodes_does_not_depend_on_its_neighbours(ddl: str, wrapped: str, data: st.DataObject) -> None:
    values = [
        (wrapped % text).encode() for text in data.draw(st.lists(st.sampled_from(_times), min_size=2, max_size=4))
    ]
    alone: list[Row] = []
    for place, value in enumerate(values):
        try:
            alone += declared(decode(ddl, value))
        except RecordError:
            assert refused_at(ddl, *values) == place
            return
    assert declared(decode(ddl, *values)) == alone


@examples(1000)
@given(value=_fragments | st.binary(max_size=20))
def test_a_value_that_decodes_is_one_json_object(value: bytes) -> None:
    try:
        decode("a INT", value)
    except RecordError:
        return
    found = json.loads(value.decode())
    assert found is None or isinstance(found, dict)
