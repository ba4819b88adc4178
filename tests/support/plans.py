"""Partitions, topic ids, and what tests read of a plan."""

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.planning import Plan

T0, T1, T2 = (TopicPartition("t", partition) for partition in range(3))


ID, OTHER_ID = "vVZ4aDWLQP2NkY0pxyHJYA", "Xw-aDWLQP2NkY0pxyHJYBQ"


def bounds(plan: Plan) -> dict[TopicPartition, tuple[int, int]]:
    return {one.topic_partition: (one.start, one.end) for one in plan.ranges}


def offsets(plan: Plan) -> int:
    return sum(map(len, plan.ranges))
