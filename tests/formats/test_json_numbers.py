"""Numbers in JSON that Arrow's reader gets wrong: each is its exact value, or a bad record."""

from __future__ import annotations

from decimal import MIN_EMIN, Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.templates import with_values
from airflow_kafka_offsets.formats.extra_columns import whole_record
from airflow_kafka_offsets.formats.json_schema_format import JsonSchema
from airflow_kafka_offsets.formats.simple_formats import Json, Text
from tests.support.decoding import decode, decode_field, decoded_as, record_batch, refused_at, sifted
from tests.support.examples import examples

TYPES = ["DECIMAL(10,2)", "DECIMAL(38,0)", "DECIMAL(38,10)", "DECIMAL(38,38)", "DECIMAL(20,18)", "DECIMAL(12,4)"]

DIGITS = st.one_of(
    st.text("0123456789", min_size=1, max_size=45),
    st.integers(1, 90).map(lambda count: "0" * count + "1"),
    st.integers(1, 60).map(lambda count: "1" + "0" * count),
)
FRACTIONS = st.one_of(st.just(""), DIGITS.map(".{}".format))
EXPONENTS = st.one_of(
    st.just(""), st.integers(-80, 45).map("e{}".format), st.integers(-(10**8), -300).map("E{}".format)
)


def exactly(text: str, precision: int, scale: int) -> Decimal | None:
    """The value of a number in a column, by Python; None where it does not fit."""
    number = Decimal(text)
    if number.is_zero():
        return Decimal(0)
    digits = number.normalize(Context(prec=len(text) + 5, Emin=MIN_EMIN)).as_tuple()
    assert isinstance(digits.exponent, int)
    fits = -digits.exponent <= scale and len(digits.digits) + digits.exponent <= precision - scale
    return number if fits else None


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(sign):04x}" for sign in text)


@given(
    st.sampled_from(TYPES),
    st.sampled_from(["", "-"]),
    DIGITS.map(lambda digits: digits.lstrip("0") or "0"),
    FRACTIONS,
    EXPONENTS,
    st.sampled_from(["%s", '"%s"', "escaped"]),
)
@example("DECIMAL(38,10)", "", "1" + "0" * 30, "", "", "%s")
@example("DECIMAL(38,0)", "", "12345678901234567890", "", "e-2757", "%s")
@example("DECIMAL(12,4)", "", "4", ".9", "E-324", "%s")
@example("DECIMAL(10,2)", "", "12345678", ".9000", "", "%s")
def test_a_decimal_is_its_exact_value_or_a_bad_record(
    ddl_type: str, sign: str, whole: str, fraction: str, exponent: str, form: str
) -> None:
    text = f"{sign}{whole}{fraction}{exponent}"
    precision, scale = map(int, ddl_type[8:-1].split(","))
    expected = exactly(text, precision, scale)
    value = f'"{escaped(text)}"' if form == "escaped" else form % text
    record = f'{{"before": 1, "a": {value}}}'.encode()
    rows, bad = sifted(f"before INT, a {ddl_type}", record)
    # Arrow reads every number as a floating one, too.
    if form == "%s" and Decimal(text).adjusted() >= 308:
        return
    assert [row["a"] for row in rows] == ([] if expected is None else [expected]), bad


NESTED = {
    "DECIMAL(%s)": "%s",
    "ARRAY<DECIMAL(%s)>": "[%s]",
    "STRUCT<b: DECIMAL(%s)>": '{"b": %s}',
    "ARRAY<STRUCT<b: ARRAY<DECIMAL(%s)>, c: INT>>": '[{"b": [%s], "c": 1}]',
}


def only(value: Any) -> Any:
    """The decimal within lists and structs."""
    if isinstance(value, list):
        return only(value[0])
    return only(value["b"]) if isinstance(value, dict) else value


@examples(300)
@given(
    st.sampled_from(sorted(NESTED)),
    st.sampled_from([(10, 2), (38, 0), (38, 38), (38, 10), (1, 1)]),
    st.builds("{}{}{}".format, DIGITS.map(lambda digits: digits.lstrip("0") or "0"), FRACTIONS, EXPONENTS),
    st.booleans(),
)
@example("ARRAY<DECIMAL(%s)>", (10, 2), "1e-99999999", False)
@example("STRUCT<b: DECIMAL(%s)>", (10, 2), "1.1000000000", False)
def test_nested_decimals_and_those_of_keys_and_of_json_schema_are_exact(
    kind: str, size: tuple[int, int], text: str, is_text: bool
) -> None:
    ddl = f"a {kind % f'{size[0]},{size[1]}'}"
    number = f'"{text}"' if is_text else text
    value = f'{{"a": {NESTED[kind] % number}}}'.encode()
    schemas = {"1": {"text": "{}", "references": []}}
    found = [
        decoded_as(Json(ddl), record_batch([value, None])),
        decoded_as(with_values(JsonSchema(ddl, "r"), schemas=schemas), record_batch([b"\0\0\0\0\1" + value, None])),
        decoded_as(whole_record(Text("t"), Json(ddl)), record_batch([b"", b""], key=pa.array([value, None]))),
    ]
    expected = exactly(text, *size)
    for rows, bad in found:
        if is_text or Decimal(text).adjusted() < 308:
            assert [only(row["a"]) for row in rows.to_pylist()] == ([] if expected is None else [expected]) + [None], (
                bad
            )


@pytest.mark.parametrize("form", ["%s", '"%s"', '"\\u0031%.0s\\u0065\\u002d99999999"'])
@pytest.mark.parametrize("number", ["1e-5000000", "1E-99999999", "1e-99999999999999999999", "1e-00041"])
def test_a_tiny_decimal_is_a_bad_record(number: str, form: str) -> None:
    assert refused_at("a DECIMAL(10,2)", b'{"a": 1}', f'{{"a": {form % number}}}'.encode(), b'{"a": 2}') == 1


def test_a_long_fraction_is_a_bad_record() -> None:
    assert refused_at("a DECIMAL(38,0)", b'{"a": 0.' + b"0" * 5_000_000 + b"1}") == 0


def test_the_reason_of_a_decimal_that_does_not_fit_names_its_column() -> None:
    _, (bad,) = sifted("b INT, a DECIMAL(10,2)", b'{"b": 1, "a": 1e-41}')
    assert bad.reason == "column 'a': its value is not of type DECIMAL(10,2), or has more digits"


def test_zero_may_have_any_exponent() -> None:
    assert decode_field("DECIMAL(10,2)", "0e-99999999") == 0


@pytest.mark.parametrize(
    ("ddl_type", "text"),
    [("ARRAY<DECIMAL(10,2)>", "[1, 1e-41]"), ("STRUCT<b: ARRAY<STRUCT<c: DECIMAL(10,2)>>>", '{"b": [{"c": 1e-41}]}')],
)
def test_a_nested_tiny_decimal_is_a_bad_record(ddl_type: str, text: str) -> None:
    assert refused_at(f"a {ddl_type}", f'{{"a": {text}}}'.encode()) == 0


def test_unusual_decimal_changes_no_other_field() -> None:
    record = (
        r'{"a": 150e-30, "b": "\u00e9\n\"1e-99999", "c": 4.9E-324, "d": [true, null, {"x": -0.0}], "n": null, "i": -7}'
    )
    (row,) = decode(
        "a DECIMAL(38,30), b STRING, c DOUBLE, d STRING, n INT, i BIGINT",
        record.replace('[true, null, {"x": -0.0}]', '"1e-99999"').encode(),
    )
    found = [row[name] for name in "abcdni"]
    assert found == [Decimal("150e-30"), 'é\n"1e-99999', 5e-324, "1e-99999", None, -7]


def test_a_field_that_comes_twice_is_bad_beside_an_unusual_decimal() -> None:
    assert refused_at("a DECIMAL(38,30), b INT", b'{"a": 1e-21, "b": 1, "b": 2}') == 0


@pytest.mark.parametrize(
    "value", [b'{"a": 1e-41', b'{"a": 1e-41}}', b'{"a": 1e-41, "b": "\xff"}', b'[{"a": 1e-41}]', b'"1e-41"', b"1e-41"]
)
def test_invalid_json_with_an_unusual_number_is_bad(value: bytes) -> None:
    assert refused_at("a DECIMAL(10,2), b STRING", b'{"a": 1}', value, b'{"a": 2}') == 1


def test_a_record_that_is_nested_too_deep_is_a_bad_record_beside_an_unusual_number() -> None:
    value = b'{"a": 1e-41, "b": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert refused_at("a DECIMAL(10,2)", b'{"a": 1}', value) == 1


@pytest.mark.parametrize("ddl_type", ["DOUBLE", "FLOAT"])
@pytest.mark.parametrize("text", ["1.8e308", "9.9e308", "-2e308", "NaN", "Infinity", "-Infinity", "Inf", "-Inf"])
def test_a_number_that_is_not_finite_is_a_bad_record(ddl_type: str, text: str) -> None:
    assert refused_at(f"a {ddl_type}", b'{"a": 1}', f'{{"a": {text}}}'.encode()) == 1
    nested = f"a STRUCT<b: ARRAY<{ddl_type}>>"
    assert refused_at(nested, b'{"a": {"b": [1]}}', f'{{"a": {{"b": [1, {text}]}}}}'.encode()) == 1


NOT_ZERO = [
    "1e-400",
    "-1E-400",
    "1.5e-00324",
    "2e-324",
    f"0.{'0' * 330}1",
    f"-0.{'0' * 240}1e-99",
    "1e-99999999999999999",
]


@pytest.mark.parametrize(
    ("ddl_type", "text"),
    [*((kind, text) for kind in ("DOUBLE", "FLOAT") for text in NOT_ZERO), ("FLOAT", "1e-46"), ("FLOAT", "-7e-300")],
)
@pytest.mark.parametrize("after", ["", " ", "\n"])
def test_a_number_that_becomes_zero_is_a_bad_record(ddl_type: str, text: str, after: str) -> None:
    good = b'{"b": 2, "a": 0.0, "c": "1e-400 "}'
    rows, (bad,) = sifted(f"a {ddl_type}, b INT", good, f'{{"b": 1, "a": {text}{after}}}'.encode(), good)
    assert [row["a"] for row in rows] == [0.0, 0.0]
    assert bad.reason == f"column 'a': a number is too small for {ddl_type}"
    nested = f"a STRUCT<b: ARRAY<{ddl_type}>>"
    assert refused_at(nested, b'{"a": {"b": [1]}}', f'{{"a": {{"b": [1, {text}{after}]}}}}'.encode()) == 1


@pytest.mark.parametrize("text", ["0", "-0.0", "0e-400", "0.000E-9999", f"0.{'0' * 400}"])
@pytest.mark.parametrize("ddl_type", ["DOUBLE", "FLOAT"])
def test_zero_is_good_in_any_form(ddl_type: str, text: str) -> None:
    assert decode_field(ddl_type, text) == 0


def test_a_number_that_becomes_zero_is_ignored_where_it_is_no_column() -> None:
    (row,) = decode("a DOUBLE, s STRUCT<b: INT>", b'{"a": 0.0, "s": {"b": 2, "y": [1e-400]}, "x": 1e-400}')
    assert (row["a"], row["s"]) == (0.0, {"b": 2})


def test_the_smallest_numbers_are_good() -> None:
    assert decode_field("DOUBLE", "5e-324") == 5e-324
    assert decode_field("FLOAT", "1e-45") == pytest.approx(1.4e-45)


@pytest.mark.parametrize("text", ["NaN", "-Infinity"])
def test_what_is_no_number_is_ignored_where_it_is_no_column(text: str) -> None:
    (row,) = decode("a INT, s STRUCT<b: INT>", f'{{"x": {text}, "a": 1, "s": {{"b": 2, "y": [{text}]}}}}'.encode())
    assert (row["a"], row["s"]) == (1, {"b": 2})


def test_the_largest_numbers_are_good() -> None:
    assert decode_field("DOUBLE", "1.7976931348623157e308") == 1.7976931348623157e308
    assert decode_field("FLOAT", "3.4028234e38") == pytest.approx(3.4028234e38)
