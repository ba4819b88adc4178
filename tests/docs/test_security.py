"""SECURITY.md: each of its promises names its tests, and these exist."""

from __future__ import annotations

import re

import pytest

from devstack.paths import REPOSITORY

TEXT = (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8")

ROWS = {
    promise: re.findall(r"`([^`]+)`", tests)
    for promise, tests in re.findall(r"^\| ([^|]+) \| (`[^|]+) \|$", TEXT.partition("## Tests")[2], re.MULTILINE)
}


def test_each_promise_has_a_row() -> None:
    promises = {name.rstrip(".") for name in re.findall(r"^\* \*\*([^*]+)\*\*", TEXT, re.MULTILINE)}
    assert len(promises) > 15
    assert ROWS.keys() - {"Rights in Kafka"} == promises


def test_each_item_is_a_promise() -> None:
    items = re.findall(r"^\* .*", TEXT, re.MULTILINE)
    assert [item for item in items if not item.startswith("* **")] == []


@pytest.mark.parametrize("place", sorted({place for tests in ROWS.values() for place in tests}))
def test_the_named_tests_are_there(place: str) -> None:
    name, _, test = place.partition("::")
    source = (REPOSITORY / "tests" / name).read_text(encoding="utf-8")
    assert f"def {test or 'test_'}" in source
