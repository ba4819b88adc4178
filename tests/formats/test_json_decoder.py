"""Records to rows: what decodes, what is refused, and that no row ever comes from another record."""

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.json as pj
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import RecordError
from airflow_kafka_offsets.formats.json_format import Json
from airflow_kafka_offsets.formats.raw import Raw
from airflow_kafka_offsets.formats.record_format import BadRecord, Decoded, RecordFormat
from airflow_kafka_offsets.formats.row_columns import format_columns, row_columns
from airflow_kafka_offsets.spark.tasks import decode_rows, record_error
from tests.support.examples import examples

FIRST_OFFSET = 1000
# Offsets are not counts: every second one holds a record here, as after compaction or in transactions.
STEP = 2
BEGUN = datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)

Row = dict[str, Any]


def record_batch(values: Sequence[bytes | None], **columns: pa.Array) -> pa.RecordBatch:
    """Record batches as `read` yields them."""
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array(values, pa.binary()),
            "offset": pa.array([FIRST_OFFSET + STEP * i for i in range(count)], pa.int64()),
            "timestamp": pa.array([BEGUN + timedelta(seconds=i) for i in range(count)], pa.timestamp("us", "UTC")),
            **columns,
        }
    )


def slice_of(values: Sequence[bytes | None]) -> Slice:
    return Slice(0, "orders", 3, FIRST_OFFSET, FIRST_OFFSET + STEP * len(values))


def decode(ddl: str, *values: bytes | None) -> list[Row]:
    """Rows with all their columns."""
    rows, bad = sifted(ddl, *values)
    if bad:
        raise record_error(record_batch(values), bad[0], slice_of(values))
    return rows


def declared(rows: list[Row]) -> list[Row]:
    """Rows without the columns that say where they came from."""
    return [{name: value for name, value in row.items() if not name.startswith("_kafka_")} for row in rows]


def decode_field(ddl_type: str, text: str) -> Any:
    """The value of a single field, given as JSON."""
    (row,) = decode(f"a {ddl_type}", b'{"a": %s}' % text.encode())
    return row["a"]


def refused_at(ddl: str, *values: bytes | None) -> int:
    """The place, from 0, of the record that is refused."""
    with pytest.raises(RecordError) as raised:
        decode(ddl, *values)
    error = raised.value
    assert (error.topic, error.partition) == ("orders", 3)
    place, odd = divmod(error.offset - FIRST_OFFSET, STEP)
    assert not odd
    return place


class TestAuditColumns:
    def test_every_row_says_which_record_it_came_from(self) -> None:
        rows = decode("a INT", b'{"a": 1}', None, b'{"a": 3}')
        assert [row["_kafka_offset"] for row in rows] == [1000, 1002, 1004]
        assert {(row["_kafka_topic"], row["_kafka_partition"]) for row in rows} == {("orders", 3)}
        assert [row["_kafka_timestamp"] for row in rows] == [BEGUN + timedelta(seconds=i) for i in range(3)]

    def test_a_record_without_a_timestamp_has_none(self) -> None:
        times = pa.array([None, BEGUN], pa.timestamp("us", "UTC"))
        batch = record_batch([b"{}", b"{}"], timestamp=times)
        assert decoded_as(Json("a INT"), batch).rows.column("_kafka_timestamp").to_pylist() == [None, BEGUN]


class TestValues:
    @pytest.mark.parametrize(
        ("ddl_type", "text", "value"),
        [
            ("BOOLEAN", "true", True),
            ("BOOLEAN", "false", False),
            ("TINYINT", "-128", -128),
            ("SMALLINT", "32767", 32767),
            ("INT", "-2147483648", -(2**31)),
            ("BIGINT", "9223372036854775807", 2**63 - 1),
            ("FLOAT", "0.5", 0.5),
            ("DOUBLE", "1e300", 1e300),
            ("DOUBLE", "3", 3.0),
            ("DECIMAL(10,2)", "1.5", Decimal("1.50")),
            ("DECIMAL(10,2)", '"1.5"', Decimal("1.50")),
            ("DECIMAL(38,0)", "99999999999999999999999999999999999999", Decimal("9" * 38)),
            ("STRING", '"x"', "x"),
            ("STRING", '""', ""),
            ("STRING", r'"\u00e9\ud83d\ude00\n\"\\\/"', 'é😀\n"\\/'),
            ("STRING", '"é😀"', "é😀"),
            ("DATE", '"2024-02-29"', date(2024, 2, 29)),
            ("DATE", '"0001-01-01"', date(1, 1, 1)),
            ("DATE", '"9999-12-31"', date(9999, 12, 31)),
            ("ARRAY<INT>", "[1, null, 3]", [1, None, 3]),
            ("ARRAY<INT>", "[]", []),
            ("ARRAY<DATE>", '["2024-02-29"]', [date(2024, 2, 29)]),
            ("STRUCT<a: INT, b: STRING>", '{"b": "x", "c": 1}', {"a": None, "b": "x"}),
            ("STRUCT<a: DATE>", '{"a": "2024-02-29"}', {"a": date(2024, 2, 29)}),
            ("ARRAY<STRUCT<a: ARRAY<INT>>>", '[{"a": [1]}, null, {}]', [{"a": [1]}, None, {"a": None}]),
        ],
    )
    def test_a_value_that_fits_its_type(self, ddl_type: str, text: str, value: object) -> None:
        assert decode_field(ddl_type, text) == value

    @pytest.mark.parametrize(
        ("ddl_type", "text"),
        [
            ("BOOLEAN", "1"),
            ("BOOLEAN", '"true"'),
            ("TINYINT", "128"),
            ("SMALLINT", "-32769"),
            ("INT", "2147483648"),
            ("INT", "1.5"),
            ("INT", '"1"'),
            ("INT", "true"),
            ("INT", "[1]"),
            ("INT", "{}"),
            ("BIGINT", "9223372036854775808"),
            ("DOUBLE", '"1.5"'),
            ("DOUBLE", "1e400"),
            ("FLOAT", "1e300"),
            ("DECIMAL(10,2)", "1.505"),
            ("DECIMAL(3,2)", "10"),
            ("DECIMAL(10,2)", '"ten"'),
            ("STRING", "1"),
            ("STRING", "{}"),
            ("DATE", '"2024-02-30"'),
            ("DATE", '"29.02.2024"'),
            ("DATE", '""'),
            ("DATE", "19000"),
            ("TIMESTAMP", '"yesterday"'),
            ("TIMESTAMP", '"2024-02-30T00:00:00"'),
            ("TIMESTAMP", "1700000000"),
            ("ARRAY<INT>", "1"),
            ("ARRAY<INT>", '["x"]'),
            ("ARRAY<DATE>", '["x"]'),
            ("STRUCT<a: INT>", "[]"),
            ("STRUCT<a: INT>", '{"a": "x"}'),
            ("STRUCT<a: DATE>", '{"a": "x"}'),
            ("ARRAY<FLOAT>", "[1e300]"),
            ("STRUCT<a: FLOAT>", '{"a": 1e300}'),
        ],
    )
    def test_a_value_that_does_not_fit_its_type_is_refused(self, ddl_type: str, text: str) -> None:
        assert refused_at(f"a {ddl_type}", b'{"a": %s}' % text.encode()) == 0

    @pytest.mark.parametrize(
        ("text", "instant"),
        [
            ("2024-01-02T03:04:05Z", datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
            ("2024-01-02T03:04:05+02:00", datetime(2024, 1, 2, 1, 4, 5, tzinfo=UTC)),
            ("2024-01-02 03:04:05-0530", datetime(2024, 1, 2, 8, 34, 5, tzinfo=UTC)),
            ("2024-01-02T03:04", datetime(2024, 1, 2, 3, 4, tzinfo=UTC)),
            ("2024-01-02", datetime(2024, 1, 2, tzinfo=UTC)),
            ("2024-01-02T03:04:05.1", datetime(2024, 1, 2, 3, 4, 5, 100_000, tzinfo=UTC)),
            ("2024-01-02T03:04:05.123456Z", datetime(2024, 1, 2, 3, 4, 5, 123_456, tzinfo=UTC)),
            ("1969-12-31T23:59:59.5Z", datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC)),
            ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
            ("9999-12-31T23:59:59.999999Z", datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        ],
    )
    def test_a_timestamp_is_iso_8601_and_utc_without_a_zone(self, text: str, instant: datetime) -> None:
        assert decode_field("TIMESTAMP", f'"{text}"') == instant

    def test_nanoseconds_are_cut_to_microseconds(self) -> None:
        instant = decode_field("TIMESTAMP", '"2024-01-02T03:04:05.123456999Z"')
        assert instant == datetime(2024, 1, 2, 3, 4, 5, 123_456, tzinfo=UTC)

    def test_nanoseconds_before_1970_are_cut_and_not_rounded_up(self) -> None:
        instant = decode_field("TIMESTAMP", '"1969-01-01T00:00:00.000000789Z"')
        assert instant == datetime(1969, 1, 1, tzinfo=UTC)

    @pytest.mark.parametrize(
        ("ddl_type", "wrapped"), [("ARRAY<TIMESTAMP>", '["%s"]'), ("STRUCT<b: TIMESTAMP>", '{"b": "%s"}')]
    )
    def test_nested_nanoseconds_are_cut_too(self, ddl_type: str, wrapped: str) -> None:
        found = decode_field(ddl_type, wrapped % "1969-01-01T00:00:00.000000789Z")
        assert found in ([datetime(1969, 1, 1, tzinfo=UTC)], {"b": datetime(1969, 1, 1, tzinfo=UTC)})

    @pytest.mark.parametrize("text", ["2024-01-02T03:04:05.123456Z", "2024-01-02T03:04:05.123456789Z"])
    def test_a_zone_is_treated_alike_whatever_the_number_of_digits(self, text: str) -> None:
        assert decode_field("TIMESTAMP_NTZ", f'"{text}"') == datetime(2024, 1, 2, 3, 4, 5, 123_456)

    def test_nanoseconds_and_dates_beyond_2262_decode_in_one_batch(self) -> None:
        rows = decode("a TIMESTAMP", b'{"a": "2024-01-02T03:04:05.123456789Z"}', b'{"a": "9999-12-31T00:00:00Z"}')
        assert [row["a"] for row in rows] == [
            datetime(2024, 1, 2, 3, 4, 5, 123_456, tzinfo=UTC),
            datetime(9999, 12, 31, tzinfo=UTC),
        ]

    def test_nanoseconds_in_one_column_do_not_limit_the_years_of_another(self) -> None:
        (row,) = decode(
            "seen TIMESTAMP, until TIMESTAMP",
            b'{"seen": "2024-01-02T03:04:05.123456789Z", "until": "9999-12-31T00:00:00Z"}',
        )
        assert (row["seen"].year, row["until"].year) == (2024, 9999)

    def test_a_timestamp_without_time_zone_stays_without_one(self) -> None:
        assert decode_field("TIMESTAMP_NTZ", '"2024-01-02T03:04:05.5"') == datetime(2024, 1, 2, 3, 4, 5, 500_000)

    def test_declared_names_may_hold_anything(self) -> None:
        ddl = '`a/b` INT, `v` INT, `x y` INT, `größe` INT, `q"` INT'
        value = json.dumps({"a/b": 1, "v": 2, "x y": 3, "größe": 4, 'q"': 5}).encode()
        assert declared(decode(ddl, value)) == [{"a/b": 1, "v": 2, "x y": 3, "größe": 4, 'q"': 5}]


class TestMissingAndNull:
    def test_a_tombstone_is_a_row_of_nulls(self) -> None:
        rows = decode("a INT, b STRUCT<c: INT>", b'{"a": 1}', None, b'{"a": 3}')
        assert declared(rows) == [{"a": 1, "b": None}, {"a": None, "b": None}, {"a": 3, "b": None}]

    def test_missing_fields_and_nulls_are_null(self) -> None:
        assert declared(decode("a INT, b STRING", b"{}", b'{"a": null, "b": null}')) == [{"a": None, "b": None}] * 2

    def test_fields_that_are_not_declared_are_ignored_whatever_they_hold(self) -> None:
        value = b'{"x": {"a": 9, "y": [1, "2", {}]}, "a": 1, "z": 1e40, "z": null}'
        assert declared(decode("a INT", value)) == [{"a": 1}]

    @pytest.mark.parametrize("value", [None, b"{}", b'{"a": null}', b"null"])
    def test_a_column_that_is_not_null_refuses_a_record_without_it(self, value: bytes | None) -> None:
        assert refused_at("a INT NOT NULL, b INT", b'{"a": 1}', value, b'{"a": 2}') == 1

    def test_the_error_names_the_column_that_is_not_null(self) -> None:
        with pytest.raises(RecordError, match="column 'a' is declared NOT NULL, and is missing or null"):
            decode("a INT NOT NULL", b"{}")


@pytest.mark.parametrize("ddl_type", ["DATE", "DECIMAL(38,2)"])
def test_a_reason_shows_the_beginning_of_a_long_value(ddl_type: str) -> None:
    with pytest.raises(RecordError) as refused:
        decode(f"a {ddl_type}", b'{"a": "%s"}' % (b"secret" * 10_000))
    assert "secret" in refused.value.reason
    assert len(refused.value.reason) == 201


class TestNotJson:
    @pytest.mark.parametrize(
        "value",
        [
            b"",
            b" ",
            b"{",
            b"}",
            b'{"a": 1',
            b'{"a": 1}}',
            b'{"a": 1,}',
            b'{"a"}',
            b"{'a': 1}",
            b"{a: 1}",
            b'{"a": 01}',
            b'{"a": .5}',
            b'{"a": 1} // note',
            b'{"a": 1} /* note */',
            b'{"b": "\n"}',
            b'{"b": "\x00"}',
            b'{"a": 1}\x00',
            b"\x00",
            b'{"b": "\\x"}',
            b'{"b": "\\ud800"}',
            b"hello",
            b"\xff\xfe{\x00}\x00",
        ],
    )
    def test_what_is_not_json_is_refused(self, value: bytes) -> None:
        assert refused_at("a INT", b'{"a": 1}', value, b'{"a": 2}') == 1

    @pytest.mark.parametrize("value", [b"5", b'"text"', b"true", b"[]", b'[{"a": 1}]'])
    def test_json_that_is_not_an_object_is_refused(self, value: bytes) -> None:
        assert refused_at("a INT", b'{"a": 1}', value, b'{"a": 2}') == 1

    def test_a_byte_order_mark_is_refused(self) -> None:
        """RFC 8259, 8.1: a parser may refuse it, and writers must not add it."""
        assert refused_at("a INT", b'{"a": 1}', b'\xef\xbb\xbf{"a": 2}') == 1

    def test_text_that_is_not_utf_8_is_refused(self) -> None:
        assert refused_at("a STRING", b'{"a": "x"}', b'{"a": "\xff"}', b'{"a": "y"}') == 1

    def test_nested_text_that_is_not_utf_8_is_refused(self) -> None:
        assert refused_at("a ARRAY<STRUCT<b: STRING>>", b'{"a": [{"b": "\xc3\x28"}]}') == 0

    def test_a_declared_field_that_comes_twice_is_refused(self) -> None:
        assert refused_at("a INT", b'{"a": 1, "a": 2}') == 0

    def test_space_around_the_object_is_fine(self) -> None:
        assert declared(decode("a INT", b' \r\n\t{\n"a" :\n1 }\n\n', b'{"a": 2}')) == [{"a": 1}, {"a": 2}]

    @pytest.mark.parametrize("depth", [1_000, 200_000])
    @pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"x":', b"}")])
    def test_deep_nesting_in_an_ignored_field_is_ignored(self, depth: int, opening: bytes, closing: bytes) -> None:
        value = b'{"x": ' + opening * depth + b"1" + closing * depth + b', "a": 7}'
        assert declared(decode("a INT", value, b'{"a": 8}')) == [{"a": 7}, {"a": 8}]

    @pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"x":'])
    def test_deep_nesting_that_never_closes_is_refused(self, opening: bytes) -> None:
        assert refused_at("a INT", b'{"a": 1}', opening * 200_000, b'{"a": 2}') == 1


class TestNeighbours:
    """A record is bytes of somebody else's: it must not count as two, nor take a neighbour's place."""

    @pytest.mark.parametrize(
        "value",
        [
            b'{"a": 1}}\n{"v":{"a": 2}',
            b'{"a": 1}}{"v":{"a": 2}',
            b'{"a": 1}\n{"a": 2}',
            b'{"a": 1} {"a": 2}',
            b'{"a": 1}{"a": 2}',
            b'{"a": 1}, {"a": 2}',
            b'{"a": 1}}\n',
            b'}\n{"v":{"a": 2}',
            b'null}\n{"v":null',
            b'{"a": 1}}\n{"v":{"a": 2}}\x00',
            b'{"a": 1}}\n{"v":{"a": 2}}\n\x00',
            b'{"a": 1}}\n{"v":{"a": 2}}\n{"v":"',
            b'{"a": 1, "b": "',
            b'{"a": 1, "b": "\\',
            b'{"a": 1, "b": [',
            b'{"a": 1, "b": {"v":',
            b'{"a": 1, "b": ',
            b'{"a": 1},',
            b'{"a": 1}, "v": {"a": 2}',
        ],
    )
    def test_a_value_that_is_not_exactly_one_json_value_is_refused(self, value: bytes) -> None:
        assert refused_at("a INT, b STRING", b'{"a": 7}', value, b'{"a": 8}', b'", "b": "x"}') == 1

    def test_text_that_looks_like_the_end_of_a_record_stays_text(self) -> None:
        texts = ['}}\n{"v":', '"}}\n{"v":{"a":2}}', "}\n", "\\", '"', "\n", "\u2028"]
        rows = decode("a STRING", *(json.dumps({"a": text}).encode() for text in texts))
        assert [row["a"] for row in rows] == texts

    @pytest.mark.parametrize("between", [b"", b"\n"])
    def test_a_record_that_counts_as_two_does_not_make_up_for_two_that_count_as_one(self, between: bytes) -> None:
        two = b'{"a": 1}}' + between + b'{"v":{"a": 2}'
        assert refused_at("a INT, b STRING", two, b'{"a": 3, "b": "', b'"}') == 0
        assert refused_at("a INT, b STRING", b'{"a": 3, "b": "', b'"}', two) == 0

    def test_the_halves_of_an_object_in_two_records_are_both_refused(self) -> None:
        assert refused_at("a INT, b STRING", b'{"a": 1, "b": "', b'"}') == 0


class TestFirstBadRecord:
    @pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
    def test_the_first_of_several_bad_records_is_named(self, count: int) -> None:
        for place in range(count):
            values = [b'{"a": %d}' % i for i in range(count)]
            values[place] = b'{"a": "bad"}'
            values[place + 1 :: 2] = [b"worse"] * len(values[place + 1 :: 2])
            assert refused_at("a INT", *values) == place

    def test_the_reason_is_that_of_the_named_record(self) -> None:
        with pytest.raises(RecordError, match="field 'a' is declared as number, but holds string") as raised:
            decode("a INT", b'{"a": 1}', b'{"a": "x"}', b"{")
        assert raised.value.offset == FIRST_OFFSET + STEP

    @pytest.mark.parametrize(
        ("ddl", "value", "told"),
        [
            ("a INT", b"5", "the value is declared as object, but holds number"),
            ("a STRUCT<b: INT>", b'{"a": {"b": "x"}}', "field 'a/b' is declared as number, but holds string"),
            ("a INT", b'{"a": 2147483648}', "2147483648"),
            ("a DATE", b'{"a": "29.02.2024"}', "'29.02.2024'"),
            ("a TIMESTAMP", b'{"a": "yesterday"}', "yesterday"),
            ("a STRING", b'{"a": "\xff"}', "UTF-8"),
            ("a INT", b'{"a": 1}}\n{"v":{}', "it is not exactly one JSON value"),
        ],
    )
    def test_the_reason_shows_what_the_record_holds(self, ddl: str, value: bytes, told: str) -> None:
        with pytest.raises(RecordError, match=told):
            decode(ddl, value)

    @pytest.mark.parametrize(
        ("ddl", "value"),
        [
            ("a INT", b"5"),
            ("a INT", b'{"a": "x"}'),
            ("a INT", b'{"a": 1, "a": 2}'),
            ("a INT", b"{"),
            ("a STRING", b'{"a": "\xff"}'),
            ("a DECIMAL(3,2)", b'{"a": 10}'),
        ],
    )
    def test_the_reason_does_not_show_what_only_the_decoder_knows(self, ddl: str, value: bytes) -> None:
        with pytest.raises(RecordError) as raised:
            decode(ddl, value)
        assert "/v" not in raised.value.reason
        assert "chunk 0" not in raised.value.reason
        assert " in row " not in raised.value.reason


def sifted(ddl: str, *values: bytes | None) -> tuple[list[Row], list[BadRecord]]:
    """The rows with all their columns, and what was set aside."""
    rows, bad = decoded_as(Json(ddl), record_batch(values))
    return rows.to_pylist(), list(bad)


def decoded_as(record_format: RecordFormat, records: pa.RecordBatch) -> Decoded:
    """What a task makes of records."""
    columns = row_columns(record_format)
    decode = record_format.decoder(format_columns(columns))
    decoded = decode_rows(records, decode, slice_of([None] * records.num_rows))
    assert decoded.rows.schema == columns
    decoded.rows.validate(full=True)
    return decoded


class TestSettingBadRecordsAside:
    def test_good_records_come_out_and_bad_ones_are_told_with_their_reasons(self) -> None:
        rows, bad = sifted("a INT NOT NULL", b'{"a": 1}', b"{", b'{"a": 2}', None, b'{"a": "x"}', b'{"a": 3}')
        assert declared(rows) == [{"a": 1}, {"a": 2}, {"a": 3}]
        assert [row["_kafka_offset"] for row in rows] == [1000, 1004, 1010]
        assert [row["_kafka_timestamp"] for row in rows] == [BEGUN + timedelta(seconds=i) for i in (0, 2, 5)]
        assert [one.row for one in bad] == [1, 3, 4]
        assert "column 'a' is declared NOT NULL, and is missing or null" in bad[1].reason
        assert "field 'a' is declared as number, but holds string" in bad[2].reason

    def test_a_batch_without_a_good_record_has_no_rows(self) -> None:
        rows, bad = sifted("a STRUCT<b: ARRAY<INT>>, c DECIMAL(3,2)", b"{", b"[", b"")
        assert rows == []
        assert [one.row for one in bad] == [0, 1, 2]

    def test_a_batch_without_a_bad_record_is_one_pass(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.passes(monkeypatch, [b'{"a": 1}'] * 1000) == 1

    @pytest.mark.parametrize(
        ("values", "most"),
        [
            pytest.param([b"{"] * 1000, 1300, id="all bad"),
            pytest.param([b"{", b'{"a": 1}'] * 500, 1300, id="every second"),
            pytest.param([b'{"a": "2024-13-45"}'] * 1000, 1300, id="all with a wrong date"),
            pytest.param(
                [b'{"a": "2024-01-02"}'] * 777 + [b"{"] + [b'{"a": "2024-01-02"}'] * 222, 24, id="a single one"
            ),
        ],
    )
    def test_many_bad_records_take_hardly_more_passes_than_there_are_records(
        self, monkeypatch: pytest.MonkeyPatch, values: list[bytes], most: int
    ) -> None:
        assert self.passes(monkeypatch, values) <= most

    def passes(self, monkeypatch: pytest.MonkeyPatch, values: list[bytes]) -> int:
        """How often Arrow's reader is called."""
        calls = 0
        read_json = pj.read_json

        def counted(*args: Any, **options: Any) -> pa.Table:
            nonlocal calls
            calls += 1
            return read_json(*args, **options)

        monkeypatch.setattr(pj, "read_json", counted)
        sifted("a DATE" if b"-" in values[0] else "a INT, b TIMESTAMP", *values)
        return calls


class TestRaw:
    def test_key_and_value_pass_through_unchanged(self) -> None:
        values = [b"\x00\xff", None, b""]
        keys = [None, b"k", b""]
        batch = record_batch(values, key=pa.array(keys, pa.binary()))
        decoded = decoded_as(Raw(), batch).rows
        assert decoded.column("value").to_pylist() == values
        assert decoded.column("key").to_pylist() == keys
        assert decoded.column("_kafka_offset").to_pylist() == [1000, 1002, 1004]

    def test_headers_pass_through_in_order_and_with_duplicates(self) -> None:
        kind = row_columns(Raw(headers=True)).field("headers").type
        headers = [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], []]
        batch = record_batch([b"x", b"y"], key=pa.array([None, None], pa.binary()), headers=pa.array(headers, kind))
        decoded = decoded_as(Raw(headers=True), batch).rows
        assert decoded.column("headers").to_pylist() == headers

    def test_a_record_whose_headers_cannot_be_read_is_bad_where_they_are_asked_for(self) -> None:
        kind = row_columns(Raw(headers=True)).field("headers").type
        batch = record_batch(
            [b"x", b"y", b"z"],
            key=pa.array([None] * 3, pa.binary()),
            headers=pa.array([[], None, []], kind),
        )
        rows, bad = decoded_as(Raw(headers=True), batch)
        assert bad == [BadRecord(1, "the key of a header is not UTF-8")]
        assert rows.column("value").to_pylist() == [b"x", b"z"]
        assert rows.column("_kafka_offset").to_pylist() == [1000, 1004]
        assert decoded_as(Raw(), batch).bad == ()


# Whole batches against single records.

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
    b'}}\n{"v":{"a":3}',
    b'{"v":',
    b'"v":',
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
def test_of_any_mix_each_record_comes_out_as_it_decodes_alone_or_is_set_aside(values: list[bytes | None]) -> None:
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
def test_a_value_that_decodes_is_one_json_value(value: bytes) -> None:
    try:
        decode("a INT", value)
    except RecordError:
        return
    # Text outside the declared columns is not looked at, nor are fields that continue the object behind its end.
    found, _ = json.JSONDecoder().raw_decode(value.decode("utf-8", errors="replace").lstrip())
    assert found is None or isinstance(found, dict)
