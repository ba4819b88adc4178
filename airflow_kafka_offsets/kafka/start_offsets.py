"""Starts and ends that the user gave as instants, durations or consumer groups, resolved to offsets by the cluster.

The result goes to `core.planning`, which decides the ranges.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from airflow_kafka_offsets.core import planning
from airflow_kafka_offsets.core.instants import (
    CommittedBy,
    Start,
    format_instant,
    from_milliseconds,
    instant,
    milliseconds,
)
from airflow_kafka_offsets.core.offsets import PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.core.planning import First
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import NoPositionError
from airflow_kafka_offsets.kafka.cluster import Cluster, TimedOffset
from airflow_kafka_offsets.kafka.time_search import TimeSearch

log = logging.getLogger(__name__)


# Clocks of producers differ by seconds; a timestamp that lies further in the future is wrong.
_CLOCK_TOLERANCE = timedelta(hours=1)


Find = Callable[[Mapping[TopicPartition, int]], dict[TopicPartition, TimedOffset]]


def first_offsets(
    cluster: Cluster,
    start: Start,
    now: Callable[[], datetime],
    logs: Mapping[TopicPartition, PartitionLog],
    positions: Mapping[TopicPartition, Position],
    *,
    find: Find,
) -> planning.Start:
    """Return where the topics that have no position yet begin.

    :param find: looks an instant up, as `TimeSearch.first_records` or `Cluster.offsets_for_times` does
    :param now: returns the database's time, from which a duration counts back
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
    first = find(dict.fromkeys(new, milliseconds(since)))
    latest = milliseconds(present + _CLOCK_TOLERANCE)
    for tp, record in sorted(first.items()):
        if record.timestamp_ms > latest:
            log.warning(
                "%s: the first record at or after %s is at offset %d, and its timestamp %s lies in the future. "
                "Records of that time or later may lie before it: a wrong timestamp hides them from a search by time",
                tp,
                format_instant(since),
                record.offset,
                format_instant(from_milliseconds(record.timestamp_ms)),
            )
    if without := sorted(set(new) - set(first)):
        log.info(
            "No record at or after %s in %s: beginning at the end offset", format_instant(since), first_few(without)
        )
    # Without such a record, the first one will be written at the end of the log.
    return {tp: First(logs[tp].end, "timestamp") for tp in new} | {
        tp: First(record.offset, "timestamp", record.timestamp_ms) for tp, record in first.items()
    }


def extend_to_positions(
    cluster: Cluster,
    logs: Mapping[TopicPartition, PartitionLog],
    positions: Mapping[TopicPartition, Position],
    start: planning.Start,
) -> dict[TopicPartition, PartitionLog]:
    """Return the logs, with their ends at or after the positions and first offsets, unless a log was truncated before
    these.

    The cluster reported the ends first: an offset that it reported later may lie after records that arrived since. A
    position stored by a `read_uncommitted` load may be beyond the last stable offset, which `read_committed` takes for
    the end.

    :param start: the result of `first_offsets`
    """
    offsets = {tp: first.offset for tp, first in start.items()} if isinstance(start, Mapping) else {}
    offsets |= {tp: position.offset for tp, position in positions.items() if tp in logs}

    def beyond(known: Mapping[TopicPartition, PartitionLog]) -> list[TopicPartition]:
        return sorted(tp for tp, offset in offsets.items() if offset > known[tp].end)

    extended = dict(logs)
    if late := beyond(extended):
        fresh = cluster.logs(sorted({tp.topic for tp in late}))
        extended |= {tp: fresh[tp] for tp in late if tp in fresh}
    if late := beyond(extended):
        ends = cluster.high_watermarks(late)
        # Records of open transactions cannot be read yet: there is nothing to load.
        extended |= {tp: replace(extended[tp], end=offsets[tp]) for tp in late if offsets[tp] <= ends[tp]}
    return extended


def targets_until(
    search: TimeSearch,
    until: datetime,
    logs: Mapping[TopicPartition, PartitionLog],
    positions: Mapping[TopicPartition, Position],
) -> dict[TopicPartition, int]:
    """Return the offset up to which each partition is loaded: that of the first unread record at or after an instant,
    or the log's end.

    Records do not arrive in the order of their timestamps: an older record that arrives after that offset is left to a
    later run.
    """
    unread = {tp: position.offset for tp, position in positions.items()}
    first = search.first_records(dict.fromkeys(logs, milliseconds(until)), unread)
    return {tp: min(first[tp].offset, log.end) if tp in first else log.end for tp, log in logs.items()}


def _committed(
    cluster: Cluster, group_id: str, new: list[TopicPartition], logs: Mapping[TopicPartition, PartitionLog]
) -> dict[TopicPartition, First]:
    committed = cluster.committed(group_id, new)
    if not committed:
        raise NoPositionError(
            f"Consumer group {group_id!r} has committed nothing of {first_few(sorted({tp.topic for tp in new}))}: "
            "check the name (kafka-consumer-groups --list), and whether its commits have expired"
        )
    if missing := sorted(set(new) - set(committed)):
        log.warning(
            "Consumer group %r has committed nothing of %s: beginning at their beginning offsets",
            group_id,
            first_few(missing),
        )
    return {
        tp: First(committed[tp], "group") if tp in committed else First(logs[tp].beginning, "earliest") for tp in new
    }
