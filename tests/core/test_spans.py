"""Arithmetic of spans, held against sets of offsets."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import Span, first_common, intersect, merge, subtract

SPANS = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda ends: (min(ends), max(ends)))
LISTS = st.lists(SPANS, max_size=6)


def as_set(spans: list[Span]) -> set[int]:
    return {offset for span in spans for offset in range(*span)}


@given(SPANS, LISTS)
def test_subtract_is_the_difference_of_sets(span: Span, removed: list[Span]) -> None:
    left = subtract([span], removed)

    assert as_set(left) == set(range(*span)) - as_set(removed)
    if span[0] < span[1]:
        assert all(start < end for start, end in left)
        assert all(end < start for (_, end), (start, _) in pairwise(left))


@given(LISTS, LISTS)
def test_each_span_is_subtracted_from_by_itself(several: list[Span], removed: list[Span]) -> None:
    assert subtract(several, removed) == [piece for span in several for piece in subtract([span], removed)]


@given(LISTS)
def test_merge_is_the_union_in_the_fewest_spans(several: list[Span]) -> None:
    merged = merge(several)

    assert as_set(merged) == as_set(several)
    assert all(start < end for start, end in merged)
    assert all(end < start for (_, end), (start, _) in pairwise(merged))


@given(SPANS, SPANS)
def test_intersect_is_the_intersection_of_sets(one: Span, other: Span) -> None:
    common = intersect(one, other)
    assert set(range(*(common or (0, 0)))) == set(range(*one)) & set(range(*other))


@given(LISTS, LISTS)
def test_the_first_common_offset_is_the_lowest(several: list[Span], others: list[Span]) -> None:
    common, both = first_common(several, others), as_set(several) & as_set(others)

    assert (common is None) == (not both)
    if common is not None:
        assert common[0] == min(both)
        assert set(range(*common)) <= both


def test_long_lists_are_compared_in_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[Span, Span]] = []
    monkeypatch.setattr("airflow_kafka_offsets.core.offsets.intersect", lambda *pair: compared.append(pair))
    even = [(start, start + 10) for start in range(0, 40_000, 20)]
    odd = [(start + 10, start + 20) for start, _ in even]

    assert first_common(even, odd) is None
    assert len(compared) < len(even) + len(odd)
