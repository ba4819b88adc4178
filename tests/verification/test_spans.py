"""The offsets that are compared with Kafka."""

from dataclasses import replace

import pytest

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.verification.facts import Span

SPAN = Span("t", 0, 10, 20, 1, 2)


@pytest.mark.parametrize(
    ("start", "end", "left"),
    [
        (0, 10, [SPAN]),
        (30, 40, [SPAN]),
        (20, 25, [SPAN]),
        (0, 15, [replace(SPAN, start=15)]),
        (15, 40, [replace(SPAN, end=15)]),
        (12, 15, [replace(SPAN, end=12), replace(SPAN, start=15)]),
        (10, 20, []),
        (0, 99, []),
    ],
)
def test_replaced_offsets_are_cut_out_of_a_span(start: int, end: int, left: list[Span]) -> None:
    assert list(SPAN.without(start, end)) == left


def test_a_slice_to_read_again_is_what_the_log_still_has() -> None:
    assert SPAN.slice_within(4, 15) == Slice(0, "t", 0, 10, 15)
    assert SPAN.slice_within(12, 30) == Slice(0, "t", 0, 12, 20)
    assert SPAN.slice_within(20, 30) is None
