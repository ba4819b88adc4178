"""Records in parts that fit into memory."""

from __future__ import annotations

from itertools import chain

import pytest

from airflow_kafka_offsets.core.chunks import chunks

MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([1] * 501, [500, 1]),
        ([10 * MIB] * 9, [4, 4, 1]),
        ([1, 64 * MIB, 64 * MIB, 1], [2, 1, 1]),
    ],
)
def test_neither_many_nor_large_ones_are_together(sizes: list[int], expected: list[int]) -> None:
    found = list(chunks(iter(sizes), lambda size: size))
    assert [len(some) for some in found] == expected
    assert list(chain.from_iterable(found)) == sizes


def test_no_more_are_held_than_are_yielded() -> None:
    taken: list[int] = []
    records = (taken.append(number) or number for number in range(2_000))  # type: ignore[func-returns-value]
    next(chunks(records, lambda _: 0))
    assert len(taken) == 500
