"""Records that are no JSON of the declared columns: each is named, or set aside, and none harms its neighbours."""

import json
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.json as pj
import pytest

from airflow_kafka_offsets.exceptions import RecordError
from airflow_kafka_offsets.formats import json_decoder
from tests.support.decoding import BEGUN, FIRST_OFFSET, STEP, declared, decode, refused_at, sifted


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
    def test_invalid_json_is_refused(self, value: bytes) -> None:
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

    @pytest.mark.parametrize(
        "value", [b'{"a": 1, "pr\xe9nom": "Eve"}', b'{"a": 1, "b": "\xff"}', b'{"a": 1, "b": {"\xff": 1}}']
    )
    def test_text_that_is_not_utf_8_is_refused_wherever_it_is(self, value: bytes) -> None:
        """The name in Latin-1 may be that of a column, which would be null."""
        assert refused_at("a INT, `prénom` STRING", b'{"a": 1, "pr\xc3\xa9nom": "Eve"}', value, b'{"a": 2}') == 1

    def test_a_declared_field_that_comes_twice_is_refused(self) -> None:
        assert refused_at("a INT", b'{"a": 1, "a": 2}') == 0

    def test_null_is_a_row_of_nulls_as_a_tombstone_is(self) -> None:
        assert declared(decode("a INT", b" null\n", b'{"a": 1}', None)) == [{"a": None}, {"a": 1}, {"a": None}]

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


class TestYears:
    """Dates and timestamps that a database stores, and no client can read."""

    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            ("DATE", "0000-12-31"),
            ("DATE", "0000-01-01"),
            ("TIMESTAMP", "0000-12-31T23:59:59.999999Z"),
            ("TIMESTAMP", "0000-12-31 23:59:59.999999999Z"),
            ("TIMESTAMP", "0001-01-01T00:00:00+00:01"),
            ("TIMESTAMP", "9999-12-31T23:59:00-00:01"),
            ("TIMESTAMP_NTZ", "0000-12-31T00:00:00"),
            ("TIMESTAMP_NTZ", "9999-12-31T23:59:00-00:01"),
        ],
    )
    @pytest.mark.parametrize(
        ("columns", "value"),
        [
            ("a {}", '{{"a": "{}"}}'),
            ("b ARRAY<{}>", '{{"b": [null, "{}"]}}'),
            ("b STRUCT<c: ARRAY<{}>>", '{{"b": {{"c": ["{}"]}}}}'),
        ],
    )
    def test_years_outside_of_1_to_9999_are_refused(self, kind: str, text: str, columns: str, value: str) -> None:
        ddl, bad = columns.format(kind), value.format(text).encode()
        good = value.format("2024-01-01").encode()
        decoded, (record,) = sifted(ddl, good, bad, good, b"{}")
        assert len(decoded) == 3
        assert record.row == 1
        assert record.reason.endswith("it lies outside of the years 1 to 9999")
        assert text not in record.reason

    def test_the_first_and_the_last_are_taken(self) -> None:
        first, last = (
            b'{"a": "0001-01-01", "b": "0001-01-01"}',
            b'{"a": "9999-12-31", "b": "9999-12-31T23:59:59.999999999"}',
        )
        assert [(row["a"].year, row["b"].year) for row in decode("a DATE, b TIMESTAMP", first, last)] == [
            (1, 1),
            (9999, 9999),
        ]


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
            b'{"a": 1}, "b": "x"',
            b'{"a": 1}, "b": "x"}',
            b'{"a": 1}null{}',
            b'{"a": 1}\nnull\n{"a": 2}',
            b'{"a": 1}\x00}',
            b'{"a": 1}{"a": 2}\x00{}',
            b'{"a": 1, "b": "}',
            b'{"a": 1, "c": {}',
            b'{"}',
            b"{}}",
        ],
    )
    def test_a_value_that_is_not_exactly_one_json_object_is_refused(self, value: bytes) -> None:
        assert refused_at("a INT, b STRING", b'{"a": 7}', value, b'{"a": 8}', b'", "b": "x"}') == 1

    def test_text_that_looks_like_the_end_of_a_record_stays_text(self) -> None:
        texts = ['}}\n{"v":', '"}}\n{"v":{"a":2}}', "}\n", "\\", '"', "\n", "\u2028"]
        rows = decode("a STRING", *(json.dumps({"a": text}).encode() for text in texts))
        assert [row["a"] for row in rows] == texts

    @pytest.mark.parametrize("between", [b"", b"\n"])
    @pytest.mark.parametrize(
        "one", [(b'{"a": 3, "b": "}', b'{"}'), (b'{"a": 3, "c": {}', b"{}}"), (b'{"a": 3}\x00}', b'{"a": 4}')]
    )
    def test_a_record_that_counts_as_two_does_not_make_up_for_two_that_count_as_one(
        self, between: bytes, one: tuple[bytes, bytes]
    ) -> None:
        two = b'{"a": 1}' + between + b'{"a": 2}'
        assert refused_at("a INT, b STRING", two, *one) == 0
        assert refused_at("a INT, b STRING", *one, two) == 0

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
        with pytest.raises(RecordError, match="field 'a' is declared as INT, but holds string") as raised:
            decode("a INT", b'{"a": 1}', b'{"a": "x"}', b"{")
        assert raised.value.offset == FIRST_OFFSET + STEP

    @pytest.mark.parametrize(
        ("ddl", "value", "told"),
        [
            ("a INT", b"5", "it is not exactly one JSON object"),
            ("a INT", b'{"a": {}}', "field 'a' is declared as INT, but holds object"),
            ("a STRUCT<b: INT>", b'{"a": {"b": "x"}}', "field 'a/b' is declared as number, but holds string"),
            ("a TIMESTAMP", b'{"a": 1}', r"but holds number; declare it as BIGINT, and convert it in Sql\(…\)"),
            ("a INT", b'{"a": 2147483648}', "column 'a': its value is not of type INT"),
            (
                "b STRING, a DECIMAL(3,2), c INT",
                b'{"a": 10, "c": 7}',
                r"column 'a': its value is not of type DECIMAL\(3,2\), or has more digits",
            ),
            (
                "b INT, a ARRAY<INT>, at TIMESTAMP",
                b'{"a": [1.5], "at": "2026-01-01"}',
                "column 'a': its value is not of type ARRAY<INT>",
            ),
            ("a DATE", b'{"a": "29.02.2024"}', "column 'a': the text is not an ISO 8601 date"),
            ("a DATE", b'{"a": "2026-02-30"}', "column 'a': the text is a date that does not exist"),
            ("a TIMESTAMP", b'{"a": "yesterday"}', "column 'a': the text is not an ISO 8601 timestamp"),
            ("a TIMESTAMP", b'{"a": "2026-02-28T25:00:00"}', "column 'a': the text is not an ISO 8601 timestamp"),
            ("a TIMESTAMP", b'{"a": "2026-02-30"}', "column 'a': the text is a date that does not exist"),
            ("a TIMESTAMP_NTZ", b'{"a": "2026-13-01 10:00"}', "column 'a': the text is a date that does not exist"),
            ("a STRING", b'{"a": "\xff"}', "UTF-8"),
            ("a INT", b'{"a": 1}{"a": 1}', "it is not exactly one JSON object"),
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


@pytest.mark.parametrize(
    "ddl_type", ["DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "DECIMAL(38,2)", "INT", "DOUBLE", "BOOLEAN"]
)
@pytest.mark.parametrize("wrapped", ["{}", "ARRAY<{}>", "STRUCT<b: {}>"])
@pytest.mark.parametrize(
    "text",
    ["secret", "2026-02-30secret", "2026-02-3", "secret" * 50_000, "47114711471147.123", "9" * 400],
    ids=["text", "date and text", "date", "long", "decimal", "number"],
)
@pytest.mark.parametrize("mark", ['"', ""])
def test_a_reason_holds_no_value(ddl_type: str, wrapped: str, text: str, mark: str) -> None:
    value = f"{mark}{text}{mark}"
    value = {"ARRAY": f"[{value}]", "STRUC": f'{{"b": {value}}}'}.get(wrapped[:5], value)
    _, bad = sifted(f"n STRING, a {wrapped.format(ddl_type)}, z INT", f'{{"n": "x", "a": {value}, "z": 1}}'.encode())
    for record in bad:
        assert text not in record.reason
        assert "47114711" not in record.reason
        assert "zone offset" not in record.reason
        assert len(record.reason) < 150
    assert bad or ddl_type == "DOUBLE"


class TestSettingBadRecordsAside:
    def test_good_records_come_out_and_bad_ones_are_told_with_their_reasons(self) -> None:
        rows, bad = sifted("a INT NOT NULL", b'{"a": 1}', b"{", b'{"a": 2}', None, b'{"a": "x"}', b'{"a": 3}')
        assert declared(rows) == [{"a": 1}, {"a": 2}, {"a": 3}]
        assert [row["_kafka_offset"] for row in rows] == [1000, 1004, 1010]
        assert [row["_kafka_timestamp"] for row in rows] == [BEGUN + timedelta(seconds=i) for i in (0, 2, 5)]
        assert [one.row for one in bad] == [1, 3, 4]
        assert "column 'a' is declared NOT NULL, and is missing or null" in bad[1].reason
        assert "field 'a' is declared as INT, but holds string" in bad[2].reason

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


@pytest.mark.parametrize("is_short", [True, False])
def test_the_column_of_thousands_of_bad_records_is_looked_for_in_short_and_in_the_first_ones(
    is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ", ".join(f"c{number} BIGINT" for number in range(50))
    widths: list[int] = []

    def counted(text: pa.Buffer, count: int, options: pj.ParseOptions) -> pa.RecordBatch:
        widths.append(len(options.explicit_schema))
        return read(text, count, options)

    read = json_decoder._read
    monkeypatch.setattr(json_decoder, "_read", counted)

    _, bad = sifted(columns, *[b'{"c7": 99999999999999999999, "": "%s"}' % (b"x" * (0 if is_short else 1_000))] * 1_000)

    reasons = [record.reason for record in bad]
    found = 1_000 if is_short else 100
    assert reasons[:found] == ["column 'c7': its value is not of type BIGINT"] * found
    assert reasons[found:] == ["a value is not of the type of its column"] * (1_000 - found)
    assert widths.count(50) < (500 if is_short else 2_000)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("TIMESTAMP", '"2026-01-01"', '"x"'),
        ("DATE", '"2026-01-01"', '"2026-02-30"'),
        ("FLOAT", "1", "1e300"),
        ("DOUBLE", "0", "1e-400"),
        ("ARRAY<TIMESTAMP>", '["2026-01-01"]', '["10000-01-01"]'),
    ],
)
def test_thousands_of_values_that_do_not_fit_are_decoded_together(
    monkeypatch: pytest.MonkeyPatch, kind: str, good: str, bad: str
) -> None:
    """Each of them alone, with all other columns, would take a few milliseconds."""
    reads = []
    read = json_decoder._read

    def counted(*arguments: Any) -> pa.RecordBatch:
        reads.append(arguments)
        return read(*arguments)

    monkeypatch.setattr(json_decoder, "_read", counted)
    values = [
        f'{{"id": {number}, "a": {bad if number % 3 == 1 else good}, "b": {bad if number % 3 == 2 else good}}}'.encode()
        for number in range(1_000)
    ]

    found, refused = sifted(f"id INT, a {kind}, b {kind}", *values)

    assert [row["id"] for row in found] == list(range(0, 1_000, 3))
    assert [record.row for record in refused] == [number for number in range(1_000) if number % 3]
    assert {record.reason.partition(":")[0] for record in refused} == {"column 'a'", "column 'b'"}
    assert len(reads) <= 2
