"""Whether stored positions belong to a log: the same cluster, topic and history. Rule 8 of planning in
`docs/semantics.md`. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from airflow_kafka_offsets.core.offsets import OffsetRange, PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.exceptions import ClusterChangedError, LogTruncatedError, TopicRecreatedError


def is_other_topic(one: str | None, other: str | None) -> bool:
    """Return whether two topic ids are those of two topics; None, of a broker that reports no ids, differs from
    none.
    """
    return one is not None and other is not None and one != other


def check_cluster(
    group_id: str,
    loaded_from: str | None,
    found: str,
    way_out: str = "Name the connection that the group is loaded with.",
) -> None:
    """Check that a group's positions belong to this cluster.

    :param loaded_from: the id of the cluster that the group is loaded from; None if it is not known
    :param found: the id of the cluster that the connection leads to
    :param way_out: what the user can do
    :raises ClusterChangedError: they belong to another one
    """
    if loaded_from is not None and loaded_from != found:
        raise ClusterChangedError(
            f"The positions of group {group_id!r} belong to Kafka cluster {loaded_from!r}; the connection leads to "
            f"cluster {found!r}. {way_out}"
        )


def topic_mismatch(tp: TopicPartition, position: Position, log: PartitionLog | None) -> str | None:
    """Describe how a position belongs to another topic of the same name; None where it does not.

    :param log: None where the topic has no such partition
    """
    if log is None:
        return f"{tp}: position {position.offset} is stored, but the topic has no such partition now"
    if is_other_topic(position.topic_id, log.topic_id):
        return (
            f"{tp}: position {position.offset} belongs to topic id {position.topic_id}, "
            f"the topic has id {log.topic_id} and offsets {log.beginning}..{log.end} now"
        )
    return None


def check_positions(
    positions: Mapping[TopicPartition, Position], logs: Mapping[TopicPartition, PartitionLog], topics: Collection[str]
) -> None:
    """Check that positions mean in the log what they meant when they were stored.

    A missing partition, or another topic id, means a recreated topic, even if its log covers the position. An end
    offset before the position, or a leader epoch before that of the position, means a truncated log. A log that was
    truncated and rewritten beyond the position is noticed by the reader, which sends the epoch (KIP-320).

    :param logs: every partition of the topics
    :param topics: positions of other topics are ignored
    :raises TopicRecreatedError: naming every partition concerned
    :raises LogTruncatedError: naming every partition concerned
    """
    recreated: list[str] = []
    truncated: list[str] = []
    for tp, position in sorted(positions.items()):
        if tp.topic not in topics:
            continue
        if mismatch := topic_mismatch(tp, position, logs.get(tp)):
            recreated.append(mismatch)
            continue
        log = logs[tp]
        if position.offset > log.end:
            truncated.append(f"{tp}: position {position.offset} is beyond the end offset {log.end}")
        elif _went_back(position.leader_epoch, log.leader_epoch):
            truncated.append(
                f"{tp}: position {position.offset} was in the log of leader epoch {position.leader_epoch}, the leader "
                f"has epoch {log.leader_epoch} now"
            )
    if recreated:
        raise TopicRecreatedError(
            "A topic was recreated, and the stored positions are not valid in it: "
            + "; ".join(recreated)
            + ". Load the new topic under a new group_id, or rewind this group to an offset or a time in the new topic."
        )
    if truncated:
        raise LogTruncatedError(
            "The log was truncated before the stored position (unclean leader election, or a restored cluster): "
            + "; ".join(truncated)
            + ". Find out which records were lost; then rewind the group to the end offset, or use a new group_id to "
            "load from the beginning."
        )


def check_ranges(ranges: Sequence[OffsetRange], logs: Mapping[TopicPartition, PartitionLog]) -> None:
    """Check that the logs are still those that the ranges were planned from.

    :raises TopicRecreatedError: a topic was recreated
    :raises LogTruncatedError: a log ends before a range, or its leader epoch is before that of the plan
    """
    ends = {range_.topic_partition: Position(range_.end, range_.topic_id, range_.end_epoch) for range_ in ranges}
    check_positions(ends, logs, {range_.topic for range_ in ranges})


def _went_back(stored: int | None, current: int | None) -> bool:
    return stored is not None and current is not None and current < stored
