"""Numbers become decimals of another type, or do not fit: none becomes another number."""

from __future__ import annotations

from decimal import Context, Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.formats.columns import as_decimals
from tests.support.examples import examples

_EXACT = Context(prec=200)


@st.composite
def _decimal_types(draw: st.DrawFn) -> pa.Decimal128Type:
    precision = draw(st.sampled_from([1, 9, 18, 20, 37, 38]) | st.integers(1, 38))
    return pa.decimal128(precision, draw(st.integers(0, precision)))


@st.composite
def _numbers(draw: st.DrawFn) -> pa.Array:
    kind = draw(st.sampled_from([pa.int32(), pa.int64(), pa.uint64()]) | _decimal_types())
    if pa.types.is_integer(kind):
        bits = kind.bit_width
        least, most = (0, 2**bits - 1) if kind == pa.uint64() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return pa.array(draw(st.lists(st.none() | st.integers(least, most), min_size=1, max_size=3)), kind)
    digits = draw(st.integers(1, kind.precision))
    unscaled = draw(st.lists(st.none() | st.integers(-(10**digits) + 1, 10**digits - 1), min_size=1, max_size=3))
    found = [None if number is None else Decimal(number).scaleb(-kind.scale, _EXACT) for number in unscaled]
    return pa.array(found, kind)


def _fits(number: Decimal, kind: pa.Decimal128Type) -> bool:
    unscaled = number.scaleb(kind.scale, _EXACT)
    return unscaled == unscaled.to_integral_value() and abs(unscaled) < 10**kind.precision


@examples(2_000)
@given(numbers=_numbers(), kind=_decimal_types())
def test_a_number_stays_what_it_is_or_does_not_fit(numbers: pa.Array, kind: pa.Decimal128Type) -> None:
    values = numbers.to_pylist()
    if all(number is None or _fits(Decimal(number), kind) for number in values):
        found = as_decimals(numbers, kind)
        found.validate(full=True)
        assert (found.type, found.to_pylist()) == (kind, values)
    else:
        with pytest.raises(pa.ArrowInvalid):
            as_decimals(numbers, kind)


@pytest.mark.parametrize("number", [4_459_210_574_094_415_717, -4_013_833_218_657_951_622])
def test_a_number_that_overflows_128_bits_does_not_fit(number: int) -> None:
    for numbers in (pa.array([number]), pa.array([Decimal(number)], pa.decimal128(38, 0))):
        for scale in (20, 38):
            with pytest.raises(pa.ArrowInvalid):
                as_decimals(numbers, pa.decimal128(38, scale))
