"""Value types."""

from airflow_kafka_offsets.core.offsets import OffsetRange, TopicPartition


def test_a_range_spans_end_minus_start_offsets() -> None:
    assert len(OffsetRange("t", 0, 7, 10, 10)) == 3


def test_texts_name_topic_partition_and_offsets() -> None:
    assert str(OffsetRange("orders", 3, 7, 10, 10)) == "orders[3] 7..10"
    assert str(TopicPartition("orders", 3)) == "orders[3]"
