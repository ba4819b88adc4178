"""Items that fail a check are found, and only these."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.bisection import Failure, Run, split_at_failures


class OddError(Exception):
    """An item fails."""


class Check:
    """Fails where one of the items is among the bad ones; counts the calls."""

    def __init__(self, bad: set[int]) -> None:
        self.bad, self.calls = bad, 0

    def __call__(self, first: int, end: int) -> list[int]:
        assert first < end
        self.calls += 1
        if any(index in self.bad for index in range(first, end)):
            raise OddError
        return list(range(first, end))


@given(st.lists(st.booleans(), max_size=70), st.integers(1, 10))
def test_items_are_split_into_runs_that_pass_and_items_that_fail(fails: list[bool], few: int) -> None:
    bad = {place for place, is_bad in enumerate(fails) if is_bad}
    found = list(split_at_failures(len(fails), Check(bad), OddError, few=few))
    assert {part.position for part in found if isinstance(part, Failure)} == bad
    items = [part.result if isinstance(part, Run) else [part.position] for part in found]
    assert [index for part in items for index in part] == list(range(len(fails)))


def test_items_that_all_pass_are_checked_once() -> None:
    check = Check(set())
    assert list(split_at_failures(1_000, check, OddError)) == [Run(list(range(1_000)))]
    assert check.calls == 1


def test_one_failure_among_many_items_takes_a_few_checks() -> None:
    check = Check({700})
    list(split_at_failures(1_024, check, OddError))
    assert check.calls == 1 + 2 * 10


def test_few_items_that_fail_are_checked_one_at_a_time() -> None:
    check = Check(set(range(8)))
    list(split_at_failures(8, check, OddError, few=8))
    assert check.calls == 1 + 8


def test_later_items_are_not_checked_before_the_caller_has_a_failure() -> None:
    check = Check({0, 1})
    next(split_at_failures(2, check, OddError))
    assert check.calls == 2


def test_another_error_passes() -> None:
    def check(first: int, end: int) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        list(split_at_failures(5, check, OddError))


def test_no_items_are_not_checked() -> None:
    assert list(split_at_failures(0, Check(set()), OddError)) == []


def test_a_failure_holds_none_of_the_items() -> None:
    def check(first: int, end: int) -> None:
        held = Held()
        alive.append(weakref.ref(held))
        raise ValueError(first)

    class Held:
        """What a check holds while it runs."""

    alive: list[weakref.ref[Held]] = []
    failures = split_at_failures(4, check, ValueError)
    gc.disable()
    try:
        found = [failure for failure in failures if isinstance(failure, Failure)]
        assert len(found) == 4
        assert [held() for held in alive if held() is not None] == []
    finally:
        gc.enable()
