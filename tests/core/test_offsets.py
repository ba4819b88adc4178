"""Value types."""

import pytest

from airflow_kafka_offsets.core.offsets import OffsetRange, TopicPartition, parse_scope, partitions_in
from airflow_kafka_offsets.exceptions import UnknownTopicError


def test_a_range_spans_end_minus_start_offsets() -> None:
    assert len(OffsetRange("t", 0, 7, 10, 10)) == 3


def test_texts_name_topic_partition_and_offsets() -> None:
    assert str(OffsetRange("orders", 3, 7, 10, 10)) == "orders[3] 7..10"
    assert str(TopicPartition("orders", 3)) == "orders[3]"


def test_a_scope_of_many_mentions_takes_no_time_for_pairs_of_them() -> None:
    # In quadratic time these take minutes.
    scope = parse_scope(f"orders:{number}" for number in range(200_000))
    assert scope == {"orders": frozenset(range(200_000))}

    with pytest.raises(
        UnknownTopicError, match=r"orders\[100\] \(the topic has 100: 0\.\.99\), .*and 199890 more"
    ) as error:
        partitions_in(scope, [], [TopicPartition("orders", number) for number in range(100)])
    assert len(str(error.value)) < 1_000


def test_mentions_of_a_topic_add_up() -> None:
    assert parse_scope(["a:1", "a:2,1", "b:1", "b", "b:2", "c", "c:1"]) == {
        "a": frozenset({1, 2}),
        "b": None,
        "c": None,
    }
