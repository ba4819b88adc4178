"""Starts and ends that the user gave as instants, durations or groups, resolved to offsets by the cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from airflow_kafka_offsets.core import planning
from airflow_kafka_offsets.core.instants import format_instant, from_milliseconds, instant, milliseconds
from airflow_kafka_offsets.core.offsets import PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.core.planning import First
from airflow_kafka_offsets.core.start import CommittedBy, Start
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import NoPositionError
from airflow_kafka_offsets.kafka.cluster import Cluster

log = logging.getLogger(__name__)


# Clocks of producers differ by seconds; a record that is this far ahead has a wrong timestamp.
_TOLERATED_AHEAD = timedelta(hours=1)


def first_offsets(
    cluster: Cluster,
    start: Start,
    now: Callable[[], datetime],
    logs: Mapping[TopicPartition, PartitionLog],
    positions: Mapping[TopicPartition, Position],
) -> planning.Start:
    """What `start` means for the topics that have no position yet.

    :param now: tells the database's time, from which a duration counts back
    :raises NoPositionError: the other group has committed nothing
    """
    known = {tp.topic for tp in positions}
    new = [tp for tp in logs if tp.topic not in known]
    if not new:
        return "earliest"
    if isinstance(start, CommittedBy):
        return _committed(cluster, start.group_id, new, logs)
    if start == "earliest" or start == "latest" or start == "none":
        return start  # type: ignore[return-value]
    present = now()
    since = present - start if isinstance(start, timedelta) else instant("start", start)
    found = cluster.offsets_at(new, milliseconds(since))
    far = milliseconds(present + _TOLERATED_AHEAD)
    for tp, one in sorted(found.items()):
        if one.timestamp_ms > far:
            log.warning(
                "%s: the first record at or after %s is at offset %d, and its timestamp %s lies in the future. Records of that "
                "time or later may lie before it: a wrong timestamp hides them from a search by time",
                tp,
                format_instant(since),
                one.offset,
                format_instant(from_milliseconds(one.timestamp_ms)),
            )
    without = sorted(set(new) - set(found))
    if without:
        log.info(
            "No record at or after %s in %s: beginning at the end offset", format_instant(since), first_few(without)
        )
    # No record that new means that the end is where such records will come.
    return {
        tp: First(found[tp].offset, "timestamp", found[tp].timestamp_ms)
        if tp in found
        else First(logs[tp].end, "timestamp")
        for tp in new
    }


def extend_to_positions(
    cluster: Cluster,
    logs: Mapping[TopicPartition, PartitionLog],
    positions: Mapping[TopicPartition, Position],
    start: planning.Start,
) -> dict[TopicPartition, PartitionLog]:
    """The logs, up to where partitions stand or begin, unless a log was cut before that.

    Their ends were asked for first: an offset that was found later may lie behind records that arrived since. And whoever
    does not wait for the end of transactions, as another isolation level does, stands beyond the end of those that do.

    :param start: what `first_offsets` found
    """
    begun = {tp: one.offset for tp, one in start.items()} if isinstance(start, Mapping) else {}
    begun |= {tp: one.offset for tp, one in positions.items() if tp in logs}

    def beyond(known: Mapping[TopicPartition, PartitionLog]) -> list[TopicPartition]:
        return sorted(tp for tp, offset in begun.items() if offset > known[tp].end)

    found = dict(logs)
    if late := beyond(found):
        fresh = cluster.logs(sorted({tp.topic for tp in late}))
        found |= {tp: fresh[tp] for tp in late if tp in fresh}
    if late := beyond(found):
        ends = cluster.ends_of_all(late)
        # What is in transactions that have not ended cannot be read yet: there is nothing to load.
        found |= {tp: replace(found[tp], end=begun[tp]) for tp in late if begun[tp] <= ends[tp]}
    return found


def targets_until(
    cluster: Cluster, until: datetime, logs: Mapping[TopicPartition, PartitionLog]
) -> dict[TopicPartition, int]:
    """Return the offset up to which each partition is loaded: that of the first record at or after an instant, or the log's end.

    Records do not arrive in the order of their timestamps: an older record that arrives after that offset is left to a later run.
    """
    found = cluster.offsets_at(list(logs), milliseconds(until))
    return {tp: min(found[tp].offset, log.end) if tp in found else log.end for tp, log in logs.items()}


def _committed(
    cluster: Cluster, group_id: str, new: list[TopicPartition], logs: Mapping[TopicPartition, PartitionLog]
) -> dict[TopicPartition, First]:
    committed = cluster.committed(group_id, new)
    if not committed:
        raise NoPositionError(
            f"Consumer group {group_id!r} has committed nothing of {first_few(sorted({tp.topic for tp in new}))}: check the "
            "name (kafka-consumer-groups --list), and whether its commits have expired"
        )
    missing = sorted(set(new) - set(committed))
    if missing:
        log.warning(
            "Consumer group %r has committed nothing of %s: beginning at their beginning offsets",
            group_id,
            first_few(missing),
        )
    return {
        tp: First(committed[tp], "group") if tp in committed else First(logs[tp].beginning, "earliest") for tp in new
    }
