"""JSON to rows: which values decode, to what, and which do not fit the declared type."""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from airflow_kafka_offsets.exceptions import RecordError
from airflow_kafka_offsets.formats.simple_formats import Json
from tests.support.decoding import BEGUN, declared, decode, decode_field, decoded_as, record_batch, refused_at


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
