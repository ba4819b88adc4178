"""Lists in messages."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.text import count, first_few, first_reason, shortened


@pytest.mark.parametrize(
    ("items", "told"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a; b"),
        (["a", "b", "c"], "a; b; and 1 more"),
        ([TopicPartition("orders", n) for n in range(1000)], "orders[0]; orders[1]; and 998 more"),
    ],
    ids=["none", "one", "all", "one more", "many"],
)
def test_the_first_are_told_and_how_many_more_there_are(items: list[object], told: str) -> None:
    assert first_few(items, between="; ", most=2) == told


def test_reasons_that_are_the_same_are_one() -> None:
    assert first_reason(["no ACL.", "no ACL.", "gone"]) == "no ACL, and 1 more"


@pytest.mark.parametrize(
    ("number", "plural", "text"),
    [
        (0, "", "0 topics"),
        (1, "", "1 topic"),
        (2, "", "2 topics"),
        (1000, "", "1,000 topics"),
        (2, "topic-s", "2 topic-s"),
    ],
)
def test_a_noun_is_in_the_number_that_is_counted(number: int, plural: str, text: str) -> None:
    assert count(number, "topic", plural) == text


@pytest.mark.parametrize(("text", "short"), [("", ""), ("abcd", "abcd"), ("abcde", "abc…"), ("a" * 300_000, "aaa…")])
def test_a_long_text_is_cut(text: str, short: str) -> None:
    assert shortened(text, 4) == short
